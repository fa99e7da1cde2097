#include "worker/collective/nccl_api.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "worker/collective/shared_library.h"

namespace muster {
namespace {

constexpr const char* kCandidates[] = {"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2"};

struct Setting {
  const char* variable;
  const char* value;  // what it has to be
  bool by_default;    // set it also where the user has not set it at all
  const char* reason;
};

// NCCL's own variables are read once, at its first call.
constexpr Setting kSettings[] = {
    {"NCCL_WIN_ENABLE", "0", true,
     "kernels over symmetric windows do not look at the abort flag, so a hung one could not be "
     "ended"},
    {"NCCL_COMM_BLOCKING", "0", false, "calls that block could not be left when a peer dies"},
};

Result<NcclApi> LoadOnce() {
  MUSTER_RETURN_IF_ERROR(PrepareEnvironment(
      [](const std::string& line) { std::fprintf(stderr, "muster: %s\n", line.c_str()); }));
  Result<SharedLibrary> library = SharedLibrary::Open("NCCL", "MUSTER_NCCL_LIBRARY", kCandidates);
  if (!library.ok()) return library.status();
  NcclApi api;
  const char* missing = nullptr;
#define MUSTER_FIND(name)                                                       \
  api.name = reinterpret_cast<decltype(api.name)>(library->Find("nccl" #name)); \
  if (api.name == nullptr && missing == nullptr) missing = "nccl" #name;
  MUSTER_NCCL_FUNCTIONS(MUSTER_FIND)
#undef MUSTER_FIND
  if (api.GetVersion != nullptr) (void)api.GetVersion(&api.version);
  if (api.version < kMinNcclVersion || missing != nullptr) {
    return Unavailable(
        fmt::format("{} is NCCL {}{}: Muster needs {} or newer, whose abort can be "
                    "relied on",
                    library->name(), NcclVersionName(api.version),
                    missing == nullptr ? "" : fmt::format(" without {}", missing),
                    NcclVersionName(kMinNcclVersion)));
  }
  return api;
}

}  // namespace

Result<const NcclApi*> NcclApi::Load() {
  static const Result<NcclApi> api = LoadOnce();
  if (!api.ok()) return api.status();
  return &*api;
}

std::string NcclVersionName(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

Status PrepareEnvironment(const std::function<void(const std::string&)>& say) {
  for (const Setting& setting : kSettings) {
    const char* value = std::getenv(setting.variable);
    if (value != nullptr && std::string_view(value) == setting.value) continue;
    if (value == nullptr && !setting.by_default) continue;
    if (value != nullptr) {
      say(fmt::format("{}={} is switched off: {}", setting.variable, value, setting.reason));
    }
    ::setenv(setting.variable, setting.value, 1);
  }
  const char* blocking = std::getenv("CUDA_LAUNCH_BLOCKING");
  if (blocking != nullptr && std::string_view(blocking) != "0" && *blocking != '\0') {
    return FailedPrecondition(fmt::format(
        "CUDA_LAUNCH_BLOCKING={} is set: a launch of NCCL would wait for itself; unset it",
        blocking));
  }
  return {};
}

}  // namespace muster
