#include "checkpoint/sweep.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "checkpoint/format.h"
#include "checkpoint/reader.h"
#include "checkpoint/retention.h"

namespace muster::checkpoint {
namespace {

constexpr std::string_view kProbePrefix = ".muster-probe-";
constexpr std::string_view kTemporarySuffix = ".tmp";

// "manifest.json.00.tmp"
bool IsTemporaryManifest(std::string_view name) {
  return name.starts_with(kManifestName) && name.ends_with(kTemporarySuffix) &&
         name.size() == kManifestName.size() + 3 + kTemporarySuffix.size();
}

bool IsStale(const CheckpointKey& key, const SweepRule& rule) {
  return key.generation < rule.generation ||
         (key.generation == rule.generation && key.step < rule.step);
}

class Sweeper {
 public:
  Sweeper(FileSystem& fs, const std::string& root) : fs_(fs), root_(root) {}

  void Probe(const std::string& name, const SweepRule& rule) {
    const bool seen = std::find(rule.probes.begin(), rule.probes.end(), name) != rule.probes.end();
    if (seen) {
      Remove(JoinPath(root_, name));
    } else {
      report_.probes.push_back(name);
    }
  }

  void Directory(const std::string& name, bool known) {
    const std::string path = JoinPath(root_, name);
    const Result<std::vector<std::string>> names = fs_.List(path);
    if (!names.ok()) return Note(names.status());
    const bool manifest = std::find(names->begin(), names->end(), kManifestName) != names->end();
    if (manifest) return Announced(name, *names);
    const bool ours = std::all_of(names->begin(), names->end(), [](const std::string& file) {
      return ParseShardFileName(file) || IsTemporaryManifest(file);
    });
    if (known || !ours) return;
    for (const std::string& file : *names) Remove(JoinPath(path, file));
    const Status status = fs_.RemoveDirectory(path);
    Note(status);
    if (status.ok()) ++report_.directories;
  }

  Result<SweepReport> Finish() {
    if (report_.directories > 0) Note(fs_.SyncDirectory(root_));
    if (!status_.ok()) return status_;
    return std::move(report_);
  }

 private:
  // The manifest is read only when there is something that it might not name.
  void Announced(const std::string& directory, const std::vector<std::string>& names) {
    std::map<Rank, int> shards;
    for (const std::string& name : names) {
      if (IsTemporaryManifest(name)) Remove(JoinPath(JoinPath(root_, directory), name));
      if (const std::optional<ShardName> shard = ParseShardFileName(name)) ++shards[shard->rank];
    }
    const bool twice =
        std::any_of(shards.begin(), shards.end(), [](const auto& one) { return one.second > 1; });
    if (!twice) return;
    const Result<Manifest> manifest = ReadManifest(fs_, root_, directory);
    // A damaged one says nothing about what may go.
    if (!manifest.ok() || manifest->record.directory != directory) return;
    std::set<std::string> named;
    for (const FileRecord& file : manifest->record.files) named.insert(file.name);
    for (const std::string& name : names) {
      if (ParseShardFileName(name) && !named.contains(name)) {
        Remove(JoinPath(JoinPath(root_, directory), name));
      }
    }
  }

  void Remove(const std::string& path) {
    const Status status = fs_.Unlink(path);
    Note(status);
    if (status.ok()) ++report_.files;
  }
  // Somebody else may have removed it, or be removing it now.
  void Note(const Status& status) {
    if (status_.ok() && status.code() != Code::kNotFound) status_ = status;
  }

  FileSystem& fs_;
  const std::string& root_;
  SweepReport report_;
  Status status_;
};

}  // namespace

Result<SweepReport> SweepLeftovers(FileSystem& fs, const std::string& root, const SweepRule& rule) {
  const Result<std::vector<std::string>> names = fs.List(root);
  if (!names.ok()) return names.status();
  const std::set<CheckpointKey> known(rule.known.begin(), rule.known.end());
  Sweeper sweeper(fs, root);
  for (const std::string& name : *names) {
    if (name.starts_with(kProbePrefix)) sweeper.Probe(name, rule);
    const std::optional<CheckpointKey> key = ParseDirectoryName(name);
    if (key && IsStale(*key, rule)) sweeper.Directory(name, known.contains(*key));
  }
  return sweeper.Finish();
}

}  // namespace muster::checkpoint
