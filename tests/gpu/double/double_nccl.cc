// NCCL's C functions on the host. TEST CODE: built as libmuster_double_nccl.so.
// Handles of communicators are numbers that are never used again, so a use after the end is seen.
#include <nccl.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/double/double_bootstrap.h"
#include "tests/gpu/double/double_collectives.h"
#include "tests/gpu/double/double_comm.h"
#include "tests/gpu/double/double_faults.h"
#include "tests/gpu/double/double_hooks.h"

namespace muster::gpu_double {
namespace {

// The communicators of this process; never destroyed.
struct Registry {
  std::mutex mutex;
  int made = 0;
  std::map<std::uint64_t, std::shared_ptr<Comm>> comms;
  std::set<std::uint64_t> used_ids;
  std::string last_error;

  static Registry& Get() {
    static Registry& registry = *new Registry;
    return registry;
  }
};

std::shared_ptr<Comm> Find(ncclComm_t handle) {
  Registry& registry = Registry::Get();
  const std::lock_guard lock(registry.mutex);
  const auto found = registry.comms.find(reinterpret_cast<std::uint64_t>(handle));
  if (found == registry.comms.end()) {
    Die("use of a communicator that was aborted, destroyed or never made");
  }
  return found->second;
}

void Forget(ncclComm_t handle) {
  Registry& registry = Registry::Get();
  const std::lock_guard lock(registry.mutex);
  registry.comms.erase(reinterpret_cast<std::uint64_t>(handle));
}

// A call on a communicator, while it lasts.
class Use {
 public:
  explicit Use(ncclComm_t handle) : comm_(Find(handle)) { comm_->Enter(); }
  ~Use() { comm_->Leave(); }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  Comm* operator->() const { return comm_.get(); }

 private:
  const std::shared_ptr<Comm> comm_;
};

// What a thread has asked for between ncclGroupStart and ncclGroupEnd.
struct Group {
  int depth = 0;
  std::vector<std::pair<ncclComm_t, Operation>> operations;
};
thread_local Group group;

void RefuseInGroup(const char* function) {
  if (group.depth > 0) Die(std::string(function) + " within a group: the double does not know it");
}

// One operation per communicator out of all sends and receives of a group, at the place of the
// first.
std::vector<Operation> Fuse(std::vector<Operation> operations) {
  std::vector<Operation> fused;
  for (Operation& operation : operations) {
    const auto pairs = std::ranges::find(fused, Kind::kPairs, &Operation::kind);
    if (operation.kind == Kind::kPairs && pairs != fused.end()) {
      pairs->pairs.push_back(operation.pairs.front());
    } else {
      fused.push_back(std::move(operation));
    }
  }
  return fused;
}

ncclResult_t LaunchGroup() {
  std::vector<std::pair<ncclComm_t, Operation>> asked;
  asked.swap(group.operations);
  std::vector<ncclComm_t> comms;
  for (const auto& [comm, operation] : asked) {
    if (std::ranges::find(comms, comm) == comms.end()) comms.push_back(comm);
  }
  ncclResult_t result = ncclSuccess;
  for (ncclComm_t comm : comms) {
    std::vector<Operation> own;
    for (const auto& [owner, operation] : asked) {
      if (owner == comm) own.push_back(operation);
    }
    const Use use(comm);
    const ncclResult_t launched = use->Launch(Fuse(std::move(own)));
    if (launched != ncclSuccess && (result == ncclSuccess || result == ncclInProgress)) {
      result = launched;
    }
  }
  return result;
}

ncclResult_t Ask(ncclComm_t comm, Operation operation) {
  group.operations.emplace_back(comm, std::move(operation));
  return group.depth > 0 ? ncclSuccess : LaunchGroup();
}

const std::byte* ReachBytes(const void* address, std::size_t bytes) {
  return static_cast<const std::byte*>(muster_double_reach(address, bytes));
}

// The collectives have everything but the sizes of their buffers in common.
ncclResult_t Collective(Kind kind, const void* send, std::size_t send_blocks, void* receive,
                        std::size_t receive_blocks, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  const Use use(comm);
  const ncclResult_t ready = use->Ready();
  if (ready != ncclSuccess) return ready;
  if (!CanReduce(type, op) || root < 0 || root >= use->world_size()) {
    Explain("a type, a reduction or a root that the double does not know");
    return ncclInvalidArgument;
  }
  if (count == 0) return ncclSuccess;
  const std::size_t bytes = count * SizeOf(type);
  Operation operation;
  operation.kind = kind;
  if (send_blocks > 0) operation.send = ReachBytes(send, bytes * send_blocks);
  operation.receive = const_cast<std::byte*>(ReachBytes(receive, bytes * receive_blocks));
  operation.count = count;
  operation.type = type;
  operation.op = op;
  operation.root = root;
  operation.stream = stream;
  return Ask(comm, std::move(operation));
}

ncclResult_t OfPair(bool sends, const void* data, std::size_t count, ncclDataType_t type, int peer,
                    ncclComm_t comm, cudaStream_t stream) {
  const Use use(comm);
  const ncclResult_t ready = use->Ready();
  if (ready != ncclSuccess) return ready;
  if (SizeOf(type) == 0 || peer < 0 || peer >= use->world_size()) return ncclInvalidArgument;
  if (count == 0) return ncclSuccess;
  const std::size_t bytes = count * SizeOf(type);
  Operation operation;
  operation.kind = Kind::kPairs;
  operation.stream = stream;
  operation.pairs.push_back({sends, peer, const_cast<std::byte*>(ReachBytes(data, bytes)), bytes});
  return Ask(comm, std::move(operation));
}

ncclResult_t MakeComm(ncclComm_t* handle, int world_size, const ncclUniqueId& id, int rank,
                      const ncclConfig_t* config) {
  RefuseInGroup("ncclCommInitRankConfig");
  *handle = nullptr;
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    Explain("Invalid rank requested : " + std::to_string(rank) + "/" + std::to_string(world_size));
    return ncclInvalidArgument;
  }
  if (config != nullptr && config->magic != 0xcafebeef) {
    Explain("ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
    return ncclInvalidArgument;
  }
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return ncclUnhandledCudaError;
  const bool blocking = config == nullptr || config->blocking != 0;
  const bool named = config != nullptr && config->commName != nullptr;
  std::shared_ptr<Comm> comm;
  {
    Registry& registry = Registry::Get();
    const std::lock_guard lock(registry.mutex);
    if (!registry.used_ids.insert(MagicOf(id)).second) {
      registry.last_error = "an id is for one communicator only, and this one was used before";
      return ncclInvalidUsage;
    }
    const int number = ++registry.made;
    comm =
        std::make_shared<Comm>(number, world_size, rank, blocking, named ? config->commName : "");
    registry.comms.emplace(number, comm);
    *handle = reinterpret_cast<ncclComm_t>(static_cast<std::uint64_t>(number));
  }
  return comm->Init(id);
}

}  // namespace

void Explain(const std::string& text) {
  Registry& registry = Registry::Get();
  const std::lock_guard lock(registry.mutex);
  registry.last_error = text;
}

void HangForEver() {
  std::mutex mutex;
  std::condition_variable never;
  std::unique_lock lock(mutex);
  while (true) never.wait(lock);
}

ncclResult_t ErrorOf(const Fault& fault, ncclResult_t otherwise) {
  const std::pair<const char*, ncclResult_t> words[] = {{"", otherwise},
                                                        {"cuda", ncclUnhandledCudaError},
                                                        {"system", ncclSystemError},
                                                        {"internal", ncclInternalError},
                                                        {"argument", ncclInvalidArgument},
                                                        {"usage", ncclInvalidUsage},
                                                        {"remote", ncclRemoteError}};
  for (const auto& [word, error] : words) {
    if (fault.error == word) return error;
  }
  Die("MUSTER_DOUBLE_FAULTS: there is no error '" + fault.error + "'");
}

}  // namespace muster::gpu_double

using namespace muster::gpu_double;

MUSTER_DOUBLE_EXPORT ncclResult_t ncclGetVersion(int* version) {
  *version = static_cast<int>(EnvironmentNumber("MUSTER_DOUBLE_NCCL_VERSION", 22809));
  return ncclSuccess;
}

MUSTER_DOUBLE_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (const Fault* const fault = Struck("id-error", {})) return ErrorOf(*fault, ncclSystemError);
  *id = MakeId();
  return ncclSuccess;
}

MUSTER_DOUBLE_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int world_size,
                                                         ncclUniqueId id, int rank,
                                                         ncclConfig_t* config) {
  return MakeComm(comm, world_size, id, rank, config);
}

MUSTER_DOUBLE_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t* comm, int world_size,
                                                   ncclUniqueId id, int rank) {
  return MakeComm(comm, world_size, id, rank, nullptr);
}

MUSTER_DOUBLE_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const Use use(comm);
  return use->GetAsyncError(error);
}

MUSTER_DOUBLE_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) {
  RefuseInGroup("ncclCommAbort");
  if (comm == nullptr) return ncclSuccess;
  const ncclResult_t result = Find(comm)->Abort();
  Forget(comm);
  return result;
}

MUSTER_DOUBLE_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  RefuseInGroup("ncclCommFinalize");
  const Use use(comm);
  const ncclResult_t ready = use->Ready();
  return ready != ncclSuccess ? ready : use->Finalize();
}

MUSTER_DOUBLE_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  RefuseInGroup("ncclCommDestroy");
  if (comm == nullptr) return ncclSuccess;
  const Use use(comm);
  const ncclResult_t ready = use->Ready(true);
  if (ready != ncclSuccess) return ready;
  const ncclResult_t result = use->Destroy();
  Forget(comm);
  return result;
}

MUSTER_DOUBLE_EXPORT ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  const Use use(comm);
  const ncclResult_t ready = use->Ready();
  *count = use->world_size();
  return ready;
}

MUSTER_DOUBLE_EXPORT ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  const Use use(comm);
  const ncclResult_t ready = use->Ready();
  *rank = use->rank();
  return ready;
}

MUSTER_DOUBLE_EXPORT const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "unknown result code";
  }
}

MUSTER_DOUBLE_EXPORT const char* ncclGetLastError(ncclComm_t) {
  thread_local std::string text;
  Registry& registry = Registry::Get();
  const std::lock_guard lock(registry.mutex);
  text = registry.last_error;
  return text.c_str();
}

MUSTER_DOUBLE_EXPORT ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count,
                                                ncclDataType_t type, ncclRedOp_t op,
                                                ncclComm_t comm, cudaStream_t stream) {
  return Collective(Kind::kAllReduce, send, 1, receive, 1, count, type, op, 0, comm, stream);
}

MUSTER_DOUBLE_EXPORT ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count,
                                                ncclDataType_t type, int root, ncclComm_t comm,
                                                cudaStream_t stream) {
  // Only the root's send buffer counts.
  const std::size_t send_blocks = Find(comm)->rank() == root ? 1 : 0;
  return Collective(Kind::kBroadcast, send, send_blocks, receive, 1, count, type, ncclSum, root,
                    comm, stream);
}

MUSTER_DOUBLE_EXPORT ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t count,
                                                ncclDataType_t type, ncclComm_t comm,
                                                cudaStream_t stream) {
  const auto ranks = static_cast<std::size_t>(Find(comm)->world_size());
  return Collective(Kind::kAllGather, send, 1, receive, ranks, count, type, ncclSum, 0, comm,
                    stream);
}

MUSTER_DOUBLE_EXPORT ncclResult_t ncclReduceScatter(const void* send, void* receive,
                                                    std::size_t count, ncclDataType_t type,
                                                    ncclRedOp_t op, ncclComm_t comm,
                                                    cudaStream_t stream) {
  const auto ranks = static_cast<std::size_t>(Find(comm)->world_size());
  return Collective(Kind::kReduceScatter, send, ranks, receive, 1, count, type, op, 0, comm,
                    stream);
}

MUSTER_DOUBLE_EXPORT ncclResult_t ncclSend(const void* data, std::size_t count, ncclDataType_t type,
                                           int peer, ncclComm_t comm, cudaStream_t stream) {
  return OfPair(true, data, count, type, peer, comm, stream);
}

MUSTER_DOUBLE_EXPORT ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t type,
                                           int peer, ncclComm_t comm, cudaStream_t stream) {
  return OfPair(false, data, count, type, peer, comm, stream);
}

MUSTER_DOUBLE_EXPORT ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

MUSTER_DOUBLE_EXPORT ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) {
    Explain("ncclGroupEnd: not in a group call");
    return ncclInvalidUsage;
  }
  return --group.depth > 0 ? ncclSuccess : LaunchGroup();
}
