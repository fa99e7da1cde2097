#include "tests/support/kernel_twins.h"

#include <algorithm>
#include <array>

namespace muster::testing {
namespace {

template <class T>
void Add(const std::uint64_t* arguments) {
  auto* const into = KernelArgument<T*>(arguments[0]);
  const auto* const from = KernelArgument<const T*>(arguments[1]);
  const auto n = KernelArgument<std::int64_t>(arguments[2]);
  for (std::int64_t i = 0; i < n; ++i) into[i] += from[i];
}

void Mean(const std::uint64_t* arguments) {
  auto* const values = KernelArgument<float*>(arguments[0]);
  const auto n = KernelArgument<std::int64_t>(arguments[1]);
  const auto scale = KernelArgument<double>(arguments[2]);
  for (std::int64_t i = 0; i < n; ++i) {
    values[i] = static_cast<float>(static_cast<double>(values[i]) * scale);
  }
}

void BlockSquares(const std::uint64_t* arguments) {
  constexpr std::int64_t kBlock = 4096;
  constexpr std::int64_t kLanes = 8;
  const auto* const values = KernelArgument<const float*>(arguments[0]);
  const auto n = KernelArgument<std::int64_t>(arguments[1]);
  auto* const sums = KernelArgument<double*>(arguments[2]);
  for (std::int64_t start = 0; start < n; start += kBlock) {
    std::array<double, kLanes> lanes{};
    for (std::int64_t i = start; i < std::min(start + kBlock, n); ++i) {
      const auto value = static_cast<double>(values[i]);
      lanes[static_cast<std::size_t>(i % kLanes)] += value * value;
    }
    sums[start / kBlock] = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
                           ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
  }
}

void Probe(const std::uint64_t* arguments) {
  auto* const value = KernelArgument<std::uint32_t*>(arguments[0]);
  *value = *value * 2654435761U + 1U;
}

constexpr std::array<KernelTwin, 5> kTwins = {{{"muster_add_f32", 3, Add<float>},
                                               {"muster_add_f64", 3, Add<double>},
                                               {"muster_mean_f32", 3, Mean},
                                               {"muster_block_squares_f32", 3, BlockSquares},
                                               {"muster_probe", 1, Probe}}};

}  // namespace

std::span<const KernelTwin> CollectiveKernelTwins() { return kTwins; }

}  // namespace muster::testing
