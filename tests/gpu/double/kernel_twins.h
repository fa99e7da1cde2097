// Kernels by name, as functions of the host that compute the same bits. TEST CODE.
//
// Every parameter of a kernel is 8 bytes wide (a pointer, an int64 or a double), so the double can
// copy arguments without knowing more; the grid is one-dimensional. Pointers to device memory have
// been exchanged for the host's before a twin runs.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string_view>

namespace muster::gpu_double {

struct Twin {
  std::string_view name;
  int parameters = 0;
  void (*run)(const std::uint64_t* arguments, std::uint32_t blocks,
              std::uint32_t threads) = nullptr;
};

// The kernels of worker/collective/device_kernels.cu (muster_twins.cc).
[[nodiscard]] std::span<const Twin> MusterTwins();

// Null when no table has it. A further table is added in kernel_twins.cc.
[[nodiscard]] const Twin* FindTwin(std::string_view name);

// The arguments of a twin, as what they are.
template <class T>
[[nodiscard]] T* PointerOf(std::uint64_t argument) {
  return reinterpret_cast<T*>(argument);
}
[[nodiscard]] inline std::size_t CountOf(std::uint64_t argument) {
  return static_cast<std::size_t>(argument);
}
[[nodiscard]] inline double DoubleOf(std::uint64_t argument) {
  return std::bit_cast<double>(argument);
}

}  // namespace muster::gpu_double
