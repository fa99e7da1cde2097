#include "checkpoint/discover.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "checkpoint/format.h"
#include "checkpoint/reader.h"
#include "protocol/limits.h"

namespace muster::checkpoint {
namespace {

// Directories without a usable manifest are looked at too.
constexpr std::size_t kMaxRead = 8 * kMaxFound;

}  // namespace

Result<std::optional<Found>> DiscoverCheckpoints(FileSystem& fs, const std::string& root,
                                                 const JobName& job) {
  const Result<std::vector<std::string>> names = fs.List(root);
  if (!names.ok()) return names.status();
  std::vector<CheckpointKey> keys;
  for (const std::string& name : *names) {
    if (const std::optional<CheckpointKey> key = ParseDirectoryName(name)) keys.push_back(*key);
  }
  if (keys.empty()) return std::optional<Found>();
  std::sort(keys.rbegin(), keys.rend(), CommittedBefore);
  Found found;
  found.highest = keys.front().generation;
  if (keys.size() > kMaxRead) keys.resize(kMaxRead);
  for (const CheckpointKey& key : keys) {
    if (found.checkpoints.size() == kMaxFound) break;
    const Result<Manifest> manifest = ReadManifest(fs, root, DirectoryName(key));
    const Code code = manifest.status().code();
    if (code == Code::kNotFound || code == Code::kDataLoss) continue;
    if (!manifest.ok()) return manifest.status();
    const CheckpointRecord& record = manifest->record;
    if (record.job != job.value() || record.key != key) continue;
    found.checkpoints.push_back(
        {key, record.lineage, record.world_size, manifest->digest, record.bytes});
  }
  std::reverse(found.checkpoints.begin(), found.checkpoints.end());
  return std::optional<Found>(std::move(found));
}

}  // namespace muster::checkpoint
