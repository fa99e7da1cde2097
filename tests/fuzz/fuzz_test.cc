// The seeds are valid, and some thousand mutations of them do no harm. `./run fuzz` does it in
// earnest.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/shard_header.h"
#include "protocol/prng.h"
#include "tests/fuzz/targets.h"

namespace muster::fuzz {
namespace {

using Target = std::function<void(std::span<const std::uint8_t>)>;

void Feed(const Target& target, const std::string& bytes) {
  target({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
}

// A byte changed, some removed, some doubled, or a number made another one.
std::string Mutate(std::string bytes, Prng& prng) {
  for (std::uint64_t changes = 1 + prng.Below(4); changes > 0 && !bytes.empty(); --changes) {
    const std::size_t at = prng.Below(bytes.size());
    switch (prng.Below(4)) {
      case 0: bytes[at] = static_cast<char>(prng.Next()); break;
      case 1: bytes.erase(at, prng.Below(16)); break;
      case 2: bytes.insert(at, bytes.substr(at, prng.Below(16))); break;
      default: bytes[at] = "0123456789-[]{}\","[prng.Below(17)]; break;
    }
  }
  return bytes;
}

void Mangle(const Target& target, const std::vector<std::string>& seeds) {
  Prng prng(31);
  for (const std::string& seed : seeds) {
    Feed(target, seed);
    for (int i = 0; i < 4000; ++i) Feed(target, Mutate(seed, prng));
  }
  Feed(target, "");
}

TEST(Fuzz, Headers) { Mangle(ReadHeader, HeaderSeeds()); }
TEST(Fuzz, Manifests) { Mangle(ReadManifest, ManifestSeeds()); }

// A fuzzer that starts from what is refused at once would find nothing.
TEST(Fuzz, SeedsAreValid) {
  for (const std::string& seed : HeaderSeeds()) {
    if (seed[0] == '\0') continue;
    std::uint64_t data_bytes = 0;
    std::memcpy(&data_bytes, seed.data() + 1, sizeof(data_bytes));
    const std::string prefix = seed.substr(9);
    const auto header = checkpoint::DecodeShardHeader(
        prefix, std::ssize(prefix) + static_cast<std::int64_t>(data_bytes));
    EXPECT_TRUE(header.ok()) << header.status().ToString();
  }
}

}  // namespace
}  // namespace muster::fuzz
