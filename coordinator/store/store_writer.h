// Writes batches to the journal on a thread of its own, so that the coordinator's strand never
// waits for a disk. Batches that wait together share one sync (group commit).
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "coordinator/store/journal.h"
#include "protocol/status.h"

namespace muster::store {

// Batches become durable in the order in which they were enqueued, and no batch does after one that
// failed: what is on the disk is always the work of a first part of them. Thread-safe.
class StoreWriter {
 public:
  // Told once whether the batch is durable. Called on the writer's thread, in the order of the
  // batches, with no lock held; it may call Enqueue and Resume. Must not throw.
  using Callback = std::function<void(const Status&)>;

  static constexpr std::size_t kMaxQueued = 4096;

  struct Stats {
    std::int64_t batches = 0;  // written
    std::int64_t groups = 0;   // syncs that this took
    std::int64_t failures = 0;
    std::int64_t reopenings = 0;  // of the database, after failed writes
    std::size_t queued = 0;
  };

  explicit StoreWriter(std::unique_ptr<Journal> journal, std::size_t max_queued = kMaxQueued);
  ~StoreWriter();  // Stop()
  StoreWriter(const StoreWriter&) = delete;
  StoreWriter& operator=(const StoreWriter&) = delete;

  // Never blocks for the disk. After an error (kResourceExhausted: max_queued batches wait;
  // kFailedPrecondition: stopped) the callback is not called.
  [[nodiscard]] Status Enqueue(Batch batch, Callback callback);

  // After a batch has failed, all that wait and all that come fail with the same Status, unwritten,
  // until this is called. The owner that wants to try again waits for the callbacks of all that it
  // has enqueued, calls this, and enqueues those that failed again, in their order.
  void Resume();

  // Writes what waits, calls its callbacks, ends the thread and closes the database. Blocks.
  // Idempotent. REQUIRES: not called from a callback.
  void Stop();

  [[nodiscard]] Stats stats() const;

 private:
  struct Entry {
    Batch batch;
    Callback callback;
  };
  void Run();
  // Writes a group, as far as nothing has failed, and calls its callbacks.
  void Process(std::deque<Entry> group);
  [[nodiscard]] Status Write(const std::vector<const Batch*>& batches);
  [[nodiscard]] Status failure() const;

  const std::size_t max_queued_;
  std::unique_ptr<Journal> journal_;  // of the writer's thread, until it has ended

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // State below is protected by mutex_.
  std::deque<Entry> queue_;
  Status failure_;
  bool stopping_ = false;
  Stats stats_;

  std::mutex join_mutex_;  // lets Stop be called from several threads
  std::thread thread_;     // the last member: it uses all others
};

}  // namespace muster::store
