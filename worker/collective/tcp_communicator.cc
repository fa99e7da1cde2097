#include "worker/collective/tcp_communicator.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "worker/collective/reduce.h"

namespace muster {
namespace {

// Up to here an all-reduce sends everything to everybody: one exchange instead of two. Shared by
// more ranks, because the bytes on the wire grow with their number.
std::size_t DirectMax(std::int32_t world_size) {
  return kEagerBytes * 4 / static_cast<std::size_t>(std::max(world_size, 4));
}

// Long all-reduces go through in segments of this size, so that scratch stays small and in cache.
constexpr std::size_t kSegmentBytes = 4 * 1024 * 1024;

// `part` of `parts` of a buffer of `size` bytes, cut at whole elements.
struct Slice {
  std::size_t offset = 0;
  std::size_t size = 0;
};
Slice SliceOf(std::size_t size, std::size_t element, std::size_t part, std::size_t parts) {
  const std::size_t count = size / element;
  const auto start = [&](std::size_t p) {
    return (count / parts * p + std::min(p, count % parts)) * element;
  };
  return {start(part), start(part + 1) - start(part)};
}

}  // namespace

TcpCommunicator::TcpCommunicator(TcpListener& listener, TcpGroup group, TcpOptions options)
    : rank_(group.rank),
      size_(static_cast<std::int32_t>(group.endpoints.size())),
      backend_("tcp"),
      options_(options),
      listener_(&listener),
      group_(std::move(group)) {}

TcpCommunicator::TcpCommunicator(Rank rank, std::vector<UniqueFd> sockets, std::string_view backend,
                                 Duration progress_deadline)
    : rank_(rank),
      size_(static_cast<std::int32_t>(sockets.size())),
      backend_(backend),
      options_{.progress_deadline = progress_deadline},
      links_(std::make_unique<StreamLinks>(rank, std::move(sockets), abort_, progress_deadline)),
      connected_(true),
      failed_(abort_.status()) {}

TcpCommunicator::~TcpCommunicator() = default;

// ---- One call at a time ---------------------------------------------------------------------

Status TcpCommunicator::Enter() {
  const std::lock_guard lock(mutex_);
  // Under the lock: once AwaitAborted() has found nobody inside, nobody gets in.
  if (abort_.raised()) return Interrupted("the communicator was aborted");
  if (inside_) {
    return FailedPrecondition(
        "another thread is inside this communicator; a communicator belongs to one thread");
  }
  inside_ = true;
  return {};
}

void TcpCommunicator::Leave() {
  const std::lock_guard lock(mutex_);
  inside_ = false;
  left_.notify_all();
}

template <class Body>
Status TcpCommunicator::Run(Body body) {
  MUSTER_RETURN_IF_ERROR(Enter());
  Status status = failed_;
  if (status.ok() && !connected_) status = FailedPrecondition("Connect() has to succeed first");
  if (status.ok()) {
    const std::uint64_t number = operations_.fetch_add(1) + 1;
    status = body();
    if (!status.ok() && status.code() != Code::kInterrupted) {
      failed_ =
          Status(status.code(), "operation " + std::to_string(number) + ": " + status.message());
      status = failed_;
      const std::optional<Rank> culprit = links_ ? links_->culprit() : std::nullopt;
      if (culprit) failed_peer_.store(culprit->value());
      if (links_) links_->TellFault(status.code(), culprit);
    }
    // What an aborted operation failed of is not news: its peers were aborted too.
    if (!status.ok() && abort_.raised()) status = Interrupted("the communicator was aborted");
  }
  Leave();
  return status;
}

void TcpCommunicator::Abort() { abort_.Raise(); }

Status TcpCommunicator::AwaitAborted(Duration limit) {
  const auto patience =
      std::min(std::chrono::nanoseconds(limit.nanos()),
               std::chrono::nanoseconds(std::chrono::hours(24 * 365)));  // now + Max() overflows
  std::unique_lock lock(mutex_);
  if (left_.wait_for(lock, patience, [this] { return !inside_; })) return {};
  return DeadlineExceeded("a call is still inside the aborted communicator after " +
                          std::to_string(limit.millis()) + " ms");
}

std::optional<Rank> TcpCommunicator::failed_peer() const {
  const std::int32_t rank = failed_peer_.load();
  if (rank < 0) return std::nullopt;
  return Rank(rank);
}

Status TcpCommunicator::Connect() {
  MUSTER_RETURN_IF_ERROR(Enter());
  Status status = failed_;
  if (connected_ || listener_ == nullptr) {
    status = FailedPrecondition("this communicator is connected already");
  } else if (status.ok()) {
    TcpMesh mesh = FormTcpMesh(*listener_, group_, options_.forming_deadline,
                               options_.progress_deadline, abort_);
    status = mesh.status;
    if (status.ok()) {
      links_ = std::make_unique<StreamLinks>(rank_, std::move(mesh.sockets), abort_,
                                             options_.progress_deadline);
      connected_ = true;
    } else {
      failed_ = status;
      if (mesh.unreachable) failed_peer_.store(mesh.unreachable->value());
    }
  }
  Leave();
  return status;
}

// ---- Operations -----------------------------------------------------------------------------

Status TcpCommunicator::CheckRank(Rank peer) const {
  if (peer.value() >= 0 && peer.value() < size_) return {};
  return InvalidArgument("there is no rank " + std::to_string(peer.value()) + " in a world of " +
                         std::to_string(size_));
}

void TcpCommunicator::ReserveScratch(std::size_t size) {
  if (size <= scratch_size_) return;
  scratch_ = std::make_unique_for_overwrite<std::byte[]>(size);
  scratch_size_ = size;
}

std::span<std::byte> TcpCommunicator::Slot(std::int32_t peer, std::size_t size) {
  const auto index = static_cast<std::size_t>(peer < rank_.value() ? peer : peer - 1);
  return {scratch_.get() + index * size, size};
}

void TcpCommunicator::CombineInOrder(std::span<std::byte> own, const OperationShape& shape) {
  if (own.empty()) return;
  if (rank_.value() == 0) {
    for (std::int32_t peer = 1; peer < size_; ++peer) {
      Combine(own, Slot(peer, own.size()), shape.type, shape.reduce);
    }
    return;
  }
  const std::span<std::byte> sum = Slot(0, own.size());
  for (std::int32_t peer = 1; peer < size_; ++peer) {
    const std::span<const std::byte> next = peer == rank_.value() ? own : Slot(peer, own.size());
    Combine(sum, next, shape.type, shape.reduce);
  }
  std::memcpy(own.data(), sum.data(), own.size());
}

Status TcpCommunicator::AllReduce(std::span<std::byte> buffer, ElementType type, ReduceOp op) {
  return Run([&]() -> Status {
    MUSTER_RETURN_IF_ERROR(CheckReduction(buffer.size(), type, op));
    if (size_ == 1) return {};
    const OperationShape shape{Operation::kAllReduce, type, op, buffer.size(), 0};
    return buffer.size() <= DirectMax(size_) ? AllReduceDirect(buffer, shape)
                                             : AllReduceSliced(buffer, shape);
  });
}

Status TcpCommunicator::AllReduceDirect(std::span<std::byte> buffer, const OperationShape& shape) {
  ReserveScratch(buffer.size() * static_cast<std::size_t>(size_ - 1));
  parts_.clear();
  for (std::int32_t peer = 0; peer < size_; ++peer) {
    if (peer != rank_.value()) parts_.push_back({peer, buffer, Slot(peer, buffer.size())});
  }
  MUSTER_RETURN_IF_ERROR(links_->Start(shape, parts_));
  CombineInOrder(buffer, shape);
  return {};
}

// Segment by segment: every rank gets its slice from all others, adds it up and gives it to all.
Status TcpCommunicator::AllReduceSliced(std::span<std::byte> buffer, const OperationShape& shape) {
  const std::size_t element = SizeOfElement(shape.type);
  const auto size = static_cast<std::size_t>(size_);
  const std::size_t longest = std::min(kSegmentBytes, buffer.size());
  ReserveScratch(SliceOf(longest, element, 0, size).size * (size - 1));  // slice 0 is no smaller
  for (std::size_t offset = 0; offset < buffer.size(); offset += kSegmentBytes) {
    const std::span<std::byte> segment =
        buffer.subspan(offset, std::min(kSegmentBytes, buffer.size() - offset));
    const auto slice = [&](std::int32_t of) {
      const Slice s = SliceOf(segment.size(), element, static_cast<std::size_t>(of), size);
      return segment.subspan(s.offset, s.size);
    };
    const std::span<std::byte> own = slice(rank_.value());
    parts_.clear();
    for (std::int32_t peer = 0; peer < size_; ++peer) {
      if (peer != rank_.value()) parts_.push_back({peer, slice(peer), Slot(peer, own.size())});
    }
    MUSTER_RETURN_IF_ERROR(offset == 0 ? links_->Start(shape, parts_) : links_->Continue(parts_));
    CombineInOrder(own, shape);
    for (Part& part : parts_) part = {part.peer, own, slice(part.peer)};
    MUSTER_RETURN_IF_ERROR(links_->Continue(parts_));
  }
  return {};
}

Status TcpCommunicator::AllGather(std::span<std::byte> buffer,
                                  std::span<const std::int64_t> counts) {
  return Run([&]() -> Status {
    if (counts.size() != static_cast<std::size_t>(size_)) {
      return InvalidArgument("all_gather got " + std::to_string(counts.size()) +
                             " counts in a world of " + std::to_string(size_));
    }
    std::size_t left = buffer.size();
    for (const std::int64_t count : counts) {
      if (count < 0 || static_cast<std::size_t>(count) > left) {
        return InvalidArgument("the counts of all_gather do not cut a buffer of " +
                               std::to_string(buffer.size()) + " bytes");
      }
      left -= static_cast<std::size_t>(count);
    }
    if (left != 0) {
      return InvalidArgument("the counts of all_gather leave " + std::to_string(left) +
                             " bytes of the buffer to nobody");
    }
    if (size_ == 1) return {};
    parts_.clear();
    std::span<std::byte> own;
    std::size_t offset = 0;
    for (std::int32_t peer = 0; peer < size_; ++peer) {
      const auto count = static_cast<std::size_t>(counts[static_cast<std::size_t>(peer)]);
      const std::span<std::byte> part = buffer.subspan(offset, count);
      offset += count;
      if (peer == rank_.value()) {
        own = part;
      } else {
        parts_.push_back({peer, {}, part});
      }
    }
    for (Part& part : parts_) part.outgoing = own;
    const std::string_view bytes(reinterpret_cast<const char*>(counts.data()), counts.size_bytes());
    return links_->Start({.operation = Operation::kAllGather,
                          .total_bytes = buffer.size(),
                          .detail = DigestOf(bytes)},
                         parts_);
  });
}

Status TcpCommunicator::Broadcast(std::span<std::byte> buffer, Rank root) {
  return Run([&]() -> Status {
    MUSTER_RETURN_IF_ERROR(CheckRank(root));
    if (size_ == 1) return {};
    const OperationShape shape{.operation = Operation::kBroadcast,
                               .total_bytes = buffer.size(),
                               .detail = static_cast<std::uint64_t>(root.value())};
    if (size_ > 2 && buffer.size() > kEagerBytes) {
      return BroadcastSliced(buffer, root.value(), shape);
    }
    parts_.clear();
    for (std::int32_t peer = 0; peer < size_; ++peer) {
      if (peer == rank_.value()) continue;
      Part& part = parts_.emplace_back();
      part.peer = peer;
      if (rank_ == root) part.outgoing = buffer;
      if (peer == root.value()) part.incoming = buffer;
    }
    return links_->Start(shape, parts_);
  });
}

// The root gives each other rank one slice, and they give them to each other: the root's link
// carries the buffer once instead of once per rank.
Status TcpCommunicator::BroadcastSliced(std::span<std::byte> buffer, std::int32_t root,
                                        const OperationShape& shape) {
  const auto slice = [&](std::int32_t of) {
    const auto index = static_cast<std::size_t>(of < root ? of : of - 1);
    const Slice s = SliceOf(buffer.size(), 1, index, static_cast<std::size_t>(size_ - 1));
    return buffer.subspan(s.offset, s.size);
  };
  const bool is_root = rank_.value() == root;
  parts_.clear();
  for (std::int32_t peer = 0; peer < size_; ++peer) {
    if (peer == rank_.value()) continue;
    Part& part = parts_.emplace_back();
    part.peer = peer;
    if (is_root) part.outgoing = slice(peer);
    if (peer == root) part.incoming = slice(rank_.value());
  }
  MUSTER_RETURN_IF_ERROR(links_->Start(shape, parts_));
  if (is_root) return {};
  for (Part& part : parts_) {
    part = part.peer == root ? Part{root, {}, {}}
                             : Part{part.peer, slice(rank_.value()), slice(part.peer)};
  }
  return links_->Continue(parts_);
}

Status TcpCommunicator::Exchange(std::span<const std::span<const std::byte>> outgoing,
                                 std::span<const std::span<std::byte>> incoming) {
  return Run([&]() -> Status {
    const auto size = static_cast<std::size_t>(size_);
    const auto self = static_cast<std::size_t>(rank_.value());
    if (outgoing.size() != size || incoming.size() != size) {
      return InvalidArgument("exchange needs a buffer to and from each of " +
                             std::to_string(size_) + " ranks");
    }
    if (outgoing[self].size() != incoming[self].size()) {
      return InvalidArgument("exchange with oneself: " + std::to_string(outgoing[self].size()) +
                             " bytes do not fit " + std::to_string(incoming[self].size()));
    }
    if (!outgoing[self].empty()) {
      std::memcpy(incoming[self].data(), outgoing[self].data(), outgoing[self].size());
    }
    if (size_ == 1) return {};
    parts_.clear();
    for (std::size_t peer = 0; peer < size; ++peer) {
      if (peer == self) continue;
      parts_.push_back({static_cast<std::int32_t>(peer), outgoing[peer], incoming[peer]});
    }
    return links_->Start({.operation = Operation::kExchange}, parts_);
  });
}

Status TcpCommunicator::Send(std::span<const std::byte> buffer, Rank to) {
  return Run([&]() -> Status {
    MUSTER_RETURN_IF_ERROR(CheckRank(to));
    if (to == rank_) return InvalidArgument("a rank cannot send to itself");
    parts_.assign(1, {to.value(), buffer, {}});
    return links_->Start({.operation = Operation::kSend}, parts_);
  });
}

Status TcpCommunicator::Recv(std::span<std::byte> buffer, Rank from) {
  return Run([&]() -> Status {
    MUSTER_RETURN_IF_ERROR(CheckRank(from));
    if (from == rank_) return InvalidArgument("a rank cannot receive from itself");
    parts_.assign(1, {from.value(), {}, buffer});
    return links_->Start({.operation = Operation::kRecv}, parts_);
  });
}

Status TcpCommunicator::Barrier() {
  return Run([&]() -> Status {
    if (size_ == 1) return {};
    parts_.clear();
    for (std::int32_t peer = 0; peer < size_; ++peer) {
      if (peer != rank_.value()) parts_.push_back({peer, {}, {}});
    }
    return links_->Start({.operation = Operation::kBarrier}, parts_);
  });
}

}  // namespace muster
