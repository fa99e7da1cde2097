// The communicator over stream sockets: TCP between workers of a generation, or socket pairs
// between threads of one process (local_communicator.h).
//
// Non-blocking sockets, driven by the thread that calls; no thread of its own. Every operation
// first shows every peer that it uses what is being done, so ranks that call different things learn
// it instead of hanging, and a Send whose Recv never comes runs into the progress deadline like
// everything else. A rank whose operation fails tells all others why and on whose account, so
// failed_peer() names the culprit and not the messenger.
//
// Threads: as in communicator.h; Abort() is valid from construction on, also while Connect() runs.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "protocol/ids.h"
#include "protocol/status.h"
#include "protocol/time.h"
#include "worker/collective/communicator.h"
#include "worker/collective/socket.h"
#include "worker/collective/stream_links.h"
#include "worker/collective/tcp_listener.h"
#include "worker/collective/tcp_mesh.h"

namespace muster {

struct TcpOptions {
  // How long Connect() tries.
  Duration forming_deadline = Duration::Seconds(30);
  // How long an operation may go without a byte moved in either direction.
  Duration progress_deadline = Duration::Seconds(600);
};

class TcpCommunicator final : public Communicator {
 public:
  // Not yet connected: operations get kFailedPrecondition until Connect() is done. `listener` is
  // this worker's, at group.endpoints[group.rank], and outlives the call of Connect().
  TcpCommunicator(TcpListener& listener, TcpGroup group, TcpOptions options);
  // Over sockets that are connected already (by rank, the own entry empty, stream, non-blocking).
  TcpCommunicator(Rank rank, std::vector<UniqueFd> sockets, std::string_view backend,
                  Duration progress_deadline);
  // REQUIRES: no call is inside; Abort() and AwaitAborted() make sure of it. Peers that still use
  // their end get kUnavailable with no failed_peer(): leaving is not dying.
  ~TcpCommunicator() override;

  // Meets the other members of the group and connects to each; blocks until all are connected, an
  // error, or Abort(). Errors as in tcp_mesh.h; a communicator that failed to connect is good for
  // nothing else. REQUIRES: called once.
  Status Connect();

  [[nodiscard]] Rank rank() const override { return rank_; }
  [[nodiscard]] std::int32_t world_size() const override { return size_; }
  [[nodiscard]] std::string_view backend() const override { return backend_; }

  // The sum is taken in the order of the ranks, whatever the size.
  Status AllReduce(std::span<std::byte> buffer, ElementType type, ReduceOp op) override;
  Status AllGather(std::span<std::byte> buffer, std::span<const std::int64_t> counts) override;
  Status Broadcast(std::span<std::byte> buffer, Rank root) override;
  Status Exchange(std::span<const std::span<const std::byte>> outgoing,
                  std::span<const std::span<std::byte>> incoming) override;
  // Returns once the peer has entered the matching Recv and all bytes are on their way.
  Status Send(std::span<const std::byte> buffer, Rank to) override;
  Status Recv(std::span<std::byte> buffer, Rank from) override;
  Status Barrier() override;

  void Abort() override;
  Status AwaitAborted(Duration limit) override;

  [[nodiscard]] std::optional<Rank> failed_peer() const override;
  [[nodiscard]] std::uint64_t operations_begun() const override { return operations_.load(); }

 private:
  // Runs `body`, a function returning Status, as the one call inside; deals with its failure.
  template <class Body>
  Status Run(Body body);
  Status Enter();
  void Leave();

  [[nodiscard]] Status AllReduceDirect(std::span<std::byte> buffer, const OperationShape& shape);
  [[nodiscard]] Status AllReduceSliced(std::span<std::byte> buffer, const OperationShape& shape);
  [[nodiscard]] Status BroadcastSliced(std::span<std::byte> buffer, std::int32_t root,
                                       const OperationShape& shape);
  // Combines the ranks' contributions to `own`, which holds this rank's, in the order of the
  // ranks. The others' are in scratch, own.size() bytes each, in the order of the peers.
  void CombineInOrder(std::span<std::byte> own, const OperationShape& shape);
  // The place of `peer`'s bytes in scratch when each peer has `size` there.
  [[nodiscard]] std::span<std::byte> Slot(std::int32_t peer, std::size_t size);
  void ReserveScratch(std::size_t size);
  [[nodiscard]] Status CheckRank(Rank peer) const;

  const Rank rank_;
  const std::int32_t size_;
  const std::string_view backend_;
  const TcpOptions options_;
  AbortSignal abort_;
  std::atomic<std::uint64_t> operations_ = 0;
  std::atomic<std::int32_t> failed_peer_ = -1;

  // Used by Connect() alone; null without it.
  TcpListener* const listener_ = nullptr;
  const TcpGroup group_;

  std::mutex mutex_;
  std::condition_variable left_;
  bool inside_ = false;  // guarded by mutex_

  // Belongs to the call that is inside.
  std::unique_ptr<StreamLinks> links_;  // null until connected, and for a world of one
  bool connected_ = false;
  Status failed_;  // the first error; every later call gets it again
  std::vector<Part> parts_;
  std::unique_ptr<std::byte[]> scratch_;
  std::size_t scratch_size_ = 0;
};

}  // namespace muster
