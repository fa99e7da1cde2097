#include "coordinator/core/retention.h"

#include <algorithm>

#include "coordinator/core/durable_state.h"
#include "protocol/mutants.h"

namespace muster::coordinator {

namespace {

bool IsGood(const JobRecord& record, const CheckpointEntry& entry) {
  const bool announced = entry.state == CheckpointState::kAnnounced;
  if (Planted(Mutant::kRetentionCountsVoid) &&
      (announced || entry.state == CheckpointState::kVoid)) {
    return true;
  }
  if (Planted(Mutant::kRetentionAtCommit) && entry.state == CheckpointState::kComplete) return true;
  return announced && entry.strikes < kCheckpointStrikes && !IsVoid(record, entry.record.key);
}

}  // namespace

std::vector<CheckpointKey> ChooseRemovals(const JobRecord& record,
                                          const std::vector<CheckpointEntry>& entries,
                                          std::optional<CheckpointKey> in_use) {
  const JobSpec& spec = record.spec;
  std::vector<CheckpointKey> chosen;
  std::int32_t kept = 0;
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    const CheckpointKey& key = entry->record.key;
    if (IsGood(record, *entry)) {
      const bool enough = kept >= spec.checkpoint_keep;
      if (!entry->pinned) ++kept;
      const bool milestone = spec.checkpoint_keep_every > 0 && key.step > Step() &&
                             key.step.value() % spec.checkpoint_keep_every == 0;
      if (!enough || milestone) continue;
    }
    if (entry->state == CheckpointState::kComplete || in_use == key) continue;
    chosen.push_back(key);
  }
  std::ranges::reverse(chosen);
  return chosen;
}

}  // namespace muster::coordinator
