#include "protocol/prng.h"

#include "protocol/check.h"

namespace muster {

std::uint64_t Prng::Below(std::uint64_t bound) {
  MUSTER_CHECK(bound > 0, "an empty range has no member");
  // Rejection keeps it exactly uniform: values below 2^64 mod bound would be drawn once too often.
  const std::uint64_t threshold = (0 - bound) % bound;
  for (;;) {
    const std::uint64_t x = Next();
    if (x >= threshold) return x % bound;
  }
}

}  // namespace muster
