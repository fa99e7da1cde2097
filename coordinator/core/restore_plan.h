// The restore ladder: the greatest step for which every box of every tensor has a source. Live
// memory first, then announced checkpoints, newest first, then the initial state.
#pragma once

#include <optional>
#include <vector>

#include "protocol/records.h"

namespace muster::coordinator {

struct RestoreView {
  Step committed;                            // after the open step was decided
  const GenerationRecord* broken = nullptr;  // the last started generation; null for the first one
  std::vector<Rank> holders;  // its ranks whose live memory is the state at `committed`
  const std::vector<TensorSpec>* tensors = nullptr;
  const std::vector<CheckpointEntry>* checkpoints = nullptr;  // in the order of commit
  const JobRecord* record = nullptr;                          // for what rollbacks made void
};

enum class RestoreReason {
  kFirstGeneration,
  kHoldersCoverAll,  // live memory of survivors has every box
  kShardLost,        // the box of a lost rank is in no live memory: the newest checkpoint
  kNoHolder,         // no survivor holds state: the newest checkpoint
  kNothingLeft,      // neither memory nor checkpoint: the initial state
};

struct RestoreDecision {
  Restore restore;
  RestoreReason reason = RestoreReason::kFirstGeneration;
  std::optional<Rank> lost;  // kShardLost: the first rank whose box is nowhere
  bool rollback = false;     // the restored step lies below `committed`, or that is unknown
  std::int64_t steps_redone = 0;
};

[[nodiscard]] RestoreDecision PlanRestore(const RestoreView& view);

// The newest announced checkpoint that no rollback made void and that is not struck out, or
// nullptr. One in quarantine comes after all others, the one with the fewest failed starts first:
// whatever makes starts fail (storage that is away) must not make the job begin anew.
[[nodiscard]] const CheckpointEntry* NewestUsable(const std::vector<CheckpointEntry>& checkpoints,
                                                  const JobRecord& record);

}  // namespace muster::coordinator
