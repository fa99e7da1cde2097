// Libraries of kernels and launches of the CUDA double. TEST CODE.
//
// The code in a library is not read: a kernel is its twin of the same name. Handles are never used
// again, so that a use after unloading is seen.
#include <cuda_runtime_api.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/gpu/double/double_answer.h"
#include "tests/gpu/double/double_faults.h"
#include "tests/gpu/double/double_hooks.h"
#include "tests/gpu/double/double_memory.h"
#include "tests/gpu/double/double_streams.h"
#include "tests/gpu/double/kernel_twins.h"

namespace muster::gpu_double {
namespace {

struct LoadedKernel {
  std::uint64_t library;
  const Twin* twin;
};

// Guarded by its mutex; never destroyed.
struct Libraries {
  std::mutex mutex;
  std::uint64_t handles = 0;
  std::map<std::uint64_t, const void*> loaded;
  std::map<std::uint64_t, LoadedKernel> kernels;

  static Libraries& Get() {
    static Libraries& libraries = *new Libraries;
    return libraries;
  }
};

const Twin* TwinOf(const void* kernel) {
  Libraries& libraries = Libraries::Get();
  const std::lock_guard lock(libraries.mutex);
  const auto found = libraries.kernels.find(reinterpret_cast<std::uint64_t>(kernel));
  if (found == libraries.kernels.end()) Die("launch of a kernel that is not loaded");
  return found->second.twin;
}

}  // namespace
}  // namespace muster::gpu_double

using namespace muster::gpu_double;

MUSTER_DOUBLE_EXPORT cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code,
                                                     cudaJitOption*, void**, unsigned int,
                                                     cudaLibraryOption*, void**, unsigned int) {
  if (const cudaError_t error = Entry()) return Answer(error);
  if (code == nullptr) return Answer(cudaErrorInvalidValue);
  if (Struck("no-kernel-image", {}) != nullptr) return Answer(cudaErrorNoKernelImageForDevice);
  Libraries& libraries = Libraries::Get();
  const std::lock_guard lock(libraries.mutex);
  const std::uint64_t handle = ++libraries.handles;
  libraries.loaded.emplace(handle, code);
  *library = reinterpret_cast<cudaLibrary_t>(handle);
  return cudaSuccess;
}

MUSTER_DOUBLE_EXPORT cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
  if (const cudaError_t error = Entry()) return Answer(error);
  Libraries& libraries = Libraries::Get();
  const std::lock_guard lock(libraries.mutex);
  const auto handle = reinterpret_cast<std::uint64_t>(library);
  if (libraries.loaded.erase(handle) == 0) Die("unloading of a library that is not loaded");
  std::erase_if(libraries.kernels,
                [&](const auto& kernel) { return kernel.second.library == handle; });
  return cudaSuccess;
}

MUSTER_DOUBLE_EXPORT cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library,
                                                      const char* name) {
  if (const cudaError_t error = Entry()) return Answer(error);
  Libraries& libraries = Libraries::Get();
  const std::lock_guard lock(libraries.mutex);
  const auto owner = reinterpret_cast<std::uint64_t>(library);
  if (!libraries.loaded.contains(owner)) Die("a kernel of a library that is not loaded");
  const Twin* const twin = FindTwin(name);
  if (twin == nullptr) {
    Say("no twin of the kernel " + std::string(name) + "; kernel_twins.cc lists the tables");
    return Answer(cudaErrorSymbolNotFound);
  }
  const std::uint64_t handle = ++libraries.handles;
  libraries.kernels.emplace(handle, LoadedKernel{owner, twin});
  *kernel = reinterpret_cast<cudaKernel_t>(handle);
  return cudaSuccess;
}

MUSTER_DOUBLE_EXPORT cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block,
                                                  void** arguments, std::size_t,
                                                  cudaStream_t stream) {
  static std::atomic<int> calls = 0;
  if (const cudaError_t error = Entry()) return Answer(error);
  const Twin* const twin = TwinOf(kernel);
  if (grid.y != 1 || grid.z != 1 || block.y != 1 || block.z != 1) {
    Die(std::string(twin->name) + " was launched on a grid of more than one dimension");
  }
  if (grid.x == 0 || block.x == 0 || block.x > 1024) return Answer(cudaErrorInvalidConfiguration);
  Moment moment;
  moment.n = ++calls;
  moment.name = twin->name;
  Streams& streams = Streams::Get();
  if (Struck("kernel-hang", moment) != nullptr) {
    streams.Put(stream, [&streams] { streams.Hang(); });
    return cudaSuccess;
  }
  if (Struck("kernel-fault", moment) != nullptr) {
    streams.Put(stream, [&streams] { streams.BreakContext(cudaErrorIllegalAddress); });
    return cudaSuccess;
  }
  std::vector<std::uint64_t> values;
  for (std::size_t i = 0; i < twin->parameters; ++i) {
    values.push_back(Memory::Get().Translate(*static_cast<const std::uint64_t*>(arguments[i])));
  }
  streams.Put(stream, [twin, values = std::move(values)] { twin->run(values.data()); });
  return cudaSuccess;
}
