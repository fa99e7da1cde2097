// How every function of the CUDA double begins and ends. TEST CODE.
#pragma once

#include <cuda_runtime_api.h>

namespace muster::gpu_double {

// Keeps an error as the thread's last one and hands it back.
cudaError_t Answer(cudaError_t error);
// What a call fails with before it begins: a broken context's error, or that there is no device.
[[nodiscard]] cudaError_t Entry();

}  // namespace muster::gpu_double
