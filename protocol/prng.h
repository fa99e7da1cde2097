// One seeded generator (SplitMix64, Steele, Lea and Flood 2014) whose sequence is the same on every
// machine; the distributions of <random> are not. Not for secrets.
#pragma once

#include <cstdint>

namespace muster {

// The finalizer of SplitMix64: a good mix of 64 bits, as a pure function.
[[nodiscard]] constexpr std::uint64_t Mix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31U);
}

class Prng {
 public:
  explicit constexpr Prng(std::uint64_t seed) : state_(seed) {}
  constexpr std::uint64_t Next() {
    const std::uint64_t x = Mix64(state_);
    state_ += 0x9e3779b97f4a7c15ULL;
    return x;
  }
  // Uniform in [0, bound). REQUIRES: bound > 0
  std::uint64_t Below(std::uint64_t bound);
  // True in `numerator` of `denominator` cases. REQUIRES: denominator > 0
  bool Chance(std::uint64_t numerator, std::uint64_t denominator) {
    return Below(denominator) < numerator;
  }
  // Uniform in [0, 1) with 53 bits.
  double Unit() { return static_cast<double>(Next() >> 11U) * 0x1.0p-53; }

 private:
  std::uint64_t state_;
};

}  // namespace muster
