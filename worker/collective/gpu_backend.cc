#include "worker/collective/gpu_backend.h"

#include "worker/collective/cuda_api.h"
#include "worker/collective/cuda_device.h"

namespace muster {

Result<std::shared_ptr<Device>> OpenDevice(int ordinal) {
  const Result<const CudaApi*> api = CudaApi::Load();
  if (!api.ok()) return api.status();
  return CudaDevice::Open(**api, ordinal);
}

}  // namespace muster
