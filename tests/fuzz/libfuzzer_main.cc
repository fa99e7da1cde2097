// Joins a target to libFuzzer. With MUSTER_WRITE_SEEDS=DIRECTORY it writes the seeds there and
// ends.
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/fuzz/targets.h"

namespace {

using namespace muster::fuzz;

#ifdef MUSTER_FUZZ_MANIFEST
constexpr auto kTarget = ReadManifest;
constexpr auto kSeeds = ManifestSeeds;
#else
constexpr auto kTarget = ReadHeader;
constexpr auto kSeeds = HeaderSeeds;
#endif

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  const char* directory = std::getenv("MUSTER_WRITE_SEEDS");
  if (directory == nullptr) return 0;
  int number = 0;
  for (const std::string& seed : kSeeds()) {
    std::ofstream(std::string(directory) + "/seed" + std::to_string(number++), std::ios::binary)
        << seed;
  }
  std::exit(0);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  kTarget({bytes, size});
  return 0;
}
