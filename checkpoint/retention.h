// How a checkpoint goes. Which ones may go is the coordinator's to decide (coordinator/core).
#pragma once

#include <string>
#include <string_view>

#include "checkpoint/file_system.h"
#include "protocol/status.h"

namespace muster::checkpoint {

// An operator keeps a checkpoint by a file of this name in its directory, whatever its content, and
// lets it go by removing that file. No coordinator has to run for it. A pin that is set while the
// removal is under way comes too late.
inline constexpr std::string_view kPinnedName = "PINNED";

// Removes the checkpoint's directory: the manifest first, durably, so that what is left can never
// be taken for a checkpoint; then the files and the directory. What is not there is ok, so it can
// be called again after any failure, and by several processes at once. kInvalidArgument for a name
// that is not that of a checkpoint's directory; kFailedPrecondition when it is pinned, and nothing
// has been touched then. Blocks.
Status RemoveCheckpoint(FileSystem& fs, const std::string& root, const std::string& directory);

}  // namespace muster::checkpoint
