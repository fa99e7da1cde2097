// The kernels of worker/examples/char_lm_kernels.cu on the host: the same source, compiled for it.
#pragma once

#include <span>

#include "tests/support/kernel_twins.h"

namespace muster::testing {

[[nodiscard]] std::span<const KernelTwin> CharLmKernelTwins();

}  // namespace muster::testing
