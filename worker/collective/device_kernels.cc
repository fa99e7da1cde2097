#include "worker/collective/device_kernels.h"

#include <cstddef>

extern "C" {
extern const unsigned char muster_device_kernels[];
extern const std::size_t muster_device_kernels_size;
}

namespace muster::device_kernels {

std::span<const unsigned char> image() {
  return {muster_device_kernels, muster_device_kernels_size};
}

}  // namespace muster::device_kernels
