#include "checkpoint/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "checkpoint/digest.h"
#include "checkpoint/format.h"
#include "checkpoint/manifest.h"
#include "checkpoint/shard_header.h"

namespace muster::checkpoint {
namespace {

// A file that did not exist before, and its name.
struct FreshFile {
  std::string name;
  std::string path;
  std::unique_ptr<WritableFile> file;
};

// Creates the first of the names for attempt 0, 1, … that is free in the directory.
Result<FreshFile> CreateFresh(FileSystem& fs, const std::string& directory,
                              const std::function<std::string(int)>& name_of) {
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    const std::string name = name_of(attempt);
    const std::string path = JoinPath(directory, name);
    Result<std::unique_ptr<WritableFile>> file = fs.CreateExclusively(path);
    if (file.ok()) return FreshFile{name, path, std::move(*file)};
    if (file.status().code() != Code::kAlreadyExists) return file.status();
  }
  return ResourceExhausted(
      fmt::format("{}: {} and all {} names after it are taken by abandoned "
                  "files: remove them",
                  directory, name_of(0), kMaxAttempts - 1));
}

// Runs `fill`, syncs and closes the file; removes it when any of this fails.
Status FillOrRemove(FileSystem& fs, FreshFile& fresh,
                    const std::function<Status(WritableFile&)>& fill) {
  Status status = fill(*fresh.file);
  if (status.ok()) status = fresh.file->Sync();
  if (status.ok()) status = fresh.file->Close();
  if (status.ok()) return status;
  fresh.file.reset();
  // The file is worthless, and so is an error about not getting rid of it.
  static_cast<void>(fs.Unlink(fresh.path));
  return status;
}

Status MissingRoot(const std::string& root) {
  return NotFound(
      fmt::format("checkpoint directory {} does not exist: create it (or mount its file "
                  "system), or name another one",
                  root));
}

// The directory that holds `path`.
std::string ParentOf(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Makes the directory, durably. Another rank may have made it before.
Status MakeStepDirectory(FileSystem& fs, const std::string& root, const std::string& path) {
  const Status made = fs.MakeDirectory(path);
  if (made.code() == Code::kNotFound) return MissingRoot(root);
  if (!made.ok() && made.code() != Code::kAlreadyExists) return made;
  // Also when the other rank made it: it may not have come to this line yet.
  return fs.SyncDirectory(root);
}

Status CheckSpace(FileSystem& fs, const std::string& root, std::int64_t bytes) {
  const Result<std::int64_t> free = fs.FreeBytes(root);
  if (free.status().code() == Code::kNotFound) return MissingRoot(root);
  if (!free.ok()) return free.status();
  if (*free >= bytes) return {};
  return ResourceExhausted(
      fmt::format("checkpoint directory {} has {} bytes free, and this shard "
                  "needs {}: free space there, or keep fewer checkpoints",
                  root, *free, bytes));
}

// Cuts a stream of bytes into blocks, writes each one and remembers its digest.
class BlockWriter {
 public:
  // Writes to `file` from `offset` on; `file` must outlive this.
  BlockWriter(WritableFile& file, std::int64_t offset) : file_(file), offset_(offset) {
    block_.reserve(static_cast<std::size_t>(kBlockBytes));
  }
  Status Append(TensorBytes bytes) {
    while (!bytes.empty()) {
      const std::size_t room = static_cast<std::size_t>(kBlockBytes) - block_.size();
      const TensorBytes piece = bytes.first(std::min(room, bytes.size()));
      block_.insert(block_.end(), piece.begin(), piece.end());
      bytes = bytes.subspan(piece.size());
      if (std::ssize(block_) == kBlockBytes) MUSTER_RETURN_IF_ERROR(Flush());
    }
    return {};
  }
  // Writes the last, shorter block.
  Status Flush() {
    if (block_.empty()) return {};
    MUSTER_RETURN_IF_ERROR(file_.WriteAt(offset_, block_));
    digests_.push_back(DigestOf(block_));
    offset_ += std::ssize(block_);
    block_.clear();
    return {};
  }
  [[nodiscard]] std::vector<std::uint64_t> TakeDigests() { return std::move(digests_); }

 private:
  WritableFile& file_;
  std::int64_t offset_;
  std::vector<std::byte> block_;
  std::vector<std::uint64_t> digests_;
};

Status CheckPlan(const ShardPlan& plan, std::span<const TensorBytes> bytes) {
  if (plan.key.step.value() < 0 || plan.key.generation.value() < 0) {
    return InvalidArgument("a checkpoint's step and generation are 0 or more");
  }
  if (plan.world_size < 1 || plan.world_size > kMaxWorldSize || plan.rank.value() < 0 ||
      plan.rank.value() >= plan.world_size) {
    return InvalidArgument(
        fmt::format("there is no rank {} of {}", plan.rank.value(), plan.world_size));
  }
  MUSTER_RETURN_IF_ERROR(CheckTensors(plan.tensors));
  if (bytes.size() != plan.tensors.size()) {
    return InvalidArgument(
        fmt::format("bytes of {} tensors are given for {}", bytes.size(), plan.tensors.size()));
  }
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const Box box = StoredBoxOf(plan.tensors[i], plan.rank.value(), plan.world_size);
    const std::int64_t expected = ByteCount(plan.tensors[i], box);
    if (std::ssize(bytes[i]) != expected) {
      return InvalidArgument(
          fmt::format("tensor {}: rank {} of {} stores the box {} of {} bytes, and {} are given",
                      plan.tensors[i].name, plan.rank.value(), plan.world_size, box.ToString(),
                      expected, bytes[i].size()));
    }
  }
  return {};
}

// Data first and the header last: until then the file starts with zeros, which no reader takes for
// a safetensors file.
Status FillShard(WritableFile& file, std::span<const TensorBytes> bytes, std::int64_t data_start,
                 ShardHeader* header, std::uint64_t* header_digest) {
  BlockWriter blocks(file, data_start);
  for (const StoredTensor& tensor : header->tensors) {
    MUSTER_RETURN_IF_ERROR(blocks.Append(bytes[tensor.index]));
  }
  MUSTER_RETURN_IF_ERROR(blocks.Flush());
  header->block_digests = blocks.TakeDigests();
  const Result<std::string> prefix = EncodeShardHeader(*header);
  if (!prefix.ok()) return prefix.status();
  MUSTER_CHECK(std::ssize(*prefix) == data_start, "the digests' values do not change the length");
  *header_digest = DigestOf(*prefix);
  return file.WriteAt(0, std::as_bytes(std::span(*prefix)));
}

}  // namespace

Status CheckRoot(FileSystem& fs, const std::string& root) {
  const Status made = fs.MakeDirectory(root);
  if (made.code() == Code::kNotFound) {
    return NotFound(
        fmt::format("checkpoint directory {} does not exist, and neither does its parent: create "
                    "it (or mount its file system), or name another one",
                    root));
  }
  if (!made.ok() && made.code() != Code::kAlreadyExists) return made;
  const Status synced = fs.SyncDirectory(ParentOf(root));
  // A directory that was there may have a parent that this user cannot open, and needs no sync.
  if (made.ok()) MUSTER_RETURN_IF_ERROR(synced);
  Result<FreshFile> probe = CreateFresh(
      fs, root, [](int attempt) { return fmt::format(".muster-probe-{:02}", attempt); });
  if (!probe.ok()) return probe.status();
  MUSTER_RETURN_IF_ERROR(FillOrRemove(fs, *probe, [](WritableFile& file) {
    return file.WriteAt(0, std::as_bytes(std::span("muster")));
  }));
  const Status removed = fs.Unlink(probe->path);
  return removed.code() == Code::kNotFound ? Status() : removed;  // swept by another process
}

Result<FileRecord> WriteShard(FileSystem& fs, const std::string& root, const ShardPlan& plan,
                              std::span<const TensorBytes> bytes) {
  MUSTER_RETURN_IF_ERROR(CheckPlan(plan, bytes));
  Result<std::vector<StoredTensor>> layout = LayoutOf(plan.tensors, plan.rank, plan.world_size);
  if (!layout.ok()) return layout.status();
  ShardHeader header;
  header.job = plan.job;
  header.key = plan.key;
  header.lineage = plan.lineage;
  header.rank = plan.rank;
  header.world_size = plan.world_size;
  header.tensors = *std::move(layout);
  header.block_digests.resize(static_cast<std::size_t>(BlockCount(header.data_bytes())));
  const Result<std::string> blank = EncodeShardHeader(header);
  if (!blank.ok()) return blank.status();
  const std::int64_t data_start = std::ssize(*blank);

  FileRecord record;
  record.rank = plan.rank;
  if (__builtin_add_overflow(data_start, header.data_bytes(), &record.bytes)) {
    return InvalidArgument("the shard passes 2^63 - 1 bytes: use more ranks");
  }
  MUSTER_RETURN_IF_ERROR(CheckSpace(fs, root, record.bytes));
  const std::string directory = JoinPath(root, DirectoryName(plan.key));
  MUSTER_RETURN_IF_ERROR(MakeStepDirectory(fs, root, directory));
  Result<FreshFile> fresh = CreateFresh(
      fs, directory, [&plan](int attempt) { return ShardFileName(plan.rank, attempt); });
  if (!fresh.ok()) return fresh.status();
  record.name = fresh->name;
  MUSTER_RETURN_IF_ERROR(FillOrRemove(fs, *fresh, [&](WritableFile& file) {
    return FillShard(file, bytes, data_start, &header, &record.header_digest);
  }));
  if (const Status status = fs.SyncDirectory(directory); !status.ok()) {
    static_cast<void>(fs.Unlink(fresh->path));
    return status;
  }
  return record;
}

Result<std::uint64_t> WriteManifest(FileSystem& fs, const std::string& root,
                                    const CheckpointRecord& record) {
  const Result<std::string> text = EncodeManifest(record);
  if (!text.ok()) return text.status();
  const Result<Manifest> written = DecodeManifest(*text);
  if (!written.ok()) return written.status();
  const std::string directory = JoinPath(root, record.directory);
  Result<FreshFile> fresh = CreateFresh(fs, directory, [](int attempt) {
    return fmt::format("{}.{:02}.tmp", kManifestName, attempt);
  });
  if (!fresh.ok()) return fresh.status();
  MUSTER_RETURN_IF_ERROR(FillOrRemove(fs, *fresh, [&text](WritableFile& file) {
    return file.WriteAt(0, std::as_bytes(std::span(*text)));
  }));
  const std::string path = JoinPath(directory, std::string(kManifestName));
  if (const Status status = fs.Rename(fresh->path, path); !status.ok()) {
    static_cast<void>(fs.Unlink(fresh->path));
    return status;
  }
  MUSTER_RETURN_IF_ERROR(fs.SyncDirectory(directory));
  return written->digest;
}

}  // namespace muster::checkpoint
