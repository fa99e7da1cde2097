#include "worker/collective/nccl_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "protocol/check.h"
#include "worker/collective/fence_poll.h"
#include "worker/collective/nccl_api.h"
#include "worker/collective/reduce.h"

namespace muster {
namespace {

// Host memory goes through staging of at most this size; also the most that one round of an
// exchange moves.
constexpr std::size_t kStagingBytes = std::size_t{32} << 20U;
constexpr std::size_t kMinPieceBytes = std::size_t{256} << 10U;
// What is gathered to make connections: as much as a tile of a gradient.
constexpr std::size_t kWarmUpBytes = std::size_t{4} << 20U;
constexpr auto kSettlePause = std::chrono::microseconds(100);
constexpr int kEagerSettles = 200;

Result<ncclDataType_t> TypeOf(ElementType type) {
  switch (type) {
    case ElementType::kFloat32: return ncclFloat32;
    case ElementType::kFloat64: return ncclFloat64;
    case ElementType::kInt64: return ncclInt64;
    case ElementType::kUInt64: return ncclUint64;
    case ElementType::kBytes: break;
  }
  return Unimplemented("NCCL does not reduce bytes");
}

Result<ncclRedOp_t> OpOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return ncclSum;
    case ReduceOp::kMax: return ncclMax;
    case ReduceOp::kMin: return ncclMin;
    case ReduceOp::kBitOr: break;
  }
  return Unimplemented("NCCL has no bitwise or");
}

std::string NameOf(const NcclGroup& group) {
  return fmt::format("generation {}, rank {} of {}", group.generation.value(), group.rank.value(),
                     group.world_size);
}

}  // namespace

Result<std::shared_ptr<NcclCommunicator>> NcclCommunicator::Make(std::shared_ptr<Device> device,
                                                                 NcclGroup group,
                                                                 NcclOptions options) {
  MUSTER_CHECK(
      group.world_size >= 1 && group.rank.value() >= 0 && group.rank.value() < group.world_size,
      "a rank of the group");
  const Result<const NcclApi*> api = NcclApi::Load();
  if (!api.ok()) return api.status();
  if (group.world_size > 1 && group.id.size() != kNcclIdBytes) {
    return InvalidArgument(fmt::format("the id of an NCCL communicator has {} bytes, not {}",
                                       kNcclIdBytes, group.id.size()));
  }
  Result<std::unique_ptr<DeviceStream>> stream = device->MakeStream();
  if (!stream.ok()) return stream.status();
  return std::shared_ptr<NcclCommunicator>(new NcclCommunicator(
      *api, std::move(device), std::move(group), std::move(options), std::move(*stream)));
}

NcclCommunicator::NcclCommunicator(const NcclApi* api, std::shared_ptr<Device> device,
                                   NcclGroup group, NcclOptions options,
                                   std::shared_ptr<DeviceStream> stream)
    : api_(api),
      device_(std::move(device)),
      group_(std::move(group)),
      options_(std::move(options)),
      nccl_name_(fmt::format("muster-g{}", group_.generation.value())),
      stream_(std::move(stream)),
      handle_(*api_, device_, stream_, options_, NameOf(group_)) {}

NcclCommunicator::~NcclCommunicator() {
  // Freeing memory of a device waits for its kernels, and a hung one ends by the abort alone.
  handle_.Abort();
  static_cast<void>(handle_.AwaitAborted(options_.abort_hard_deadline));
  if (!handle_.stuck()) return;
  static_cast<void>(new DeviceMemory(std::move(staging_host_)));
  static_cast<void>(new DeviceMemory(std::move(staging_device_)));
}

Status NcclCommunicator::Run(const std::function<Status()>& body, bool counts) {
  {
    const std::scoped_lock lock(mutex_);
    if (inside_) return FailedPrecondition("two threads use one communicator");
    if (handle_.interrupted()) return Interrupted(NameOf(group_) + ": aborted");
    inside_ = true;
  }
  Status status = failed_;
  if (status.ok()) {
    if (counts) ++operations_;
    status = body();
    if (!status.ok()) failed_ = status;
    // An error of the device that the abort brought about is none.
    if (handle_.interrupted() && !status.ok()) {
      status = Interrupted(NameOf(group_) + ": aborted");
    }
  }
  {
    const std::scoped_lock lock(mutex_);
    inside_ = false;
  }
  left_.notify_all();
  return status;
}

Duration NcclCommunicator::limit() const {
  return connected_ ? options_.progress_deadline : options_.init_deadline;
}

Status NcclCommunicator::Settle() {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::nanoseconds(limit().nanos());
  for (int polls = 0;; ++polls) {
    const Result<bool> ready = handle_.Ready();
    if (!ready.ok()) return ready.status();
    if (*ready) return {};
    if (polls < kEagerSettles) continue;
    if (Clock::now() >= end) {
      return DeadlineExceeded(
          fmt::format("NCCL: {} after {:.1f} s ({})",
                      connected_ ? "an operation could not be begun" : "not all ranks have come",
                      limit().ToSeconds(), NameOf(group_)));
    }
    std::this_thread::sleep_for(kSettlePause);
  }
}

Status NcclCommunicator::Issue(const char* what,
                               const std::function<ncclResult_t(ncclComm_t)>& call) {
  MUSTER_RETURN_IF_ERROR(stream_->status());
  MUSTER_RETURN_IF_ERROR(
      handle_.Call(what, [&](ncclComm_t& communicator) { return call(communicator); }));
  return Settle();
}

Status NcclCommunicator::AwaitStream() {
  MUSTER_RETURN_IF_ERROR(stream_->status());
  const std::shared_ptr<Fence> fence = stream_->Record();
  const Status status = PollUntilPassed(*fence, limit(), &handle_.interrupted(), [this] {
    if (group_.world_size == 1) return Status();
    const Result<bool> ready = handle_.Ready();
    return ready.ok() ? Status() : ready.status();
  });
  if (status.code() == Code::kDeadlineExceeded) {
    return DeadlineExceeded(
        fmt::format("NCCL: an operation does not end: {} ({})", status.message(), NameOf(group_)));
  }
  return status;
}

Status NcclCommunicator::Connect() {
  return Run([this]() -> Status {
    MUSTER_CHECK(!connected_, "Connect() is called once");
    if (group_.world_size > 1) {
      MUSTER_RETURN_IF_ERROR(device_->MakeCurrent());
      ncclUniqueId id;
      static_assert(sizeof(id) == kNcclIdBytes);
      std::memcpy(&id, group_.id.data(), sizeof(id));
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      config.commName = nccl_name_.c_str();
      MUSTER_RETURN_IF_ERROR(handle_.Call("making the communicator", [&](ncclComm_t& communicator) {
        return api_->CommInitRankConfig(&communicator, group_.world_size, id, group_.rank.value(),
                                        &config);
      }));
      MUSTER_RETURN_IF_ERROR(Settle());
      MUSTER_RETURN_IF_ERROR(WarmUp());
    }
    connected_ = true;
    return {};
  });
}

// NCCL makes connections when the first operation takes them: here, where one that cannot be made
// is an attempt that failed, and not in the middle of a step. Parts are gathered round the ring, in
// the size of a step's, messages go straight, and small sums by the tree.
Status NcclCommunicator::WarmUp() {
  const auto world = static_cast<std::size_t>(group_.world_size);
  const auto self = static_cast<std::size_t>(group_.rank.value());
  const std::size_t part = kWarmUpBytes / world;
  MUSTER_RETURN_IF_ERROR(ReserveStaging(part * world));
  std::byte* const data = staging_device_.data();
  const auto mark = [](std::size_t rank) { return static_cast<std::uint8_t>(rank % 255 + 1); };
  stream_->Fill(data, 0, part * world);
  stream_->Fill(data + self * part, mark(self), part);
  const std::vector<std::int64_t> counts(world, static_cast<std::int64_t>(part));
  MUSTER_RETURN_IF_ERROR(GatherParts(data, counts));
  std::vector<std::span<const std::byte>> outgoing(world, {data + self * part, 1});
  std::vector<std::span<std::byte>> incoming;
  for (std::size_t peer = 0; peer < world; ++peer) incoming.push_back({data + peer * part, 1});
  outgoing[self] = {};
  incoming[self] = {};
  MUSTER_RETURN_IF_ERROR(ExchangeRound(outgoing, incoming, 0));
  stream_->Copy(staging_host_.data(), data, part * world);
  MUSTER_RETURN_IF_ERROR(
      AllReducePiece(data, sizeof(std::int64_t), ElementType::kInt64, ReduceOp::kMax));
  MUSTER_RETURN_IF_ERROR(AwaitStream());
  for (std::size_t peer = 0; peer < world; ++peer) {
    const std::span<const std::byte> came = staging_host_.host().subspan(peer * part, part);
    const auto expected = static_cast<std::byte>(mark(peer));
    if (std::ranges::all_of(came, [&](std::byte byte) { return byte == expected; })) continue;
    return Internal(fmt::format("NCCL: the new communicator garbles what comes from rank {} ({})",
                                peer, NameOf(group_)));
  }
  return {};
}

std::size_t NcclCommunicator::piece_bytes() const {
  return std::max(kMinPieceBytes, kStagingBytes / static_cast<std::size_t>(group_.world_size));
}

Status NcclCommunicator::ReserveStaging(std::size_t bytes) {
  if (staging_host_.size() >= bytes) return {};
  // What is there may be a part of the work on the stream.
  MUSTER_RETURN_IF_ERROR(AwaitStream());
  Result<DeviceMemory> host = device_->AllocatePinned(bytes);
  if (!host.ok()) return host.status();
  Result<DeviceMemory> device = device_->Allocate(bytes);
  if (!device.ok()) return device.status();
  staging_host_ = std::move(*host);
  staging_device_ = std::move(*device);
  return {};
}

Status NcclCommunicator::ThroughStaging(
    std::span<std::byte> buffer, std::size_t element, bool in, bool out,
    const std::function<Status(std::byte*, std::size_t)>& piece) {
  const std::size_t most = kStagingBytes / element * element;
  MUSTER_RETURN_IF_ERROR(ReserveStaging(std::min(most, buffer.size())));
  for (std::size_t at = 0; at < buffer.size(); at += most) {
    const std::span<std::byte> part = buffer.subspan(at, std::min(most, buffer.size() - at));
    if (in) {
      std::memcpy(staging_host_.data(), part.data(), part.size());
      stream_->Copy(staging_device_.data(), staging_host_.data(), part.size());
    }
    MUSTER_RETURN_IF_ERROR(piece(staging_device_.data(), part.size()));
    if (out) stream_->Copy(staging_host_.data(), staging_device_.data(), part.size());
    MUSTER_RETURN_IF_ERROR(AwaitStream());
    if (out) std::memcpy(part.data(), staging_host_.data(), part.size());
  }
  return {};
}

Status NcclCommunicator::AllReducePiece(std::byte* data, std::size_t bytes, ElementType type,
                                        ReduceOp op) {
  const Result<ncclDataType_t> nccl_type = TypeOf(type);
  if (!nccl_type.ok()) return nccl_type.status();
  const Result<ncclRedOp_t> nccl_op = OpOf(op);
  if (!nccl_op.ok()) return nccl_op.status();
  return Issue("all-reduce", [&](ncclComm_t communicator) {
    return api_->AllReduce(data, data, bytes / SizeOfElement(type), *nccl_type, *nccl_op,
                           communicator, native());
  });
}

Status NcclCommunicator::AllReduce(std::span<std::byte> buffer, ElementType type, ReduceOp op) {
  MUSTER_RETURN_IF_ERROR(CheckReduction(buffer.size(), type, op));
  return Run([&]() -> Status {
    if (group_.world_size == 1 || buffer.empty()) return {};
    if (OnDevice(buffer.data())) {
      // In the pieces of staging, for another rank may need them.
      const std::size_t most = kStagingBytes / SizeOfElement(type) * SizeOfElement(type);
      for (std::size_t at = 0; at < buffer.size(); at += most) {
        MUSTER_RETURN_IF_ERROR(
            AllReducePiece(buffer.data() + at, std::min(most, buffer.size() - at), type, op));
      }
      return AwaitStream();
    }
    return ThroughStaging(
        buffer, SizeOfElement(type), true, true,
        [&](std::byte* data, std::size_t bytes) { return AllReducePiece(data, bytes, type, op); });
  });
}

Status NcclCommunicator::BroadcastPiece(std::byte* data, std::size_t bytes, Rank root) {
  return Issue("broadcast", [&](ncclComm_t communicator) {
    return api_->Broadcast(data, data, bytes, ncclUint8, root.value(), communicator, native());
  });
}

Status NcclCommunicator::Broadcast(std::span<std::byte> buffer, Rank root) {
  if (root.value() < 0 || root.value() >= group_.world_size) {
    return InvalidArgument(fmt::format("rank {} of {}", root.value(), group_.world_size));
  }
  return Run([&]() -> Status {
    if (group_.world_size == 1 || buffer.empty()) return {};
    if (OnDevice(buffer.data())) {
      // In the pieces of staging, for the other side may need them.
      for (std::size_t at = 0; at < buffer.size(); at += kStagingBytes) {
        MUSTER_RETURN_IF_ERROR(
            BroadcastPiece(buffer.data() + at, std::min(kStagingBytes, buffer.size() - at), root));
      }
      return AwaitStream();
    }
    const bool mine = root == group_.rank;
    return ThroughStaging(buffer, 1, mine, !mine, [&](std::byte* data, std::size_t bytes) {
      return BroadcastPiece(data, bytes, root);
    });
  });
}

Status NcclCommunicator::Barrier() {
  std::int64_t one = 1;
  return AllReduce(std::as_writable_bytes(std::span(&one, 1)), ElementType::kInt64, ReduceOp::kSum);
}

void NcclCommunicator::Abort() { handle_.Abort(); }

// A thread that sits in the driver comes out of no call, though the communicator is gone.
bool NcclCommunicator::stuck() const {
  if (handle_.stuck()) return true;
  const std::scoped_lock lock(mutex_);
  return inside_ && handle_.overdue();
}

Status NcclCommunicator::AwaitAborted(Duration limit) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(limit.nanos());
  MUSTER_RETURN_IF_ERROR(handle_.AwaitAborted(limit));
  std::unique_lock lock(mutex_);
  if (left_.wait_until(lock, end, [this] { return !inside_; })) return {};
  if (!handle_.overdue()) return DeadlineExceeded("a call is still inside the communicator");
  return Internal(fmt::format("a call of the device's driver has not returned within {:.1f} s ({})",
                              options_.abort_hard_deadline.ToSeconds(), NameOf(group_)));
}

}  // namespace muster
