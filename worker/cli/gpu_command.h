// `muster gpu`: what this machine's GPUs and NCCL are to Muster, or why they are nothing.
#pragma once

#include <string>

namespace muster::cli {

struct GpuOptions {
  int ordinal = 0;  // among the visible ones
  bool json = false;
};

// Prints a few lines, or one JSON object. Returns 0 when gradients can go over NCCL here, else 1.
[[nodiscard]] int RunGpu(const GpuOptions& options);

}  // namespace muster::cli
