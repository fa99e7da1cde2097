// What the doubles of the two libraries share. TEST CODE: never part of a Muster that people run.
//
// The C functions are exported by libmuster_double_cudart.so for libmuster_double_nccl.so, which is
// linked against it: a collective has to occupy a stream, reach device memory and break a context.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#define MUSTER_DOUBLE_EXPORT extern "C" __attribute__((visibility("default")))

namespace muster::gpu_double {

// Prints one line and aborts the process: the program under test did what the real library punishes
// with undefined behaviour.
[[noreturn]] void Die(const std::string& line);
// One line on standard error, under the double's name.
void Say(const std::string& line);
// The environment variable, or `otherwise` when it is not set.
[[nodiscard]] std::string Environment(const char* name, const std::string& otherwise);
// As a number; dies of anything else.
[[nodiscard]] long EnvironmentNumber(const char* name, long otherwise);

}  // namespace muster::gpu_double

// Puts run(argument) on the stream, in order with everything else there. Works on a held stream.
MUSTER_DOUBLE_EXPORT void muster_double_enqueue(cudaStream_t stream, void (*run)(void*),
                                                void* argument);
// Adds `change` (1 or -1) to how often the stream is held. A program that puts work of its own on a
// held stream dies: NCCL has not said yet that its own work is there.
MUSTER_DOUBLE_EXPORT void muster_double_hold(cudaStream_t stream, int change);
// Where the host finds `bytes` bytes of device or pinned memory. Dies when they do not lie in one
// living allocation.
MUSTER_DOUBLE_EXPORT void* muster_double_reach(const void* address, size_t bytes);
// Waits for all work that lies on all streams now, as cudaFree does.
MUSTER_DOUBLE_EXPORT void muster_double_wait_device();
// From now on every call of the CUDA runtime fails with `error`, and no work runs any more.
MUSTER_DOUBLE_EXPORT void muster_double_break_context(cudaError_t error);
// The error of a broken context, or cudaSuccess.
MUSTER_DOUBLE_EXPORT cudaError_t muster_double_context_error();
