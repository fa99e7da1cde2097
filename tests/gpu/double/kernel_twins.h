// Kernels by name, as functions of the host that compute the same bits. TEST CODE.
//
// Every parameter of a kernel is 8 bytes wide (a pointer, an int64 or a double), so the double can
// copy arguments without knowing more; the grid is one-dimensional. Pointers to device memory have
// been exchanged for the host's before a twin runs.
#pragma once

#include <string_view>

#include "tests/support/kernel_twins.h"

namespace muster::gpu_double {

using Twin = testing::KernelTwin;

// Null when no table has it. A further table is added in kernel_twins.cc.
[[nodiscard]] const Twin* FindTwin(std::string_view name);

}  // namespace muster::gpu_double
