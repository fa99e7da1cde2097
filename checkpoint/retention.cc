#include "checkpoint/retention.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/format.h"

namespace muster::checkpoint {
namespace {

// Somebody else may have removed it, or be removing it now.
Status OkIfGone(const Status& status) {
  return status.code() == Code::kNotFound ? Status() : status;
}

}  // namespace

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
  if (std::find(names->begin(), names->end(), kPinnedName) != names->end()) {
    return FailedPrecondition(
        fmt::format("checkpoint {} is pinned: remove the file {} in it to "
                    "let it go",
                    path, kPinnedName));
  }
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
