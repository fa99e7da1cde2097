// The index of checkpoints: which exist, in what state, in which order they were committed. The
// coordinator owns it; workers never read it, they are told names. One implementation keeps it in
// memory (memory_index.h), one in RocksDB (coordinator/store).
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/ids.h"
#include "protocol/records.h"
#include "protocol/status.h"

namespace muster::checkpoint {

// Confined to one thread. A call that changes something returns ok only once the change is durable,
// as far as the implementation has a disk.
class CheckpointIndex {
 public:
  virtual ~CheckpointIndex() = default;

  // Adds the entry, or replaces state, manifest digest and strikes of the one with the same job and
  // key, which keeps its place in the commit order. The record itself never changes: another record
  // under a known key is kAlreadyExists, and nothing is changed.
  virtual Status Put(const CheckpointEntry& entry) = 0;

  // kNotFound when there is none.
  [[nodiscard]] virtual Result<CheckpointEntry> Get(const JobName& job,
                                                    const CheckpointKey& key) const = 0;

  // All entries of the job in commit order: the order in which they were first put, oldest first.
  // Never by step: after a rollback a later checkpoint has a lower step. Unknown jobs have none.
  [[nodiscard]] virtual Result<std::vector<CheckpointEntry>> List(const JobName& job) const = 0;

  // Forgets the entry; one that is not there is ok. Call it once the files are gone.
  virtual Status Remove(const JobName& job, const CheckpointKey& key) = 0;
};

// Gives the entry another state; kNotFound when there is none.
Status SetState(CheckpointIndex& index, const JobName& job, const CheckpointKey& key,
                CheckpointState state);

// Marks the entry kAnnounced, with the digest of its durable manifest.
Status Announce(CheckpointIndex& index, const JobName& job, const CheckpointKey& key,
                std::uint64_t manifest_digest);

// Counts one failed start from the entry and returns the new number of them.
[[nodiscard]] Result<int> AddStrike(CheckpointIndex& index, const JobName& job,
                                    const CheckpointKey& key);

}  // namespace muster::checkpoint
