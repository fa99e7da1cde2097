#include "worker/collective/stream_links.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace muster {
namespace {

// How long a rank that has failed tries to tell the others. They are reading, so it takes
// microseconds; a stopped one must not hold up the error.
constexpr Duration kFaultPatience = Duration::Millis(100);

std::string RankName(std::int32_t rank) { return "rank " + std::to_string(rank); }

std::byte* TailOf(FrameHeader& header, std::size_t left) {
  return reinterpret_cast<std::byte*>(&header) + (sizeof header - left);
}

// The header and the data of one frame as the kernel wants them.
struct Buffers {
  std::array<iovec, 2> io{};
  msghdr message{};
  std::size_t size = 0;

  Buffers(std::byte* header, std::size_t header_size, const std::byte* data, std::size_t data_size)
      : size(header_size + data_size) {
    io[0] = {header, header_size};
    io[1] = {const_cast<std::byte*>(data), data_size};  // sendmsg only reads it
    message.msg_iov = io.data();
    message.msg_iovlen = io.size();
  }
};

std::string Describe(const FrameHeader& header) {
  constexpr std::array<std::string_view, 5> kTypes = {"float32", "float64", "int64", "uint64",
                                                      "bytes"};
  constexpr std::array<std::string_view, 4> kReductions = {"sum", "max", "min", "bit_or"};
  const auto name = [](const auto& names, std::size_t index) {
    return std::string(index < names.size() ? names[index] : "unknown");
  };
  std::string text(OperationName(header.operation));
  text += " number " + std::to_string(header.sequence) + " (";
  if (header.operation == Operation::kAllReduce) {
    text += name(kTypes, header.element_type) + ", " + name(kReductions, header.reduce_op) + ", ";
  } else if (header.detail != 0) {
    text += "root or cut " + ToHex(header.detail) + ", ";
  }
  text += std::to_string(header.total_bytes) + " bytes in all, " +
          std::to_string(header.outgoing_bytes) + " sent, " +
          std::to_string(header.incoming_bytes) + " expected)";
  return text;
}

Operation Counterpart(Operation operation) {
  if (operation == Operation::kSend) return Operation::kRecv;
  if (operation == Operation::kRecv) return Operation::kSend;
  return operation;
}

}  // namespace

std::string_view OperationName(Operation operation) {
  switch (operation) {
    case Operation::kBarrier: return "barrier";
    case Operation::kAllReduce: return "all_reduce";
    case Operation::kAllGather: return "all_gather";
    case Operation::kBroadcast: return "broadcast";
    case Operation::kExchange: return "exchange";
    case Operation::kSend: return "send";
    case Operation::kRecv: return "recv";
  }
  return "unknown operation";
}

void StreamLinks::Link::Sent(std::size_t size) {
  const std::size_t of_header = std::min(size, out_header_left);
  out_header_left -= of_header;
  out_frame = out_frame.subspan(size - of_header);
}

StreamLinks::StreamLinks(Rank self, std::vector<UniqueFd> sockets, const AbortSignal& abort,
                         Duration progress_deadline)
    : self_(self), abort_(abort), progress_deadline_(progress_deadline) {
  links_.resize(sockets.size());
  for (std::size_t i = 0; i < sockets.size(); ++i) links_[i].fd = std::move(sockets[i]);
}

StreamLinks::~StreamLinks() {
  FrameHeader goodbye;
  goodbye.kind = FrameKind::kFault;
  goodbye.code = static_cast<std::uint32_t>(Code::kInterrupted);
  for (Link& link : links_) {
    // In the middle of a frame there is no place for it.
    if (!link.fd.valid() || link.broken || link.FrameUnsent()) continue;
    [[maybe_unused]] const ssize_t sent =
        ::send(link.fd.get(), &goodbye, sizeof goodbye, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
}

Status StreamLinks::Start(const OperationShape& shape, std::span<const Part> parts) {
  shape_ = shape;
  for (const Part& part : parts) {
    Link& link = links_[static_cast<std::size_t>(part.peer)];
    ++link.sequence;
    link.entered = false;
    link.out_opening = true;
    link.in_opening = true;
    FrameHeader& mine = link.out_header;
    mine = {};
    mine.operation = shape.operation;
    mine.element_type = static_cast<std::uint8_t>(shape.type);
    mine.reduce_op = static_cast<std::uint8_t>(shape.reduce);
    mine.sequence = link.sequence;
    mine.total_bytes = shape.total_bytes;
    mine.detail = shape.detail;
    mine.outgoing_bytes =
        shape.operation == Operation::kExchange || shape.operation == Operation::kSend
            ? part.outgoing.size()
            : 0;
    mine.incoming_bytes =
        shape.operation == Operation::kExchange || shape.operation == Operation::kRecv
            ? part.incoming.size()
            : 0;
    link.expected = mine;
    link.expected.operation = Counterpart(shape.operation);
    std::swap(link.expected.outgoing_bytes, link.expected.incoming_bytes);
  }
  return Run(parts);
}

Status StreamLinks::Continue(std::span<const Part> parts) { return Run(parts); }

Status StreamLinks::Run(std::span<const Part> parts) {
  pending_.clear();
  for (const Part& part : parts) {
    Link& link = links_[static_cast<std::size_t>(part.peer)];
    link.out_rest = part.outgoing;
    link.in_rest = part.incoming;
    // Nothing of the header has come that was watched for: it becomes the next one that is due.
    if (link.in_header_left == sizeof link.in_header) link.in_header_left = 0;
    pending_.push_back(part.peer);
  }
  const Status status = Move(parts);
  return status.code() == Code::kUnavailable ? Explain(status) : status;
}

Status StreamLinks::Move(std::span<const Part> parts) {
  // All first frames leave before the first wait for anything.
  for (const std::int32_t peer : pending_) MUSTER_RETURN_IF_ERROR(Send(peer));
  for (const std::int32_t peer : pending_) MUSTER_RETURN_IF_ERROR(Advance(peer));
  Instant deadline = PollClockNow() + progress_deadline_;
  while (true) {
    std::erase_if(pending_, [this](std::int32_t peer) {
      const Link& link = links_[static_cast<std::size_t>(peer)];
      return link.OutDone() && link.InDone();
    });
    if (pending_.empty()) return {};
    if (std::exchange(moved_, false)) deadline = PollClockNow() + progress_deadline_;
    MUSTER_RETURN_IF_ERROR(Wait(parts, deadline));
  }
}

Status StreamLinks::Explain(const Status& status) {
  const std::optional<Rank> before = culprit();
  for (const std::int32_t peer : pending_) {
    if (links_[static_cast<std::size_t>(peer)].broken) continue;
    Status other = Receive(peer);
    if (other.code() == Code::kInvalidArgument) return other;
  }
  Blame(before ? std::optional(before->value()) : std::nullopt);
  return status;
}

// Receives before it sends: what comes in may be the header that allows a long payload to leave.
Status StreamLinks::Advance(std::int32_t peer) {
  MUSTER_RETURN_IF_ERROR(Receive(peer));
  return Send(peer);
}

Status StreamLinks::Wait(std::span<const Part> parts, Instant deadline) {
  polled_.clear();
  polled_.push_back({abort_.fd(), POLLIN, 0});
  for (const std::int32_t peer : pending_) {
    const Link& link = links_[static_cast<std::size_t>(peer)];
    const bool sending = link.FrameUnsent() || (!link.out_rest.empty() && link.entered);
    // Reading goes on while only sending is due: the peer may give up and say so.
    polled_.push_back({link.fd.get(), static_cast<short>(POLLIN | (sending ? POLLOUT : 0)), 0});
  }
  const int ready = ::poll(polled_.data(), polled_.size(), PollTimeout(deadline));
  if (abort_.raised()) return Interrupted("the communicator was aborted");
  if (ready < 0 && errno != EINTR) return FromErrno(errno, "poll on the data connections");
  if (ready == 0 && PollClockNow() >= deadline) return Late(parts);
  for (std::size_t i = 1; i < polled_.size(); ++i) {
    if (polled_[i].revents != 0) MUSTER_RETURN_IF_ERROR(Advance(pending_[i - 1]));
  }
  return {};
}

bool StreamLinks::NextFrame(Link& link) {
  if (link.FrameUnsent()) return true;
  if (link.out_opening) {
    link.out_opening = false;  // its header was made by Start
    if (link.out_rest.size() <= kEagerBytes) link.out_frame = std::exchange(link.out_rest, {});
  } else if (!link.out_rest.empty() && link.entered) {
    const std::size_t size = std::min(link.out_rest.size(), kChunkBytes);
    link.out_frame = link.out_rest.first(size);
    link.out_rest = link.out_rest.subspan(size);
    link.out_header.kind = FrameKind::kContinuation;
  } else {
    return false;
  }
  link.out_header.payload_bytes = static_cast<std::uint32_t>(link.out_frame.size());
  link.out_header_left = sizeof link.out_header;
  return true;
}

Status StreamLinks::Send(std::int32_t peer) {
  Link& link = links_[static_cast<std::size_t>(peer)];
  while (!link.broken && NextFrame(link)) {
    if (abort_.raised()) return Interrupted("the communicator was aborted");
    const Buffers buffers(TailOf(link.out_header, link.out_header_left), link.out_header_left,
                          link.out_frame.data(), link.out_frame.size());
    const ssize_t sent = ::sendmsg(link.fd.get(), &buffers.message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
      const std::string why = std::generic_category().message(errno);
      link.broken = true;
      // The peer may have said why before it left; its words lie in the receive queue.
      MUSTER_RETURN_IF_ERROR(Receive(peer));
      return Broken(peer, why);
    }
    moved_ = true;
    link.Sent(static_cast<std::size_t>(sent));
    if (static_cast<std::size_t>(sent) < buffers.size) return {};  // the kernel has no more room
  }
  return {};
}

void StreamLinks::ExpectFrame(Link& link) {
  link.in_header_left = sizeof link.in_header;
  std::size_t size = std::min(link.in_rest.size(), kChunkBytes);
  if (link.in_opening && link.in_rest.size() > kEagerBytes) size = 0;  // as NextFrame cuts it
  link.in_frame = link.in_rest.first(size);
  link.in_rest = link.in_rest.subspan(size);
}

Status StreamLinks::Receive(std::int32_t peer) {
  Link& link = links_[static_cast<std::size_t>(peer)];
  while (!link.InDone() || !link.OutDone()) {
    if (abort_.raised()) return Interrupted("the communicator was aborted");
    if (link.in_header_left == 0 && link.in_frame.empty()) ExpectFrame(link);
    const Buffers buffers(TailOf(link.in_header, link.in_header_left), link.in_header_left,
                          link.in_frame.data(), link.in_frame.size());
    msghdr message = buffers.message;
    const ssize_t got = ::recvmsg(link.fd.get(), &message, MSG_DONTWAIT);
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
      return Broken(peer, std::generic_category().message(errno));
    }
    if (got == 0) return Broken(peer, "it closed the connection");
    moved_ = true;
    const auto size = static_cast<std::size_t>(got);
    const std::size_t of_header = std::min(size, link.in_header_left);
    link.in_header_left -= of_header;
    link.in_frame = link.in_frame.subspan(size - of_header);
    if (of_header > 0 && link.in_header_left == 0) {
      const std::size_t data_size = (size - of_header) + link.in_frame.size();
      MUSTER_RETURN_IF_ERROR(CheckHeader(peer));
      if (link.in_header.payload_bytes != data_size) {
        return InvalidArgument(RankName(peer) + " sent a frame of " +
                               std::to_string(link.in_header.payload_bytes) +
                               " bytes where this rank expects " + std::to_string(data_size));
      }
    }
    if (size < buffers.size) return {};  // nothing more is there
  }
  return {};
}

Status StreamLinks::CheckHeader(std::int32_t peer) {
  Link& link = links_[static_cast<std::size_t>(peer)];
  const FrameHeader& got = link.in_header;
  if (got.magic != kFrameMagic) {
    return Broken(peer, "what came from it is no frame; something else writes to its connection");
  }
  if (got.kind == FrameKind::kFault) return FaultOf(peer, got);
  const FrameHeader& want = link.expected;
  const bool kind_fits =
      got.kind == (link.in_opening ? FrameKind::kOperation : FrameKind::kContinuation);
  if (!kind_fits || got.operation != want.operation || got.element_type != want.element_type ||
      got.reduce_op != want.reduce_op || got.sequence != want.sequence ||
      got.total_bytes != want.total_bytes || got.outgoing_bytes != want.outgoing_bytes ||
      got.incoming_bytes != want.incoming_bytes || got.detail != want.detail) {
    Blame({});
    return InvalidArgument(RankName(peer) + " called " + Describe(got) + " where " +
                           RankName(self_.value()) + " needs " + Describe(want) +
                           "; all ranks must make the same calls in the same order");
  }
  link.in_opening = false;
  link.entered = true;
  return {};
}

Status StreamLinks::FaultOf(std::int32_t peer, const FrameHeader& header) {
  const std::int32_t named = header.culprit;
  const auto size = static_cast<std::int32_t>(links_.size());
  // What it says about this rank is about the pair, and the other half of the pair is the peer.
  const bool about_me = named == self_.value();
  const bool known = named >= 0 && named < size && !about_me;
  const std::string other = about_me ? "this rank" : known ? RankName(named) : "another rank";
  switch (static_cast<Code>(header.code)) {
    case Code::kInvalidArgument:
      Blame({});
      return InvalidArgument(RankName(peer) + " found that " + other +
                             " called a different operation, size or type");
    case Code::kDeadlineExceeded:
      Blame(known ? std::optional(named) : std::nullopt);
      return DeadlineExceeded(RankName(peer) + " gave up waiting for " + other);
    case Code::kUnavailable:
      Blame(known ? std::optional(named) : about_me ? std::optional(peer) : std::nullopt);
      return Unavailable(RankName(peer) + " lost its connection to " + other);
    default:
      Blame({});
      return Unavailable(RankName(peer) + " left this generation; the coordinator knows why");
  }
}

Status StreamLinks::Broken(std::int32_t peer, const std::string& why) {
  links_[static_cast<std::size_t>(peer)].broken = true;
  Blame(peer);
  return Unavailable(RankName(peer) + " is gone in " +
                     std::string(OperationName(shape_.operation)) + ": " + why);
}

Status StreamLinks::Late(std::span<const Part> parts) {
  std::vector<std::int32_t> absent;
  std::vector<std::int32_t> stuck;
  for (const Part& part : parts) {
    const Link& link = links_[static_cast<std::size_t>(part.peer)];
    if (!link.entered) {
      absent.push_back(part.peer);
    } else if (!link.OutDone() || !link.InDone()) {
      stuck.push_back(part.peer);
    }
  }
  const std::vector<std::int32_t>& named = absent.empty() ? stuck : absent;
  std::string names;
  for (const std::int32_t rank : named) names += (names.empty() ? "" : ", ") + RankName(rank);
  Blame(named.size() == 1 ? std::optional(named.front()) : std::nullopt);
  return DeadlineExceeded(
      std::string(OperationName(shape_.operation)) + " of " + RankName(self_.value()) +
      " made no progress for " + std::to_string(progress_deadline_.ToSeconds()) + " s: " + names +
      (absent.empty() ? " entered it and moves no data"
                      : " has not entered the matching " +
                            std::string(OperationName(Counterpart(shape_.operation)))));
}

void StreamLinks::TellFault(Code code, std::optional<Rank> culprit) {
  FrameHeader fault;
  fault.kind = FrameKind::kFault;
  fault.code = static_cast<std::uint32_t>(code);
  fault.culprit = culprit ? culprit->value() : -1;
  pending_.clear();
  for (std::size_t i = 0; i < links_.size(); ++i) {
    Link& link = links_[i];
    if (!link.fd.valid() || link.broken) continue;
    if (!link.FrameUnsent() && link.out_opening) NextFrame(link);  // peers compare it themselves
    link.out_rest = {};
    pending_.push_back(static_cast<std::int32_t>(i));
  }
  const Instant deadline = PollClockNow() + kFaultPatience;
  while (true) {
    std::erase_if(pending_, [&](std::int32_t peer) {
      return SendFault(links_[static_cast<std::size_t>(peer)], fault);
    });
    if (pending_.empty() || abort_.raised() || PollClockNow() >= deadline) break;
    polled_.clear();
    polled_.push_back({abort_.fd(), POLLIN, 0});
    for (const std::int32_t peer : pending_) {
      polled_.push_back({links_[static_cast<std::size_t>(peer)].fd.get(), POLLOUT, 0});
    }
    ::poll(polled_.data(), polled_.size(), PollTimeout(deadline));
  }
  if (code == Code::kInvalidArgument) AwaitDelivery(deadline);
}

bool StreamLinks::SendFault(Link& link, const FrameHeader& fault) {
  while (!link.broken && link.FrameUnsent()) {
    const Buffers buffers(TailOf(link.out_header, link.out_header_left), link.out_header_left,
                          link.out_frame.data(), link.out_frame.size());
    const ssize_t sent = ::sendmsg(link.fd.get(), &buffers.message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (sent < 0) {
      link.broken = true;
      return true;
    }
    link.Sent(static_cast<std::size_t>(sent));
  }
  const ssize_t sent = ::send(link.fd.get(), &fault, sizeof fault, MSG_NOSIGNAL | MSG_DONTWAIT);
  return sent >= 0 || errno != EAGAIN;
}

// The user's program may well exit over a mismatch, and a socket that is closed with unread bytes
// takes back what its peer has not received yet. So read what comes, and wait for the kernel.
void StreamLinks::AwaitDelivery(Instant deadline) {
  std::array<std::byte, 16 * 1024> ignored;
  while (!abort_.raised() && PollClockNow() < deadline) {
    bool delivered = true;
    for (const Link& link : links_) {
      if (!link.fd.valid() || link.broken) continue;
      while (::recv(link.fd.get(), ignored.data(), ignored.size(), MSG_DONTWAIT) > 0) continue;
      int left = 0;
      if (::ioctl(link.fd.get(), SIOCOUTQ, &left) == 0 && left > 0) delivered = false;
    }
    if (delivered) return;
    pollfd polled{abort_.fd(), POLLIN, 0};
    ::poll(&polled, 1, 1);  // no event tells of an acknowledgement
  }
}

void StreamLinks::Blame(std::optional<std::int32_t> rank) {
  culprit_.store(rank.value_or(-1), std::memory_order_release);
}

std::optional<Rank> StreamLinks::culprit() const {
  const std::int32_t rank = culprit_.load(std::memory_order_acquire);
  if (rank < 0) return std::nullopt;
  return Rank(rank);
}

}  // namespace muster
