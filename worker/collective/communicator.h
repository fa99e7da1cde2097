// A communicator carries tensors between the workers of one generation. It lives inside that
// generation alone: once aborted it is thrown away and a new one is made.
//
// Threads: one thread, the training thread, makes the calls; a second one at the same time gets
// kFailedPrecondition. Abort() and AwaitAborted() may be called from any thread.
// Errors: kInterrupted once Abort() was called; kUnavailable when a peer's connection broke (the
// peer is in failed_peer()); kInvalidArgument when ranks called different operations, sizes or
// types (every rank learns it); kDeadlineExceeded when the configured progress deadline passed.
// After any error the communicator is good for Abort() alone, and buffers hold no usable result.
// Blocking: every operation blocks until this rank's part is done, or an error. Empty buffers are
// legal everywhere. All sizes are 64-bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "protocol/ids.h"
#include "protocol/status.h"
#include "protocol/time.h"

namespace muster {

enum class ReduceOp { kSum, kMax, kMin, kBitOr };
enum class ElementType { kFloat32, kFloat64, kInt64, kUInt64, kBytes };

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] virtual Rank rank() const = 0;
  [[nodiscard]] virtual std::int32_t world_size() const = 0;
  // "tcp", "nccl" or "local".
  [[nodiscard]] virtual std::string_view backend() const = 0;
  // May buffers lie in the memory of this communicator's device? Those of the host are fine as
  // well then, in any mixture, and every operation still blocks until its part is done. Work of
  // other streams on such buffers must have run before the call. Otherwise all buffers lie in the
  // host's memory.
  [[nodiscard]] virtual bool takes_device_memory() const { return false; }

  // Combines `buffer` elementwise over all ranks, in place, the same bytes on every rank.
  // `buffer.size()` is a multiple of the element size. kBytes admits kBitOr alone.
  virtual Status AllReduce(std::span<std::byte> buffer, ElementType type, ReduceOp op) = 0;
  // Every rank contributes `counts[rank]` bytes, found at its own place in `buffer` (the parts lie
  // there one behind another in rank order); afterwards every rank has all parts.
  // REQUIRES: counts.size() == world_size(), the same on every rank; their sum is buffer.size().
  virtual Status AllGather(std::span<std::byte> buffer, std::span<const std::int64_t> counts) = 0;
  // Copies `buffer` of `root` to all.
  virtual Status Broadcast(std::span<std::byte> buffer, Rank root) = 0;
  // Exchanges with every peer at once: sends `outgoing[p]` to rank p and receives exactly
  // `incoming[p].size()` bytes from it. The entry for the own rank is copied. Sizes must agree
  // pairwise. REQUIRES: both have world_size() entries; no two buffers overlap.
  virtual Status Exchange(std::span<const std::span<const std::byte>> outgoing,
                          std::span<const std::span<std::byte>> incoming) = 0;
  // Point to point, in order per pair. The sizes of a matching pair must agree.
  virtual Status Send(std::span<const std::byte> buffer, Rank to) = 0;
  virtual Status Recv(std::span<std::byte> buffer, Rank from) = 0;
  virtual Status Barrier() = 0;

  // Makes every present and later call return kInterrupted within milliseconds. Only requests;
  // returns at once; may be called repeatedly and from any thread.
  virtual void Abort() = 0;
  // Waits until no call is inside the communicator any more; after ok its buffers are free and it
  // may be destroyed. kDeadlineExceeded when `limit` passes first. kInternal when it cannot be
  // aborted, or what it ran on is lost: then this process is of no use to the job any more.
  // REQUIRES: Abort() was called.
  virtual Status AwaitAborted(Duration limit) = 0;

  // The abort has taken longer than it may ever take: nothing in this process ends it any more.
  [[nodiscard]] virtual bool stuck() const { return false; }

  // After an operation failed on one peer's account: which one.
  [[nodiscard]] virtual std::optional<Rank> failed_peer() const = 0;
  // Operations begun so far; readable from any thread. What "has not entered operation N" rests on.
  [[nodiscard]] virtual std::uint64_t operations_begun() const = 0;
};

}  // namespace muster
