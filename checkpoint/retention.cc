#include "checkpoint/retention.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/format.h"
#include "protocol/check.h"

namespace muster::checkpoint {
namespace {

// Somebody else may have removed it, or be removing it now.
Status OkIfGone(const Status& status) {
  return status.code() == Code::kNotFound ? Status() : status;
}

}  // namespace

std::vector<CheckpointKey> ChooseDeletions(std::span<const CheckpointEntry> entries,
                                           std::int64_t keep,
                                           std::span<const CheckpointKey> pinned) {
  MUSTER_CHECK(keep >= 1, "at least one checkpoint is kept");
  std::vector<CheckpointKey> chosen;
  std::int64_t kept = 0;
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    const CheckpointKey& key = entry->record.key;
    switch (entry->state) {
      case CheckpointState::kComplete: continue;
      case CheckpointState::kAnnounced:
        if (++kept <= keep) continue;
        break;
      case CheckpointState::kVoid:
      case CheckpointState::kDeleting: break;
    }
    if (std::find(pinned.begin(), pinned.end(), key) == pinned.end()) chosen.push_back(key);
  }
  std::reverse(chosen.begin(), chosen.end());
  return chosen;
}

Status RemoveCheckpoint(FileSystem& fs, const std::string& root, const std::string& directory) {
  if (!ParseDirectoryName(directory)) {
    return InvalidArgument(
        fmt::format("{} is not the name of a checkpoint's directory: it is left "
                    "alone",
                    directory));
  }
  const std::string path = JoinPath(root, directory);
  const Result<std::vector<std::string>> names = fs.List(path);
  if (!names.ok()) return OkIfGone(names.status());
  const std::string manifest(kManifestName);
  MUSTER_RETURN_IF_ERROR(OkIfGone(fs.Unlink(JoinPath(path, manifest))));
  MUSTER_RETURN_IF_ERROR(OkIfGone(fs.SyncDirectory(path)));
  for (const std::string& name : *names) {
    if (name != manifest) MUSTER_RETURN_IF_ERROR(OkIfGone(fs.Unlink(JoinPath(path, name))));
  }
  MUSTER_RETURN_IF_ERROR(OkIfGone(fs.RemoveDirectory(path)));
  return fs.SyncDirectory(root);
}

}  // namespace muster::checkpoint
