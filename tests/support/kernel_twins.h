// What a machine without a GPU runs in the place of kernels: for each of them a function that
// computes the same bits on the host.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace muster::testing {

struct KernelTwin {
  std::string_view name;       // as the kernel's extern "C" function
  std::size_t parameters = 0;  // of 8 bytes each
  // Computes what the whole grid would; `arguments` has `parameters` of them.
  void (*run)(const std::uint64_t* arguments) = nullptr;
};

// An argument by its type in the kernel: a pointer, a 64-bit integer or a double.
template <class T>
[[nodiscard]] T KernelArgument(std::uint64_t bits) {
  static_assert(sizeof(T) == 8, "every parameter has 8 bytes");
  return std::bit_cast<T>(bits);
}

// Those of worker/collective/device_kernels.cu.
[[nodiscard]] std::span<const KernelTwin> CollectiveKernelTwins();

}  // namespace muster::testing
