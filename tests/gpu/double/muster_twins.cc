// The twins of Muster's own kernels (worker/collective/device_kernels.cu). TEST CODE.
// They call the CPU code that the kernels have to agree with, bit for bit.
#include <algorithm>
#include <array>

#include "tests/gpu/double/double_hooks.h"
#include "tests/gpu/double/kernel_twins.h"
#include "worker/collective/reduce.h"
#include "worker/collective/reduction_tree.h"

namespace muster::gpu_double {
namespace {

constexpr std::size_t kBlock = 4096;  // of NormSquared

template <class T>
void Add(const std::uint64_t* arguments, std::uint32_t, std::uint32_t) {
  const std::size_t n = CountOf(arguments[2]);
  AddInto(std::span(PointerOf<T>(arguments[0]), n), std::span(PointerOf<const T>(arguments[1]), n));
}

void Mean(const std::uint64_t* arguments, std::uint32_t, std::uint32_t) {
  const double scale = DoubleOf(arguments[2]);
  for (float& value : std::span(PointerOf<float>(arguments[0]), CountOf(arguments[1]))) {
    value = static_cast<float>(static_cast<double>(value) * scale);
  }
}

void BlockSquares(const std::uint64_t* arguments, std::uint32_t, std::uint32_t) {
  const std::span values(PointerOf<const float>(arguments[0]), CountOf(arguments[1]));
  double* sum = PointerOf<double>(arguments[2]);
  for (std::size_t start = 0; start < values.size(); start += kBlock) {
    // Of a single block, NormSquared is the sum within it.
    *sum++ = NormSquared(values.subspan(start, std::min(kBlock, values.size() - start)));
  }
}

void Probe(const std::uint64_t* arguments, std::uint32_t, std::uint32_t) {
  auto* const value = PointerOf<std::uint32_t>(arguments[0]);
  *value = *value * 2654435761U + 1U;
}

}  // namespace

std::span<const Twin> MusterTwins() {
  static constexpr std::array kTwins = {
      Twin{"muster_add_f32", 3, Add<float>}, Twin{"muster_add_f64", 3, Add<double>},
      Twin{"muster_mean_f32", 3, Mean},      Twin{"muster_block_squares_f32", 3, BlockSquares},
      Twin{"muster_probe", 1, Probe},
  };
  return kTwins;
}

}  // namespace muster::gpu_double
