#include "checkpoint/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "checkpoint/digest.h"
#include "checkpoint/format.h"
#include "checkpoint/fresh_file.h"
#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"
#include "checkpoint/shard_header.h"

namespace muster::checkpoint {
namespace {

// One write. Large enough for any disk, small enough to keep several busy with one file.
constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20U;

Status MissingRoot(const std::string& root) {
  return NotFound(
      fmt::format("checkpoint directory {} does not exist: create it (or mount its file "
                  "system), or name another one",
                  root));
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

Status CheckPlan(const ShardPlan& plan) {
  if (plan.key.step.value() < 0 || plan.key.generation.value() < 0) {
    return InvalidArgument("a checkpoint's step and generation are 0 or more");
  }
  if (plan.world_size < 1 || plan.world_size > kMaxWorldSize || plan.rank.value() < 0 ||
      plan.rank.value() >= plan.world_size) {
    return InvalidArgument(
        fmt::format("there is no rank {} of {}", plan.rank.value(), plan.world_size));
  }
  return CheckTensors(plan.tensors);
}

// A shard on its way into its file.
struct Writing {
  const AlignedBuffer& data;
  IoPool& pool;
  const std::atomic<bool>* stop;
  std::int64_t data_start = 0;
  ShardHeader header = {};
  std::vector<Block> blocks = {};  // of the data
  std::uint64_t header_digest = 0;

  [[nodiscard]] Status CheckStop() const {
    if (stop == nullptr || !*stop) return {};
    return Interrupted("the save was given up");
  }
};

// Sets the digests of the blocks that begin within bytes [begin, end) of the data.
void DigestBlocks(std::int64_t begin, std::int64_t end, Writing* writing) {
  const std::vector<Block>& blocks = writing->blocks;
  auto block = std::partition_point(blocks.begin(), blocks.end(),
                                    [begin](const Block& one) { return one.begin < begin; });
  for (; block != blocks.end() && block->begin < end; ++block) {
    writing->header.block_digests[static_cast<std::size_t>(block - blocks.begin())] =
        DigestOf(writing->data.span().subspan(static_cast<std::size_t>(block->begin),
                                              static_cast<std::size_t>(block->end - block->begin)));
  }
}

// Writes the pieces side by side, each of them once the digests of the blocks that begin in it are
// known. The last piece ends at a multiple of kDirectAlignment, beyond the end of the data.
Status WriteData(WritableFile& file, Writing* writing) {
  const std::span<const std::byte> bytes = writing->data.padded();
  const std::int64_t pieces = (std::ssize(bytes) + kPieceBytes - 1) / kPieceBytes;
  return writing->pool.ForEach(pieces, [&](std::int64_t piece) {
    MUSTER_RETURN_IF_ERROR(writing->CheckStop());
    const std::int64_t begin = piece * kPieceBytes;
    const std::int64_t end = std::min(begin + kPieceBytes, std::ssize(bytes));
    DigestBlocks(begin, end, writing);
    return file.WriteAt(
        writing->data_start + begin,
        bytes.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
  });
}

// Data first and the header last: until then the file starts with zeros, which no reader takes for
// a safetensors file.
Status FillShard(WritableFile& file, Writing* writing) {
  const std::int64_t file_bytes = writing->data_start + writing->data.size();
  // File systems let writes go side by side only where they do not make the file longer.
  MUSTER_RETURN_IF_ERROR(file.SetSize(AlignUp(file_bytes)));
  MUSTER_RETURN_IF_ERROR(WriteData(file, writing));
  if (file_bytes % kDirectAlignment != 0) MUSTER_RETURN_IF_ERROR(file.SetSize(file_bytes));
  MUSTER_RETURN_IF_ERROR(writing->CheckStop());
  const Result<std::string> prefix = EncodeShardHeader(writing->header);
  if (!prefix.ok()) return prefix.status();
  MUSTER_CHECK(std::ssize(*prefix) == writing->data_start,
               "the digests' values do not change the length");
  writing->header_digest = DigestOf(*prefix);
  AlignedBuffer aligned;
  MUSTER_RETURN_IF_ERROR(aligned.Resize(writing->data_start));
  std::memcpy(aligned.span().data(), prefix->data(), prefix->size());
  return file.WriteAt(0, aligned.padded());
}

// Are the files of the record where it says, as long as it says? Somebody may have removed the
// directory under the ranks, and the next one made it again.
Status CheckFilesAreThere(FileSystem& fs, const std::string& directory,
                          const CheckpointRecord& record) {
  for (const FileRecord& file : record.files) {
    const std::string path = JoinPath(directory, file.name);
    const Result<std::unique_ptr<ReadableFile>> open = fs.OpenForReading(path);
    if (!open.ok()) return open.status();
    const Result<std::int64_t> size = (*open)->Size();
    if (!size.ok()) return size.status();
    if (*size != file.bytes) {
      return DataLoss(
          fmt::format("{}: has {} bytes, and {} were written", path, *size, file.bytes));
    }
  }
  return {};
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
                              const AlignedBuffer& data, IoPool& pool,
                              const std::atomic<bool>* stop) {
  MUSTER_RETURN_IF_ERROR(CheckPlan(plan));
  Result<std::vector<StoredTensor>> layout =
      LayoutOf(plan.tensors, plan.rank, plan.world_size, plan.listed);
  if (!layout.ok()) return layout.status();
  Writing writing{data, pool, stop};
  ShardHeader& header = writing.header;
  header.job = plan.job;
  header.key = plan.key;
  header.lineage = plan.lineage;
  header.rank = plan.rank;
  header.world_size = plan.world_size;
  header.tensors = *std::move(layout);
  if (data.size() != header.data_bytes()) {
    return InvalidArgument(fmt::format("rank {} of {} stores {} bytes, and {} are given",
                                       plan.rank.value(), plan.world_size, header.data_bytes(),
                                       data.size()));
  }
  if (plan.rank == Rank(0)) header.aliases = AliasesIn(plan.tensors);
  writing.blocks = BlocksOf(header.tensors);
  header.block_digests.resize(writing.blocks.size());
  const Result<std::string> blank = EncodeShardHeader(header);
  if (!blank.ok()) return blank.status();
  writing.data_start = std::ssize(*blank);

  FileRecord record;
  record.rank = plan.rank;
  record.listed = plan.listed;
  record.bytes = writing.data_start + data.size();
  MUSTER_RETURN_IF_ERROR(CheckSpace(fs, root, record.bytes));
  const std::string directory = JoinPath(root, DirectoryName(plan.key));
  MUSTER_RETURN_IF_ERROR(MakeStepDirectory(fs, root, directory));
  Result<FreshFile> fresh = CreateFresh(
      fs, directory, [&plan](int attempt) { return ShardFileName(plan.rank, attempt); });
  if (!fresh.ok()) return fresh.status();
  record.name = fresh->name;
  MUSTER_RETURN_IF_ERROR(FillOrRemove(
      fs, *fresh, [&writing](WritableFile& file) { return FillShard(file, &writing); }));
  record.header_digest = writing.header_digest;
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
  const std::string path = JoinPath(directory, std::string(kManifestName));
  // Another worker that had the same order may have written it, and died before it could say so.
  const Result<std::string> there = ReadWhole(fs, path, kMaxManifestBytes);
  if (!there.ok() && there.status().code() != Code::kNotFound) return there.status();
  if (there.ok() && *there == *text) {
    MUSTER_RETURN_IF_ERROR(fs.SyncDirectory(directory));
    return written->digest;
  }
  MUSTER_RETURN_IF_ERROR(CheckFilesAreThere(fs, directory, record));
  Result<FreshFile> fresh = CreateTemporary(fs, directory, std::string(kManifestName));
  if (!fresh.ok()) return fresh.status();
  MUSTER_RETURN_IF_ERROR(FillOrRemove(fs, *fresh, [&text](WritableFile& file) {
    return file.WriteAt(0, std::as_bytes(std::span(*text)));
  }));
  if (const Status status = fs.Rename(fresh->path, path); !status.ok()) {
    static_cast<void>(fs.Unlink(fresh->path));
    return status;
  }
  MUSTER_RETURN_IF_ERROR(fs.SyncDirectory(directory));
  return written->digest;
}

}  // namespace muster::checkpoint
