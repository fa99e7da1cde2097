#include "worker/cli/gpu_command.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "worker/collective/gpu_backend.h"

namespace muster::cli {
namespace {

constexpr double kGib = 1024.0 * 1024 * 1024;

}  // namespace

int RunGpu(const GpuOptions& options) {
  const Result<std::shared_ptr<Device>> device = OpenDevice(options.ordinal);
  const Status nccl = NcclUsable();
  std::pair<std::size_t, std::size_t> memory;
  if (device.ok()) {
    const auto info = (*device)->MemoryInfo();
    if (info.ok()) memory = *info;
  }
  const bool usable = device.ok() && nccl.ok();
  if (options.json) {
    const nlohmann::json object = {
        {"usable", usable},
        {"device", device.ok() ? (*device)->name() : ""},
        {"device_problem", device.status().message()},
        {"memory_free_bytes", memory.first},
        {"memory_total_bytes", memory.second},
        {"nccl", NcclVersionText()},
        {"nccl_problem", nccl.message()},
    };
    fmt::print("{}\n", object.dump());
    return usable ? 0 : 1;
  }
  if (device.ok()) {
    fmt::print("GPU   {}: computes; {:.1f} of {:.1f} GiB free\n", (*device)->name(),
               static_cast<double>(memory.first) / kGib, static_cast<double>(memory.second) / kGib);
  } else {
    fmt::print("GPU   none: {}\n", device.status().message());
  }
  // The text begins with the name.
  fmt::print("{}\n",
             nccl.ok() ? NcclVersionText() + ": can be used" : "NCCL  off: " + nccl.message());
  fmt::print("{}\n", usable ? "Workers with a device use NCCL (--backend auto)."
                            : "Workers go over TCP (--backend auto).");
  return usable ? 0 : 1;
}

}  // namespace muster::cli
