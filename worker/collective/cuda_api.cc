#include "worker/collective/cuda_api.h"

#include <fmt/format.h>

#include "worker/collective/shared_library.h"

namespace muster {
namespace {

// The first runtime with libraries of kernels (cudaLibraryLoadData) is one of these.
constexpr const char* kCandidates[] = {"libcudart.so.13", "libcudart.so.12",
                                       "/usr/local/cuda/lib64/libcudart.so.13",
                                       "/usr/local/cuda/lib64/libcudart.so.12"};

Result<CudaApi> LoadOnce() {
  Result<SharedLibrary> library =
      SharedLibrary::Open("the CUDA runtime", "MUSTER_CUDART_LIBRARY", kCandidates);
  if (!library.ok()) return library.status();
  CudaApi api;
  const char* missing = nullptr;
#define MUSTER_FIND(name)                                                       \
  api.name = reinterpret_cast<decltype(api.name)>(library->Find("cuda" #name)); \
  if (api.name == nullptr && missing == nullptr) missing = "cuda" #name;
  MUSTER_CUDA_FUNCTIONS(MUSTER_FIND)
#undef MUSTER_FIND
  if (api.RuntimeGetVersion != nullptr) (void)api.RuntimeGetVersion(&api.runtime_version);
  if (missing != nullptr) {
    return Unavailable(fmt::format("{} (CUDA {}) has no {}: Muster needs CUDA 12.8 or newer",
                                   library->name(), CudaVersionText(api.runtime_version), missing));
  }
  int driver = 0;
  MUSTER_RETURN_IF_ERROR(api.Check(api.DriverGetVersion(&driver), "cudaDriverGetVersion"));
  if (driver == 0) {
    return Unavailable(fmt::format("no NVIDIA driver is loaded (CUDA runtime {} found in {})",
                                   CudaVersionText(api.runtime_version), library->name()));
  }
  if (driver / 1000 < api.runtime_version / 1000) {
    return Unavailable(fmt::format(
        "the NVIDIA driver is for CUDA {}, the runtime in {} is CUDA {}: update the driver, or "
        "name an older runtime in MUSTER_CUDART_LIBRARY",
        CudaVersionText(driver), library->name(), CudaVersionText(api.runtime_version)));
  }
  return api;
}

}  // namespace

Result<const CudaApi*> CudaApi::Load() {
  static const Result<CudaApi> api = LoadOnce();
  if (!api.ok()) return api.status();
  return &*api;
}

Status CudaApi::Check(cudaError_t error, const std::string& what) const {
  if (error == cudaSuccess) return {};
  const std::string text =
      fmt::format("{}: {}: {}", what, GetErrorName(error), GetErrorString(error));
  switch (error) {
    case cudaErrorMemoryAllocation: return ResourceExhausted(text);
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
    case cudaErrorDevicesUnavailable: return Unavailable(text);
    case cudaErrorInvalidValue: return InvalidArgument(text);
    default: return Internal(text);
  }
}

std::string CudaVersionText(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace muster
