// Where Muster was built without CUDA.
#include "worker/collective/gpu_backend.h"

namespace muster {
namespace {

Status Absent() {
  return Unimplemented(
      "this build of Muster has no GPU backend: nvcc, cuda_runtime_api.h or nccl.h was missing "
      "when "
      "it was configured");
}

}  // namespace

Result<std::shared_ptr<Device>> OpenDevice(int) { return Absent(); }
Status NcclUsable() { return Absent(); }
std::string NcclVersionText() { return ""; }
Result<std::string> MintNcclId() { return Absent(); }
Result<std::shared_ptr<DeviceCommunicator>> MakeNcclCommunicator(std::shared_ptr<Device>, NcclGroup,
                                                                 NcclOptions) {
  return Absent();
}

}  // namespace muster
