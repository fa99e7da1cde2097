// The connections of one communicator and the moving of bytes over them: framing, the check that
// both ends do the same operation, deadlines, and the news of failures. Knows no algorithm.
//
// Threads: Start, Continue and TellFault by one thread at a time; culprit() from any.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "protocol/ids.h"
#include "protocol/status.h"
#include "protocol/time.h"
#include "worker/collective/communicator.h"
#include "worker/collective/frame.h"
#include "worker/collective/socket.h"

namespace muster {

// What an operation is, as all ranks in it must agree.
struct OperationShape {
  Operation operation = Operation::kBarrier;
  ElementType type = ElementType::kBytes;
  ReduceOp reduce = ReduceOp::kSum;
  std::uint64_t total_bytes = 0;
  std::uint64_t detail = 0;
};
// "all_reduce", for messages.
[[nodiscard]] std::string_view OperationName(Operation operation);

// What goes to and comes from one peer. The buffers stay the caller's.
struct Part {
  std::int32_t peer = 0;
  std::span<const std::byte> outgoing;
  std::span<std::byte> incoming;
};

class StreamLinks {
 public:
  // Takes the connected, non-blocking stream sockets by rank; the own entry is empty. `abort`
  // outlives this object.
  StreamLinks(Rank self, std::vector<UniqueFd> sockets, const AbortSignal& abort,
              Duration progress_deadline);
  // Says goodbye, so that peers which are not interrupted yet do not take this rank for dead.
  ~StreamLinks();
  StreamLinks(const StreamLinks&) = delete;
  StreamLinks& operator=(const StreamLinks&) = delete;

  // Opens an operation with the peers in `parts`, and moves its first (or only) data. Blocks until
  // all is sent and received and each of these peers has shown that it does the same operation.
  // Sizes of matching parts must be equal on both ends.
  [[nodiscard]] Status Start(const OperationShape& shape, std::span<const Part> parts);
  // Moves more data of the same operation, among peers that took part in Start.
  [[nodiscard]] Status Continue(std::span<const Part> parts);
  // Tells every peer that this rank has given up with `code` on account of `culprit`. Takes at
  // most some tens of milliseconds, and less when the abort is raised. After it, nothing but
  // destruction is allowed.
  void TellFault(Code code, std::optional<Rank> culprit);
  // On whose account the last error came.
  [[nodiscard]] std::optional<Rank> culprit() const;

 private:
  struct Link {
    UniqueFd fd;
    std::uint64_t sequence = 0;
    bool broken = false;   // nothing can be sent any more
    bool entered = false;  // the peer's header of the present operation has been seen and fits
    FrameHeader expected;  // what the peer's header has to say
    // Sending: the header and the data of the present frame, then what has no frame yet.
    FrameHeader out_header;
    std::size_t out_header_left = 0;
    std::span<const std::byte> out_frame;
    std::span<const std::byte> out_rest;
    bool out_opening = false;
    // Receiving, likewise. The data of a frame is read along with its header.
    FrameHeader in_header;
    std::size_t in_header_left = 0;
    std::span<std::byte> in_frame;
    std::span<std::byte> in_rest;
    bool in_opening = false;

    // Takes `size` sent bytes off the present frame.
    void Sent(std::size_t size);
    [[nodiscard]] bool FrameUnsent() const { return out_header_left > 0 || !out_frame.empty(); }
    [[nodiscard]] bool OutDone() const {
      return !FrameUnsent() && !out_opening && out_rest.empty();
    }
    // A header that may still come is a fault, and not waited for.
    [[nodiscard]] bool InDone() const { return in_frame.empty() && !in_opening && in_rest.empty(); }
  };

  [[nodiscard]] Status Run(std::span<const Part> parts);
  [[nodiscard]] Status Move(std::span<const Part> parts);
  // A peer that left because the ranks disagree looks as if it had died, when its last words were
  // cut off. What has come from the others by now may tell.
  [[nodiscard]] Status Explain(const Status& status);
  [[nodiscard]] Status Advance(std::int32_t peer);
  [[nodiscard]] Status Wait(std::span<const Part> parts, Instant deadline);
  // Puts the next frame together; false when there is nothing to send now.
  bool NextFrame(Link& link);
  [[nodiscard]] Status Send(std::int32_t peer);
  [[nodiscard]] Status Receive(std::int32_t peer);
  // Makes ready for the next header, which may only be a fault when nothing else is due.
  void ExpectFrame(Link& link);
  [[nodiscard]] Status CheckHeader(std::int32_t peer);
  [[nodiscard]] Status FaultOf(std::int32_t peer, const FrameHeader& header);
  // Finishes the present frame and adds the fault; false when the kernel has no room yet.
  bool SendFault(Link& link, const FrameHeader& fault);
  void AwaitDelivery(Instant deadline);
  [[nodiscard]] Status Broken(std::int32_t peer, const std::string& why);
  [[nodiscard]] Status Late(std::span<const Part> parts);
  void Blame(std::optional<std::int32_t> rank);

  const Rank self_;
  const AbortSignal& abort_;
  const Duration progress_deadline_;
  std::vector<Link> links_;
  std::vector<pollfd> polled_;         // scratch of Wait
  std::vector<std::int32_t> pending_;  // peers whose part is not done, scratch of Run
  OperationShape shape_;
  bool moved_ = false;  // bytes have moved since the last look at the clock
  std::atomic<std::int32_t> culprit_ = -1;
};

}  // namespace muster
