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

// No coordinator counts so far: such a name is somebody's mistake.
constexpr std::int64_t kTooHigh = std::int64_t{1} << 40U;

}  // namespace

Result<std::optional<Found>> DiscoverCheckpoints(FileSystem& fs, const std::string& root,
                                                 const JobName& job) {
  const Result<std::vector<std::string>> names = fs.List(root);
  if (!names.ok()) return names.status();
  std::vector<CheckpointKey> keys;
  for (const std::string& name : *names) {
    const std::optional<CheckpointKey> key = ParseDirectoryName(name);
    if (key && key->generation.value() < kTooHigh) keys.push_back(*key);
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
    // Older than one that can be read, it is not needed; otherwise somebody has to look at it.
    if (!manifest.ok() && !found.checkpoints.empty()) break;
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
