// Which checkpoints may go, and how they go.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "protocol/records.h"
#include "protocol/status.h"

namespace muster::checkpoint {

// Which of a job's checkpoints to delete, oldest first, when the `keep` newest good ones are to
// stay. `entries` are in commit order, as CheckpointIndex::List gives them; good means announced.
// `pinned` ones stay too: those being read, and those that somebody asked for. Void ones go at once
// (unless pinned), and complete ones that are not announced yet are left alone: they are still
// being committed. What is already being deleted is chosen again, so that an interrupted deletion
// goes on. While nothing is announced, nothing announced can be lost; the newest announced one is
// never chosen. Pure. REQUIRES: keep >= 1
[[nodiscard]] std::vector<CheckpointKey> ChooseDeletions(std::span<const CheckpointEntry> entries,
                                                         std::int64_t keep,
                                                         std::span<const CheckpointKey> pinned);

// Removes the checkpoint's directory: the manifest first, durably, so that what is left can never
// be taken for a checkpoint; then the files and the directory. What is not there is ok, so it can
// be called again after any failure, and by several processes at once. kInvalidArgument for a name
// that is not that of a checkpoint's directory. Blocks.
Status RemoveCheckpoint(FileSystem& fs, const std::string& root, const std::string& directory);

}  // namespace muster::checkpoint
