// The thread that writes checkpoints while training goes on: shards from snapshots, manifests, and
// the removal of old ones and of leftovers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "checkpoint/aligned_buffer.h"
#include "checkpoint/file_system.h"
#include "checkpoint/writer.h"
#include "protocol/messages.h"
#include "protocol/time.h"
#include "worker/client/state_table.h"

namespace muster::worker {

// Thread-safe.
class Saver {
 public:
  using OnDone = std::function<void(Message)>;  // called on the saver's thread

  // How long the destructor waits for a storage that does not answer.
  static constexpr Duration kPatience = Duration::Seconds(10);

  Saver(std::unique_ptr<checkpoint::FileSystem> fs, std::string root, OnDone done,
        Duration patience = kPatience);
  // Gives up the file that is being written, after the call to the file system that it is in; what
  // waits is dropped. When that call, or a copy from a device, takes longer than `patience`, says
  // so on stderr and leaves the thread behind: it keeps alive what it uses, and never calls `done`
  // again.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // Gets the memory for snapshots of `bytes` bytes in the background, so that the first one takes
  // no longer than the others. `memory`: StateTable::SnapshotMemory().
  void Prepare(std::int64_t bytes, checkpoint::BufferMemory memory = nullptr);
  // Copies what the plan's rank stores of the state as it is now, into memory that is used again
  // and again, and returns; the file is written then, and answered by ShardWritten or ShardFailed.
  // Of tensors on a device the copies are only put on their way (see TakeSnapshot), and the
  // saver's thread waits for them.
  // kResourceExhausted when there is no memory for the copy, or when the save before is still
  // under way: this one is then skipped, for another copy would only fill the memory. Training
  // thread.
  Status Save(const StateTable& table, checkpoint::ShardPlan plan);
  // Waits until no save is under way; false when `limit` passed first.
  bool AwaitIdle(Duration limit) const;
  // Saves that were skipped because another one was under way.
  [[nodiscard]] std::int64_t skipped() const;

  void Write(WriteManifest request);      // answered by ManifestWritten
  void Remove(RemoveCheckpoint request);  // answered by CheckpointRemoved, when gone or pinned
  void Sweep(SweepCheckpoints request);   // not answered

 private:
  class Work;  // what the thread uses, and outlives the saver with it

  const std::shared_ptr<Work> work_;
  const std::string root_;
  const Duration patience_;
  std::thread thread_;
};

}  // namespace muster::worker
