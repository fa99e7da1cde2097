// The worker's own thread: it keeps contact with the coordinator and aborts communicators, whatever
// the training thread is doing. It drives the session (worker/core), which both threads use under
// one mutex.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "protocol/messages.h"
#include "worker/client/saver.h"
#include "worker/collective/communicator.h"
#include "worker/core/session.h"

namespace muster::worker {

class ControlThread {
 public:
  struct Options {
    Identity identity;
    std::string token;
    bool leave_on_sigterm = false;
  };
  // What the thread calls, without holding the mutex.
  struct Hooks {
    std::function<void(WriteManifest)> manifest;
    std::function<void(RemoveCheckpoint)> removal;
    std::function<void(SweepCheckpoints)> sweep;
    // What lies in the checkpoint directory; an error leaves it at what was known before. Blocks.
    std::function<Result<std::optional<Found>>()> look;
  };

  ControlThread(Options options, Hooks hooks);
  ~ControlThread();
  ControlThread(const ControlThread&) = delete;
  ControlThread& operator=(const ControlThread&) = delete;

  void Start();
  // Says what is still to be said, closes the connection in order (for a second at most), and ends
  // the thread.
  void Stop();
  // Ends the thread at once, without a word to the coordinator.
  void Halt();

  // --- Training thread and saver ---
  using Lock = std::unique_lock<std::mutex>;
  [[nodiscard]] Lock Acquire() { return Lock(mutex_); }
  // REQUIRES: the lock is held, for each use of what it returns.
  [[nodiscard]] const Session& session() const { return session_; }
  // REQUIRES: the lock is held.
  void Hand(const Input& input);
  // Until the session changes in a way that this thread may wait for. REQUIRES: `lock` is held.
  void Wait(Lock& lock) { changed_.wait(lock); }
  // The same, for at most `limit`; false when it passed.
  bool WaitFor(Lock& lock, Duration limit);
  // What an abort has to abort from now on; null for none. REQUIRES: the lock is held.
  void SetCommunicator(std::shared_ptr<Communicator> communicator);

  // Raised when an abort is asked for, before it is made. What the training thread waits for
  // outside of a communicator ends by it; that thread lowers it for a new generation, under the
  // lock.
  std::atomic<bool> interrupted = false;
  // Set while the training thread is inside an operation of the data plane.
  std::atomic<bool> in_operation = false;

  // From any thread and from a signal handler.
  void RequestLeave() const noexcept;

 private:
  class Io;  // everything of Asio

  const Hooks hooks_;
  std::mutex mutex_;
  std::condition_variable changed_;

  // Guarded by mutex_.
  Session session_;
  std::shared_ptr<Communicator> communicator_;
  std::vector<Effects> pending_;

  std::unique_ptr<Io> io_;
  std::thread thread_;
};

}  // namespace muster::worker
