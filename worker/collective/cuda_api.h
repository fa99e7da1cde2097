// The functions of the CUDA runtime that are used, found at run time.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "protocol/status.h"

namespace muster {

// The prefix "cuda" is left out.
#define MUSTER_CUDA_FUNCTIONS(X) \
  X(RuntimeGetVersion)           \
  X(DriverGetVersion)            \
  X(GetDeviceCount)              \
  X(SetDevice)                   \
  X(DeviceGetPCIBusId)           \
  X(MemGetInfo)                  \
  X(Malloc)                      \
  X(Free)                        \
  X(HostAlloc)                   \
  X(FreeHost)                    \
  X(MemcpyAsync)                 \
  X(MemsetAsync)                 \
  X(PointerGetAttributes)        \
  X(StreamCreateWithFlags)       \
  X(StreamDestroy)               \
  X(StreamWaitEvent)             \
  X(EventCreateWithFlags)        \
  X(EventDestroy)                \
  X(EventRecord)                 \
  X(EventQuery)                  \
  X(GetLastError)                \
  X(GetErrorName)                \
  X(GetErrorString)              \
  X(LibraryLoadData)             \
  X(LibraryGetKernel)            \
  X(LaunchKernel)

struct CudaApi {
#define MUSTER_DECLARE(name) decltype(&::cuda##name) name = nullptr;
  MUSTER_CUDA_FUNCTIONS(MUSTER_DECLARE)
#undef MUSTER_DECLARE
  int runtime_version = 0;  // 13000 is 13.0

  // Looks for the runtime at the first call and keeps the answer. kUnavailable, one line, when it
  // is not there, lacks a function, or finds no driver.
  [[nodiscard]] static Result<const CudaApi*> Load();
  // Ok, or "cudaErrorIllegalAddress: an illegal memory access was encountered" with `what` before.
  [[nodiscard]] Status Check(cudaError_t error, const std::string& what) const;
};

// 13000 -> "13.0".
[[nodiscard]] std::string CudaVersionText(int version);

}  // namespace muster
