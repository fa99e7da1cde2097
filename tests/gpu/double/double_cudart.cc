// The CUDA runtime's C functions, on the host. TEST CODE: built as libmuster_double_cudart.so.
// Devices, memory and copies are here; kernels and libraries in double_kernels.cc.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/double/double_answer.h"
#include "tests/gpu/double/double_faults.h"
#include "tests/gpu/double/double_hooks.h"
#include "tests/gpu/double/double_memory.h"
#include "tests/gpu/double/double_streams.h"

namespace muster::gpu_double {
namespace {

// Of ordinary memory, the driver copies at most this much away before a call returns.
constexpr std::size_t kStagedBytes = 64 * 1024;

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;

// How many devices the process sees.
int Devices() {
  const int present = static_cast<int>(EnvironmentNumber("MUSTER_DOUBLE_DEVICES", 8));
  const std::string unset = "unset";
  const std::string visible = Environment("CUDA_VISIBLE_DEVICES", unset);
  if (visible == unset) return present;
  if (visible.empty()) return 0;
  return std::min(present, 1 + static_cast<int>(std::ranges::count(visible, ',')));
}

// The number that the machine has for the process's device: entry n of CUDA_VISIBLE_DEVICES.
int PhysicalDevice(int device) {
  std::string visible = Environment("CUDA_VISIBLE_DEVICES", "");
  for (int i = 0; i < device && !visible.empty(); ++i) {
    const std::size_t comma = visible.find(',');
    visible = comma == std::string::npos ? "" : visible.substr(comma + 1);
  }
  return visible.empty() ? device : std::atoi(visible.c_str());
}

void CheckKind(Place to, Place from, cudaMemcpyKind kind) {
  const bool to_device = to == Place::kDevice;
  const bool from_device = from == Place::kDevice;
  const cudaMemcpyKind kinds[2][2] = {{cudaMemcpyHostToHost, cudaMemcpyHostToDevice},
                                      {cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice}};
  if (kind != cudaMemcpyDefault && kind != kinds[from_device ? 1 : 0][to_device ? 1 : 0]) {
    Die("cudaMemcpyAsync of kind " + std::to_string(kind) + " with other kinds of memory");
  }
}

}  // namespace

cudaError_t Answer(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t Entry() {
  const cudaError_t broken = Streams::Get().context_error();
  if (broken != cudaSuccess) return broken;
  return Devices() > 0 ? cudaSuccess : cudaErrorNoDevice;
}

}  // namespace muster::gpu_double

using namespace muster::gpu_double;

// ---- Versions, devices, errors ------------------------------------------------------------------

MUSTER_DOUBLE_EXPORT cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = static_cast<int>(EnvironmentNumber("MUSTER_DOUBLE_CUDART_VERSION", CUDART_VERSION));
  return cudaSuccess;
}

MUSTER_DOUBLE_EXPORT cudaError_t cudaDriverGetVersion(int* version) {
  *version = static_cast<int>(EnvironmentNumber("MUSTER_DOUBLE_DRIVER_VERSION", CUDART_VERSION));
  return cudaSuccess;
}

MUSTER_DOUBLE_EXPORT cudaError_t cudaGetDeviceCount(int* count) {
  *count = Devices();
  return Answer(Entry());
}

MUSTER_DOUBLE_EXPORT cudaError_t cudaSetDevice(int device) {
  if (const cudaError_t error = Entry()) return Answer(error);
  if (device < 0 || device >= Devices()) return Answer(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

MUSTER_DOUBLE_EXPORT cudaError_t cudaGetDevice(int* device) {
  if (const cudaError_t error = Entry()) return Answer(error);
  *device = current_device;
  return cudaSuccess;
}

MUSTER_DOUBLE_EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute,
                                                        int device) {
  if (const cudaError_t error = Entry()) return Answer(error);
  if (device < 0 || device >= Devices()) return Answer(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = 9; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; return cudaSuccess;
    case cudaDevAttrMultiProcessorCount: *value = 8; return cudaSuccess;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; return cudaSuccess;
    case cudaDevAttrMaxGridDimX: *value = 2147483647; return cudaSuccess;
    case cudaDevAttrUnifiedAddressing: *value = 1; return cudaSuccess;
    default: return Answer(cudaErrorInvalidValue);
  }
}

MUSTER_DOUBLE_EXPORT cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (const cudaError_t error = Entry()) return Answer(error);
  if (device < 0 || device >= Devices()) return Answer(cudaErrorInvalidDevice);
  if (length < 13) return Answer(cudaErrorInvalidValue);
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02X:00.0",
                static_cast<unsigned>(PhysicalDevice(device) + 1) & 0xffU);
  return cudaSuccess;
}

MUSTER_DOUBLE_EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (const cudaError_t error = Entry()) return Answer(error);
  if (device < 0 || device >= Devices()) return Answer(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "Muster test double");
  properties->totalGlobalMem = Memory::Get().total();
  properties->major = 9;
  properties->multiProcessorCount = 8;
  properties->maxThreadsPerBlock = 1024;
  properties->warpSize = 32;
  properties->pciBusID = PhysicalDevice(device) + 1;
  return cudaSuccess;
}

MUSTER_DOUBLE_EXPORT cudaError_t cudaGetLastError() {
  const cudaError_t broken = Streams::Get().context_error();
  return broken != cudaSuccess ? broken : std::exchange(last_error, cudaSuccess);
}

MUSTER_DOUBLE_EXPORT cudaError_t cudaPeekAtLastError() {
  const cudaError_t broken = Streams::Get().context_error();
  return broken != cudaSuccess ? broken : last_error;
}

MUSTER_DOUBLE_EXPORT const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorNoKernelImageForDevice: return "cudaErrorNoKernelImageForDevice";
    case cudaErrorSymbolNotFound: return "cudaErrorSymbolNotFound";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    default: return "cudaErrorUnknown";
  }
}

MUSTER_DOUBLE_EXPORT const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution on the device";
    case cudaErrorSymbolNotFound: return "named symbol not found";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    default: return "unknown error";
  }
}

// ---- Memory -------------------------------------------------------------------------------------

MUSTER_DOUBLE_EXPORT cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  if (const cudaError_t error = Entry()) return Answer(error);
  *free = Memory::Get().free_bytes();
  *total = Memory::Get().total();
  return cudaSuccess;
}

MUSTER_DOUBLE_EXPORT cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  static std::atomic<int> calls = 0;
  if (const cudaError_t error = Entry()) return Answer(error);
  *address = nullptr;
  Moment moment;
  moment.n = ++calls;
  if (Struck("out-of-memory", moment) != nullptr) return Answer(cudaErrorMemoryAllocation);
  if (bytes == 0) return cudaSuccess;
  *address = Memory::Get().Allocate(bytes);
  return *address == nullptr ? Answer(cudaErrorMemoryAllocation) : cudaSuccess;
}

MUSTER_DOUBLE_EXPORT cudaError_t cudaFree(void* address) {
  if (const cudaError_t error = Entry()) return Answer(error);
  if (address == nullptr) return cudaSuccess;
  Streams::Get().WaitDevice();
  if (const cudaError_t error = Entry()) return Answer(error);
  Memory::Get().Free(address);
  return cudaSuccess;
}

MUSTER_DOUBLE_EXPORT cudaError_t cudaHostAlloc(void** address, std::size_t bytes, unsigned int) {
  static std::atomic<int> calls = 0;
  if (const cudaError_t error = Entry()) return Answer(error);
  *address = nullptr;
  Moment moment;
  moment.n = ++calls;
  if (Struck("out-of-pinned-memory", moment) != nullptr) return Answer(cudaErrorMemoryAllocation);
  if (bytes == 0) return cudaSuccess;
  *address = Memory::Get().AllocatePinned(bytes);
  return *address == nullptr ? Answer(cudaErrorMemoryAllocation) : cudaSuccess;
}

MUSTER_DOUBLE_EXPORT cudaError_t cudaFreeHost(void* address) {
  if (const cudaError_t error = Entry()) return Answer(error);
  if (address == nullptr) return cudaSuccess;
  Streams::Get().WaitDevice();
  if (const cudaError_t error = Entry()) return Answer(error);
  Memory::Get().FreePinned(address);
  return cudaSuccess;
}

MUSTER_DOUBLE_EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                                          const void* address) {
  if (const cudaError_t error = Entry()) return Answer(error);
  *attributes = {};
  auto* const mutable_address = const_cast<void*>(address);
  switch (Memory::Get().PlaceOf(address)) {
    case Place::kDevice:
      static_cast<void>(Memory::Get().Reach(address, 0));
      attributes->type = cudaMemoryTypeDevice;
      attributes->device = current_device;
      attributes->devicePointer = mutable_address;
      break;
    case Place::kPinned:
      attributes->type = cudaMemoryTypeHost;
      attributes->device = current_device;
      attributes->devicePointer = mutable_address;
      attributes->hostPointer = mutable_address;
      break;
    case Place::kPageable:
      attributes->type = cudaMemoryTypeUnregistered;
      attributes->device = cudaInvalidDeviceId;
      break;
  }
  return cudaSuccess;
}

MUSTER_DOUBLE_EXPORT cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes,
                                                 cudaMemcpyKind kind, cudaStream_t stream) {
  if (const cudaError_t error = Entry()) return Answer(error);
  if (bytes == 0) return cudaSuccess;
  Memory& memory = Memory::Get();
  const Place to_place = memory.PlaceOf(to);
  const Place from_place = memory.PlaceOf(from);
  CheckKind(to_place, from_place, kind);
  std::byte* const target = memory.Reach(to, bytes);
  const std::byte* const source = memory.Reach(from, bytes);
  if (from_place == Place::kPageable && to_place != Place::kPageable && bytes <= kStagedBytes) {
    Streams::Get().Put(stream, [target, staged = std::vector<std::byte>(source, source + bytes)] {
      std::memcpy(target, staged.data(), staged.size());
    });
    return cudaSuccess;
  }
  const auto copy = [target, source, bytes] { std::memmove(target, source, bytes); };
  if (from_place == Place::kPageable || to_place == Place::kPageable) {
    // Ordinary memory cannot be copied behind the program's back: the driver waits for the stream.
    Streams::Get().PutAndWait(stream, copy);
    return Answer(Entry());
  }
  Streams::Get().Put(stream, copy);
  return cudaSuccess;
}

MUSTER_DOUBLE_EXPORT cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes,
                                                 cudaStream_t stream) {
  if (const cudaError_t error = Entry()) return Answer(error);
  if (bytes == 0) return cudaSuccess;
  if (Memory::Get().PlaceOf(to) == Place::kPageable) {
    Die("cudaMemsetAsync of memory that is not the device's");
  }
  std::byte* const target = Memory::Get().Reach(to, bytes);
  Streams::Get().Put(stream, [target, value, bytes] { std::memset(target, value, bytes); });
  return cudaSuccess;
}

// ---- Streams and events -------------------------------------------------------------------------

MUSTER_DOUBLE_EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) {
  if (const cudaError_t error = Entry()) return Answer(error);
  *stream = Streams::Get().Create();
  return cudaSuccess;
}

MUSTER_DOUBLE_EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Streams::Get().Destroy(stream);
  return Answer(Entry());
}

MUSTER_DOUBLE_EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const bool idle = Streams::Get().Idle(stream);
  if (const cudaError_t error = Entry()) return Answer(error);
  return Answer(idle ? cudaSuccess : cudaErrorNotReady);
}

MUSTER_DOUBLE_EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                                     unsigned int) {
  if (const cudaError_t error = Entry()) return Answer(error);
  Streams::Get().WaitFor(stream, event);
  return cudaSuccess;
}

MUSTER_DOUBLE_EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  if (const cudaError_t error = Entry()) return Answer(error);
  *event = Streams::Get().CreateEvent();
  return cudaSuccess;
}

MUSTER_DOUBLE_EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Streams::Get().DestroyEvent(event);
  return Answer(Entry());
}

MUSTER_DOUBLE_EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const cudaError_t error = Entry()) return Answer(error);
  Streams::Get().Record(event, stream);
  return cudaSuccess;
}

MUSTER_DOUBLE_EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) {
  const bool passed = Streams::Get().Passed(event);
  if (const cudaError_t error = Entry()) return Answer(error);
  return Answer(passed ? cudaSuccess : cudaErrorNotReady);
}

// ---- For the double of NCCL ---------------------------------------------------------------------

MUSTER_DOUBLE_EXPORT void muster_double_enqueue(cudaStream_t stream, void (*run)(void*),
                                                void* argument) {
  Streams::Get().Put(
      stream, [run, argument] { run(argument); }, true);
}

MUSTER_DOUBLE_EXPORT void muster_double_hold(cudaStream_t stream, int change) {
  Streams::Get().Hold(stream, change);
}

MUSTER_DOUBLE_EXPORT void* muster_double_reach(const void* address, std::size_t bytes) {
  if (Memory::Get().PlaceOf(address) == Place::kPageable) {
    Die("a collective was given memory that no device can reach");
  }
  return Memory::Get().Reach(address, bytes);
}

MUSTER_DOUBLE_EXPORT void muster_double_wait_device() { Streams::Get().WaitDevice(); }

MUSTER_DOUBLE_EXPORT void muster_double_break_context(cudaError_t error) {
  Streams::Get().BreakContext(error);
}

MUSTER_DOUBLE_EXPORT cudaError_t muster_double_context_error() {
  return Streams::Get().context_error();
}
