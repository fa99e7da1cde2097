// The kernels of worker/examples/char_lm_kernels.cu on the host.
#pragma once

#include <span>

#include "tests/support/kernel_twins.h"

namespace muster::testing {

// They compute the functions of worker/examples/char_lm_math.h, as the kernels do.
[[nodiscard]] std::span<const KernelTwin> CharLmKernelTwins();

}  // namespace muster::testing
