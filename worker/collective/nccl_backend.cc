// Apart from gpu_backend.cc, because nccl.h brings in overloads of the runtime's functions.
#include <fmt/format.h>

#include "worker/collective/gpu_backend.h"
#include "worker/collective/nccl_api.h"
#include "worker/collective/nccl_communicator.h"
#include "worker/collective/signals_blocked.h"

namespace muster {

Status NcclUsable() {
  const Result<const NcclApi*> api = NcclApi::Load();
  return api.ok() ? Status() : api.status();
}

std::string NcclVersionText() {
  const Result<const NcclApi*> nccl = NcclApi::Load();
  return nccl.ok() ? "NCCL " + NcclVersionName((*nccl)->version) : "";
}

Result<std::string> MintNcclId() {
  const Result<const NcclApi*> api = NcclApi::Load();
  if (!api.ok()) return api.status();
  ncclUniqueId id;
  const SignalsBlocked blocked;  // for the thread that listens
  if (const ncclResult_t result = (*api)->GetUniqueId(&id); result != ncclSuccess) {
    return Unavailable(fmt::format("NCCL: making the id of a communicator: {}: {}",
                                   (*api)->GetErrorString(result), (*api)->GetLastError(nullptr)));
  }
  return std::string(reinterpret_cast<const char*>(&id), sizeof(id));
}

Result<std::shared_ptr<DeviceCommunicator>> MakeNcclCommunicator(std::shared_ptr<Device> device,
                                                                 NcclGroup group,
                                                                 NcclOptions options) {
  auto made = NcclCommunicator::Make(std::move(device), std::move(group), std::move(options));
  if (!made.ok()) return made.status();
  return std::shared_ptr<DeviceCommunicator>(std::move(*made));
}

}  // namespace muster
