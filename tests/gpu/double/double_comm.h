// A communicator of the NCCL double. TEST CODE.
//
// What a non-blocking communicator has to do (meeting the others, connecting, putting operations on
// their streams, finalizing) its own thread does; until it was seen to have succeeded through
// ncclCommGetAsyncError, no other call is allowed, even when it has succeeded already. NCCL is less
// strict by luck only.
#pragma once

#include <nccl.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/double/double_bootstrap.h"
#include "tests/gpu/double/double_collectives.h"
#include "tests/gpu/double/double_faults.h"
#include "tests/gpu/double/double_mesh.h"
#include "tests/gpu/double/double_sockets.h"

namespace muster::gpu_double {

class Comm : public std::enable_shared_from_this<Comm> {
 public:
  // `number`: which communicator of this process, from 1.
  Comm(int number, int world_size, int rank, bool blocking, std::string label);

  // The public functions, after their arguments were checked. Any thread, but see EnterAbort().
  ncclResult_t Init(const ncclUniqueId& id);
  ncclResult_t GetAsyncError(ncclResult_t* error);
  // Ok when a call is allowed now; a finalized or failed one may only be destroyed.
  [[nodiscard]] ncclResult_t Ready(bool to_destroy = false);
  // All that one group has for this communicator. REQUIRES: Ready() was ok.
  ncclResult_t Launch(std::vector<Operation> operations);
  ncclResult_t Finalize();
  // Blocks; waits for all ranks, then for those of this host.
  ncclResult_t Destroy();
  // Blocks; waits for the ranks of this host. Dies when another thread is in a call.
  ncclResult_t Abort();

  // Counts the threads that are inside a call. Enter() dies when an abort has begun.
  void Enter();
  void Leave();

  [[nodiscard]] int world_size() const { return world_size_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] bool blocking() const { return blocking_; }
  [[nodiscard]] Moment MomentOf(int op) const;

 private:
  friend class Runner;  // runs an operation on its stream
  enum class State { kReady, kBusy, kUnseen };
  using Job = std::function<ncclResult_t()>;

  // Runs the job: here when blocking, otherwise on the own thread, and says ncclInProgress.
  ncclResult_t Begin(Job job);
  void Work();
  ncclResult_t Meet(const ncclUniqueId& id, std::uint64_t bus);
  ncclResult_t Connect();
  ncclResult_t PutOnStreams(const std::vector<Operation>& operations);
  ncclResult_t Flush();
  // What a peer's end does to what is done now, as MUSTER_DOUBLE_PEER_DEATH says: an error, or
  // nothing at all until an abort.
  ncclResult_t LosePeer();
  void ReleaseStreams();
  void CloseControl();
  [[nodiscard]] bool SameHost(std::size_t peer) const;

  const int number_;
  const int world_size_;
  const int rank_;
  const bool blocking_;
  const std::string label_;

  Interrupt abort_;  // everything leaves
  Interrupt stop_;   // operations make no progress any more; raised by an abort too

  // Of the job at hand; then of whoever aborts or destroys.
  std::vector<Member> members_;
  Socket listener_;
  Mesh control_;
  Mesh data_;
  bool connected_ = false;
  bool met_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kReady;
  ncclResult_t result_ = ncclSuccess;       // of the last job
  ncclResult_t async_error_ = ncclSuccess;  // found while an operation ran
  Job job_;
  bool leaving_ = false;
  bool aborting_ = false;
  bool finalized_ = false;
  int users_ = 0;
  int operations_ = 0;              // asked for so far
  std::uint32_t collectives_ = 0;   // among them, without sends and receives
  std::uint64_t tickets_ = 0;       // put on streams so far
  std::uint64_t turn_ = 0;          // how many of those are done
  bool running_ = false;            // one of them is
  std::vector<cudaStream_t> held_;  // until the job was seen to have succeeded
  std::thread thread_;
};

// What the last failed call had to say (ncclGetLastError).
void Explain(const std::string& text);
// Waits for ever.
[[noreturn]] void HangForEver();
// "remote" and so on, or `otherwise` when the fault names none; dies of another word.
[[nodiscard]] ncclResult_t ErrorOf(const Fault& fault, ncclResult_t otherwise);

}  // namespace muster::gpu_double
