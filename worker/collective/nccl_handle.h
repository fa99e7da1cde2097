// One NCCL communicator and the thread that can end it.
//
// NCCL forbids that a thread is inside a call of a communicator while another aborts it, and its
// abort blocks: until kernels have left, until the other ranks on this host have aborted too, or
// for ever. So every call goes through Call(), and the abort is made by a guard thread of its own,
// which waits until no call is inside. Whoever asked for the abort only waits for that thread, with
// a deadline.
//
// Always an abort, never a destroy: that one is a collective, and hangs when a peer is gone.
#pragma once

#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "protocol/status.h"
#include "protocol/time.h"
#include "worker/collective/device.h"
#include "worker/collective/gpu_backend.h"
#include "worker/collective/nccl_api.h"

namespace muster {

class NcclHandle {
 public:
  // `stream`: what has been put there is over before the abort is called done; that takes as long
  // as the work of other streams for which it waits. Starts the guard thread. `name` is for people:
  // "generation 7, rank 2".
  NcclHandle(const NcclApi& api, std::shared_ptr<Device> device,
             std::shared_ptr<DeviceStream> stream, NcclOptions options, std::string name);
  // Aborts, and waits for that until the hard deadline; a guard that is stuck beyond it is left
  // behind with all that it needs.
  ~NcclHandle();
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  // Makes one call, or a group of calls, that do not block. Threads that it starts get no signals.
  // The communicator is null before it was made; `call` may make it. kInterrupted without a call
  // once the abort was asked for; otherwise the result's Status, ok for ncclInProgress.
  Status Call(const char* what, const std::function<ncclResult_t(ncclComm_t&)>& call);
  // What the communicator says of itself: true when it is free for the next call, false while one
  // is in progress, or its error.
  [[nodiscard]] Result<bool> Ready();

  // Asks for the abort; returns at once. Any thread.
  void Abort();
  // Ok when the abort is done and the device still computes. kDeadlineExceeded after `limit`.
  // kInternal: past the hard deadline, or the device is lost; then this process is of no use.
  Status AwaitAborted(Duration limit);
  // The hard deadline has passed without an end of the abort.
  [[nodiscard]] bool stuck() const;
  // The hard deadline has passed since the abort was asked for, whether that has ended or not.
  [[nodiscard]] bool overdue() const;
  // Raised by Abort(), before anything is done about it.
  [[nodiscard]] const std::atomic<bool>& interrupted() const;

 private:
  struct Shared;
  class Inside;
  static void Guard(const std::shared_ptr<Shared>& shared);

  const std::shared_ptr<Shared> shared_;
  std::thread guard_;
};

}  // namespace muster
