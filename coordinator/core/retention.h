// Which checkpoints of a job may go. Pure; the tracker has it carried out by workers.
#pragma once

#include <optional>
#include <vector>

#include "protocol/records.h"

namespace muster::coordinator {

// Those of `entries`, which are in the order of their commits, that are to be removed now, oldest
// first. A checkpoint is good when it is announced, not struck out, and no rollback made it void.
// - The `checkpoint_keep` newest good ones stay. Newest by commit: a job that was rolled back
//   commits lower steps later. What is not good does not count, so the last good one always stays.
// - Good ones of a step above 0 that is a multiple of `checkpoint_keep_every` stay.
// - A good one that was found pinned does not count as kept, and is chosen (it may be unpinned by
//   now) only when enough others are kept.
// - One whose manifest is not known to be durable stays: it is still being committed.
// - `in_use` stays: a generation is being restored from it.
// All others are chosen, those whose removal was cut off among them.
// REQUIRES: checkpoint_keep >= 1
[[nodiscard]] std::vector<CheckpointKey> ChooseRemovals(const JobRecord& record,
                                                        const std::vector<CheckpointEntry>& entries,
                                                        std::optional<CheckpointKey> in_use);

}  // namespace muster::coordinator
