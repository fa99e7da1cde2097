#include "checkpoint/catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "checkpoint/format.h"
#include "checkpoint/reader.h"
#include "checkpoint/retention.h"
#include "checkpoint/shard_file.h"
#include "checkpoint/writer.h"

namespace muster::checkpoint {
namespace {

bool Has(const std::vector<std::string>& sorted_names, std::string_view name) {
  return std::binary_search(sorted_names.begin(), sorted_names.end(), name);
}

Status NoSuchDirectory(const std::string& directory) {
  return InvalidArgument(fmt::format("{} is not the name of a checkpoint's directory", directory));
}

// Of the shard files among these.
std::int64_t BytesOfShards(FileSystem& fs, const std::string& path,
                           const std::vector<std::string>& names) {
  std::int64_t bytes = 0;
  for (const std::string& name : names) {
    if (!ParseShardFileName(name)) continue;
    const Result<std::unique_ptr<ReadableFile>> file = fs.OpenForReading(JoinPath(path, name));
    if (!file.ok()) continue;
    const Result<std::int64_t> size = (*file)->Size();
    if (size.ok()) bytes += *size;
  }
  return bytes;
}

// Puts a record together, header by header, so that no more than one is in memory.
class Assembler {
 public:
  explicit Assembler(std::string path) : path_(std::move(path)) {}

  // The file stands for its rank.
  Status Add(const std::string& name, Rank rank, const FoundShard& found) {
    const ShardHeader& header = found.header;
    if (record_.files.empty()) {
      record_.job = header.job;
      record_.key = header.key;
      record_.lineage = header.lineage;
      record_.world_size = header.world_size;
      record_.directory = DirectoryName(header.key);
    }
    const bool same = header.job == record_.job && header.key == record_.key &&
                      header.lineage == record_.lineage && header.world_size == record_.world_size;
    if (!same || header.rank != rank) {
      return DataLoss(fmt::format(
          "{}: {} is of job {}, step {}, generation {}, rank {} of {}, and the files before it are "
          "of job {}, step {}, generation {}, {} ranks",
          path_, name, header.job, header.key.step.value(), header.key.generation.value(),
          header.rank.value(), header.world_size, record_.job, record_.key.step.value(),
          record_.key.generation.value(), record_.world_size));
    }
    FileRecord file{name, found.bytes, found.header_digest, rank, {}};
    for (const StoredTensor& part : header.tensors) {
      MUSTER_RETURN_IF_ERROR(AddTensor(name, part.index, part.spec));
      if (part.spec.cut_dimension == kListed && !part.box.empty()) {
        file.listed.push_back({static_cast<std::int64_t>(part.index), part.box});
      }
    }
    // By tensor, and the boxes of each in the order of the data: that is how they were listed.
    std::stable_sort(file.listed.begin(), file.listed.end(),
                     [](const ListedBox& a, const ListedBox& b) { return a.tensor < b.tensor; });
    aliases_.insert(aliases_.end(), header.aliases.begin(), header.aliases.end());
    record_.bytes += file.bytes;
    record_.files.push_back(std::move(file));
    return {};
  }

  // After the files of all ranks, in their order.
  Result<CheckpointRecord> Finish() && {
    MUSTER_RETURN_IF_ERROR(AddAliases());
    for (auto& [index, spec] : tensors_) {
      if (index != record_.tensors.size()) {
        return DataLoss(
            fmt::format("{}: no file has tensor {} of the job", path_, record_.tensors.size()));
      }
      record_.tensors.push_back(std::move(spec));
    }
    if (const Status status = CheckRecord(record_); !status.ok()) {
      return DataLoss(
          fmt::format("{}: its files make up no checkpoint: {}", path_, status.message()));
    }
    return std::move(record_);
  }

  // Known after the first file.
  [[nodiscard]] std::int32_t world_size() const { return record_.world_size; }

 private:
  Status AddTensor(const std::string& file, std::size_t index, const TensorSpec& spec) {
    const auto [known, added] = tensors_.try_emplace(index, spec);
    if (added || known->second == spec) return {};
    return DataLoss(fmt::format("{}: {} has tensor {} as number {}, where another file has {}",
                                path_, file, spec.name, index, known->second.name));
  }
  Status AddAliases() {
    std::map<std::string_view, const TensorSpec*> by_name;
    for (const auto& [index, spec] : tensors_) by_name.emplace(spec.name, &spec);
    for (const StoredAlias& alias : aliases_) {
      const auto of = by_name.find(alias.of);
      if (of == by_name.end()) {
        return DataLoss(fmt::format("{}: tensor {} is an alias of {}, which no file has", path_,
                                    alias.name, alias.of));
      }
      TensorSpec spec = *of->second;
      spec.name = alias.name;
      spec.alias_of = alias.of;
      spec.cut_dimension = alias.cut_dimension;
      MUSTER_RETURN_IF_ERROR(AddTensor(record_.files.front().name, alias.index, spec));
    }
    return {};
  }

  const std::string path_;
  CheckpointRecord record_;
  std::map<std::size_t, TensorSpec> tensors_;  // by index in the job's list
  std::vector<StoredAlias> aliases_;
};

// Of each rank the attempts that left a file, the last one first.
std::map<Rank, std::vector<std::string>> FilesByRank(const std::vector<std::string>& names) {
  std::map<Rank, std::map<int, std::string, std::greater<>>> attempts;
  for (const std::string& name : names) {
    const std::optional<ShardName> parsed = ParseShardFileName(name);
    if (parsed) attempts[parsed->rank].emplace(parsed->attempt, name);
  }
  std::map<Rank, std::vector<std::string>> files;
  for (const auto& [rank, by_attempt] : attempts) {
    for (const auto& [attempt, name] : by_attempt) files[rank].push_back(name);
  }
  return files;
}

// Adds the first of the rank's files that is whole.
Status AddWhole(FileSystem& fs, const std::string& path, Rank rank,
                const std::vector<std::string>& names, Assembler* assembler) {
  Status problem;
  for (const std::string& name : names) {
    const Result<FoundShard> found = ReadShardHeader(fs, JoinPath(path, name));
    if (found.ok()) return assembler->Add(name, rank, *found);
    // A file whose header was never written is what a save that died leaves; anything else than
    // that is for the operator to see to.
    if (found.status().code() != Code::kDataLoss) return found.status();
    if (problem.ok()) problem = found.status();
  }
  return NotFound(fmt::format("no whole file of rank {}: {}", rank.value(), problem.message()));
}

}  // namespace

Result<CatalogEntry> LookAt(FileSystem& fs, const std::string& root, const std::string& directory) {
  const std::optional<CheckpointKey> key = ParseDirectoryName(directory);
  if (!key) return NoSuchDirectory(directory);
  const std::string path = JoinPath(root, directory);
  const Result<std::vector<std::string>> names = fs.List(path);
  if (!names.ok()) return names.status();
  CatalogEntry entry{directory, *key, ReadManifest(fs, root, directory), 0,
                     Has(*names, kPinnedName)};
  if (!entry.manifest.ok()) {
    entry.bytes = BytesOfShards(fs, path, *names);
    return entry;
  }
  const CheckpointRecord& record = entry.manifest->record;
  entry.bytes = record.bytes;
  const auto missing =
      std::find_if(record.files.begin(), record.files.end(),
                   [&](const FileRecord& file) { return !Has(*names, file.name); });
  if (missing != record.files.end()) {
    entry.manifest = DataLoss(fmt::format("{} is missing", JoinPath(path, missing->name)));
  }
  return entry;
}

Result<std::vector<CatalogEntry>> ListCheckpoints(FileSystem& fs, const std::string& root) {
  const Result<std::vector<std::string>> names = fs.List(root);
  if (!names.ok()) return names.status();
  std::vector<CatalogEntry> entries;
  for (const std::string& name : *names) {
    if (!ParseDirectoryName(name)) continue;
    Result<CatalogEntry> entry = LookAt(fs, root, name);
    if (entry.status().code() == Code::kNotFound) continue;
    if (!entry.ok()) return entry.status();
    entries.push_back(std::move(*entry));
  }
  std::sort(entries.begin(), entries.end(), [](const CatalogEntry& a, const CatalogEntry& b) {
    return CommittedBefore(a.key, b.key);
  });
  return entries;
}

Status SetPinned(FileSystem& fs, const std::string& root, const std::string& directory,
                 bool pinned) {
  if (!ParseDirectoryName(directory)) return NoSuchDirectory(directory);
  const std::string path = JoinPath(root, directory);
  const std::string pin = JoinPath(path, std::string(kPinnedName));
  const Result<std::vector<std::string>> names = fs.List(path);
  if (!names.ok()) return names.status();
  if (Has(*names, kPinnedName) != pinned) {
    if (pinned) {
      const Result<std::unique_ptr<WritableFile>> file = fs.CreateExclusively(pin);
      if (!file.ok()) return file.status();
      MUSTER_RETURN_IF_ERROR((*file)->Sync());
      MUSTER_RETURN_IF_ERROR((*file)->Close());
    } else {
      MUSTER_RETURN_IF_ERROR(fs.Unlink(pin));
    }
  }
  // Also when somebody else did it: that may not be durable yet.
  return fs.SyncDirectory(path);
}

Result<CheckpointRecord> AssembleRecord(FileSystem& fs, const std::string& root,
                                        const std::string& directory) {
  const std::optional<CheckpointKey> key = ParseDirectoryName(directory);
  if (!key) return NoSuchDirectory(directory);
  const std::string path = JoinPath(root, directory);
  const Result<std::vector<std::string>> names = fs.List(path);
  if (!names.ok()) return names.status();
  const std::map<Rank, std::vector<std::string>> files = FilesByRank(*names);
  Assembler assembler(path);
  std::int32_t next = 0;
  for (const auto& [rank, attempts] : files) {
    if (rank != Rank(next)) break;
    MUSTER_RETURN_IF_ERROR(AddWhole(fs, path, rank, attempts, &assembler));
    ++next;
  }
  if (next == 0 || next < assembler.world_size()) {
    return NotFound(fmt::format("{}: no file of rank {}{}: the save was never finished", path, next,
                                next == 0 ? "" : fmt::format(" of {}", assembler.world_size())));
  }
  Result<CheckpointRecord> record = std::move(assembler).Finish();
  if (record.ok() && record->key != *key) {
    return DataLoss(fmt::format("{}: its files are those of {}", path, record->directory));
  }
  return record;
}

Result<std::uint64_t> RebuildManifest(FileSystem& fs, const std::string& root,
                                      const std::string& directory, const RebuildOptions& options) {
  const Result<Manifest> manifest = ReadManifest(fs, root, directory);
  const Code code = manifest.status().code();
  // A manifest of another version is no damaged one.
  if (manifest.ok() || code == Code::kFailedPrecondition) {
    return AlreadyExists(fmt::format("{} has a manifest{}", JoinPath(root, directory),
                                     manifest.ok() ? "" : ": " + manifest.status().message()));
  }
  if (code != Code::kNotFound && code != Code::kDataLoss) return manifest.status();
  const Result<CheckpointRecord> record = AssembleRecord(fs, root, directory);
  if (!record.ok()) return record.status();
  if (options.found) options.found(*record);
  ReadOptions read;
  read.pool = options.pool;
  read.progress = options.progress;
  MUSTER_RETURN_IF_ERROR(VerifyCheckpoint(fs, root, *record, read));
  if (options.write) return WriteManifest(fs, root, *record);
  const Result<std::string> text = EncodeManifest(*record);
  if (!text.ok()) return text.status();
  const Result<Manifest> would_be = DecodeManifest(*text);
  if (!would_be.ok()) return would_be.status();
  return would_be->digest;
}

}  // namespace muster::checkpoint
