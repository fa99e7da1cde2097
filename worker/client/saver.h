// The thread that writes checkpoints while training goes on: shards from snapshots, manifests, and
// the removal of old ones and of leftovers.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "checkpoint/file_system.h"
#include "checkpoint/writer.h"
#include "protocol/messages.h"
#include "worker/client/state_table.h"

namespace muster::worker {

// A rank's part of the state at one step, by value.
struct Snapshot {
  checkpoint::ShardPlan plan;
  std::vector<AlignedBytes> parts;  // for each tensor of the plan; empty where the box is
};

// Copies what `rank` of `world_size` stores of the state as it is now. kResourceExhausted when
// there is no memory for the copy. Training thread.
[[nodiscard]] Result<Snapshot> TakeSnapshot(const StateTable& table, checkpoint::ShardPlan plan);

// Thread-safe.
class Saver {
 public:
  using OnDone = std::function<void(Message)>;  // called on the saver's thread

  Saver(std::unique_ptr<checkpoint::FileSystem> fs, std::string root, OnDone done);
  // Ends after the file that is being written now; what waits is dropped.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // Is a snapshot being written or waiting to be? Another one should not be taken then: it would
  // only fill the memory.
  [[nodiscard]] bool busy() const;
  // Waits until it is not; false when `limit` passed first.
  bool AwaitIdle(Duration limit) const;
  void Save(Snapshot snapshot);       // answered by ShardWritten or ShardFailed
  void Write(WriteManifest request);  // answered by ManifestWritten
  // Answered by CheckpointRemoved, when it is gone or pinned.
  void Remove(RemoveCheckpoint request);
  void Sweep(SweepCheckpoints request);  // not answered

 private:
  using Job = std::variant<Snapshot, WriteManifest, RemoveCheckpoint, SweepCheckpoints>;
  void Run();
  void Enqueue(Job job);
  [[nodiscard]] std::optional<Message> Do(const Snapshot& snapshot);
  [[nodiscard]] std::optional<Message> Do(const WriteManifest& request);
  [[nodiscard]] std::optional<Message> Do(const RemoveCheckpoint& request);
  [[nodiscard]] std::optional<Message> Do(const SweepCheckpoints& request);

  const std::unique_ptr<checkpoint::FileSystem> fs_;
  const std::string root_;
  const OnDone done_;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<Job> jobs_;  // guarded by mutex_, like the two below
  int snapshots_ = 0;
  bool stopping_ = false;

  std::vector<std::string> probes_;  // that the last sweep saw; of the saver's thread alone
  std::thread thread_;
};

}  // namespace muster::worker
