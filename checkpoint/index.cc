#include "checkpoint/index.h"

namespace muster::checkpoint {

Status SetState(CheckpointIndex& index, const JobName& job, const CheckpointKey& key,
                CheckpointState state) {
  Result<CheckpointEntry> entry = index.Get(job, key);
  if (!entry.ok()) return entry.status();
  entry->state = state;
  return index.Put(*entry);
}

Status Announce(CheckpointIndex& index, const JobName& job, const CheckpointKey& key,
                std::uint64_t manifest_digest) {
  Result<CheckpointEntry> entry = index.Get(job, key);
  if (!entry.ok()) return entry.status();
  entry->state = CheckpointState::kAnnounced;
  entry->manifest_digest = manifest_digest;
  return index.Put(*entry);
}

Result<int> AddStrike(CheckpointIndex& index, const JobName& job, const CheckpointKey& key) {
  Result<CheckpointEntry> entry = index.Get(job, key);
  if (!entry.ok()) return entry.status();
  ++entry->strikes;
  MUSTER_RETURN_IF_ERROR(index.Put(*entry));
  return entry->strikes;
}

}  // namespace muster::checkpoint
