// What a checkpoint directory tells of a job whose index was lost.
#pragma once

#include <optional>
#include <string>

#include "checkpoint/file_system.h"
#include "protocol/ids.h"
#include "protocol/messages.h"
#include "protocol/status.h"

namespace muster::checkpoint {

// The kMaxFound newest checkpoints of `job` below `root` whose manifest is whole, oldest first by
// (generation, step), and the greatest generation that any directory there is named after; nothing
// when there is none. A missing or damaged manifest, or one of another job, is passed over; shards
// are not looked at. What cannot be read at all (no permission, another
// format) is an error when nothing newer can be: who went on without it might start a job over that
// lies there. Reads a bounded number of manifests, however many there are. Blocks.
[[nodiscard]] Result<std::optional<Found>> DiscoverCheckpoints(FileSystem& fs,
                                                               const std::string& root,
                                                               const JobName& job);

}  // namespace muster::checkpoint
