// Muster's own kernels (device_kernels.cu), embedded in this program for sm_80, sm_90 and later
// devices. Each takes parameters of 8 bytes and works with any grid of one dimension.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace muster::device_kernels {

// The fat binary for Device::Find(); lives as long as the process. Empty when Muster was built
// without GPUs.
[[nodiscard]] std::span<const unsigned char> image();

// (float* into, const float* from, int64 n): into[i] += from[i]
inline constexpr const char* kAddF32 = "muster_add_f32";
// (double* into, const double* from, int64 n)
inline constexpr const char* kAddF64 = "muster_add_f64";
// (float* values, int64 n, double scale): each value times scale, in double precision
inline constexpr const char* kMeanF32 = "muster_mean_f32";
// (const float* values, int64 n, double* sums): of each block of kSumBlock (block_sums.h) values
// the sum of the squares, as NormSquared makes it. Threads: a multiple of 32.
inline constexpr const char* kBlockSquaresF32 = "muster_block_squares_f32";
// (uint32* value): value * 2654435761 + 1
inline constexpr const char* kProbe = "muster_probe";

struct Shape {
  std::uint32_t blocks = 1;
  std::uint32_t threads = 256;
};

// The grid for so many independent pieces of work, one a thread at a time: enough blocks to fill
// any device of today and no more, for the threads loop. REQUIRES: work >= 1
[[nodiscard]] constexpr Shape ShapeFor(std::int64_t work) {
  constexpr std::int64_t kThreads = 256;
  constexpr std::int64_t kMaxBlocks = 2048;
  return {static_cast<std::uint32_t>(std::min((work + kThreads - 1) / kThreads, kMaxBlocks)),
          static_cast<std::uint32_t>(kThreads)};
}

}  // namespace muster::device_kernels
