#include "coordinator/core/restore_plan.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "coordinator/core/durable_state.h"
#include "protocol/mutants.h"

namespace muster::coordinator {

namespace {

// The first rank of the broken generation that held a box which no holder has.
std::optional<Rank> FirstLostShard(const RestoreView& view) {
  const std::int32_t world = view.broken->world_size();
  const std::set<Rank> held(view.holders.begin(), view.holders.end());
  for (std::int32_t r = 0; r < world; ++r) {
    if (held.contains(Rank(r))) continue;
    for (const TensorSpec& tensor : *view.tensors) {
      if (tensor.sharded() && !BoxesOf(tensor, r, world).empty()) return Rank(r);
    }
  }
  return std::nullopt;
}

}  // namespace

const CheckpointEntry* NewestUsable(const std::vector<CheckpointEntry>& checkpoints,
                                    const JobRecord& record) {
  const bool any_lineage =
      Planted(Mutant::kLateCommitAnyLineage) || Planted(Mutant::kVolatileStrikes);
  const CheckpointEntry* best = nullptr;
  for (const CheckpointEntry& entry : checkpoints) {
    if (entry.state != CheckpointState::kAnnounced || entry.strikes >= kDamagedStrikes ||
        (!any_lineage && IsVoid(record, entry.record.key))) {
      continue;
    }
    // (generation, step) order is the order of the lineage; step alone is not, after a rollback.
    const auto order = [&](const CheckpointEntry& e) {
      const int failed = e.strikes < kCheckpointStrikes ? 0 : e.strikes;
      return std::tuple(-failed, any_lineage ? Generation() : e.record.key.generation,
                        e.record.key.step);
    };
    if (best == nullptr || order(*best) < order(entry)) best = &entry;
  }
  return best;
}

RestoreDecision PlanRestore(const RestoreView& view) {
  RestoreDecision decision;
  if (view.broken != nullptr && !view.holders.empty()) {
    decision.lost = FirstLostShard(view);
    if (!decision.lost) {
      decision.reason = RestoreReason::kHoldersCoverAll;
      decision.restore.source = RestoreSource::kLive;
      decision.restore.step = view.committed;
      decision.restore.base = view.broken->generation;
      decision.restore.base_world_size = view.broken->world_size();
      return decision;
    }
    decision.reason = RestoreReason::kShardLost;
  } else if (view.broken != nullptr) {
    decision.reason = RestoreReason::kNoHolder;
  }
  if (const CheckpointEntry* entry = NewestUsable(*view.checkpoints, *view.record)) {
    decision.restore.source = RestoreSource::kCheckpoint;
    decision.restore.step = entry->record.key.step;
    decision.restore.checkpoint = entry->record.key;
    decision.restore.directory = entry->record.directory;
    decision.restore.manifest_digest = entry->manifest_digest;
    if (Planted(Mutant::kRestoreNewestAsDecided)) {
      decision.restore.step = view.committed;
      return decision;
    }
  } else if (view.broken != nullptr) {
    decision.reason = RestoreReason::kNothingLeft;
  }
  // Without a broken generation too: one that was adopted may have meant to go on from a checkpoint
  // that turns out bad.
  if (view.broken != nullptr || decision.restore.step < view.committed) {
    decision.rollback = true;
    decision.steps_redone =
        std::max<std::int64_t>(0, view.committed.value() - decision.restore.step.value());
  }
  return decision;
}

}  // namespace muster::coordinator
