#include "checkpoint/digest.h"

#include <xxhash.h>

namespace muster::checkpoint {

std::uint64_t DigestOf(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::uint64_t DigestOf(std::string_view text) { return DigestOf(std::as_bytes(std::span(text))); }

}  // namespace muster::checkpoint
