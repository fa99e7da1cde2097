#include "checkpoint/shard_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "checkpoint/digest.h"
#include "checkpoint/format.h"
#include "checkpoint/safetensors.h"
#include "protocol/check.h"

namespace muster::checkpoint {
namespace {

// What a failed read says about the file: bytes that the disk cannot give back (EIO, ESTALE) are as
// lost as damaged ones, and so is a file that is not there. Other errors (no descriptors left, no
// permission) say nothing about it and keep their code.
Status Lost(const std::string& path, const std::string& what, const Status& status) {
  const bool lost = status.code() == Code::kInternal || status.code() == Code::kNotFound ||
                    status.code() == Code::kDataLoss;
  return {lost ? Code::kDataLoss : status.code(),
          fmt::format("{}: {}: {}", path, what, status.message())};
}

// All of the file before its data.
Result<std::string> ReadPrefix(ReadableFile& file, const std::string& path,
                               std::int64_t file_bytes) {
  std::string prefix(static_cast<std::size_t>(std::min(file_bytes, kLengthBytes)), '\0');
  Status status = file.ReadAt(0, std::as_writable_bytes(std::span(prefix)));
  if (!status.ok()) return Lost(path, "header", status);
  const Result<std::int64_t> data_start = DataStartOf(prefix, file_bytes);
  if (!data_start.ok()) return Lost(path, "header", data_start.status());
  prefix.resize(static_cast<std::size_t>(*data_start));
  status =
      file.ReadAt(kLengthBytes, std::as_writable_bytes(std::span(prefix).subspan(kLengthBytes)));
  if (!status.ok()) return Lost(path, "header", status);
  return prefix;
}

}  // namespace

Result<FoundShard> ReadShardHeader(FileSystem& fs, const std::string& path) {
  const Result<std::unique_ptr<ReadableFile>> file = fs.OpenForReading(path);
  if (!file.ok()) return Lost(path, "a shard file", file.status());
  const Result<std::int64_t> size = (*file)->Size();
  if (!size.ok()) return Lost(path, "size", size.status());
  const Result<std::string> prefix = ReadPrefix(**file, path, *size);
  if (!prefix.ok()) return prefix.status();
  Result<ShardHeader> header = DecodeShardHeader(*prefix, *size);
  if (!header.ok()) return Lost(path, "header", header.status());
  return FoundShard{std::move(*header), *size, DigestOf(*prefix)};
}

Result<ShardFile> ShardFile::Open(FileSystem& fs, const std::string& root,
                                  const CheckpointRecord& record, Rank rank, const Retry& retry) {
  const FileRecord& file_record = record.files[static_cast<std::size_t>(rank.value())];
  const std::string path = JoinPath(JoinPath(root, record.directory), file_record.name);
  Result<std::unique_ptr<ReadableFile>> file = fs.OpenForReading(path);
  while (file.status().code() == Code::kNotFound && retry && retry(file.status())) {
    file = fs.OpenForReading(path);
  }
  if (!file.ok()) return Lost(path, "a file of the checkpoint", file.status());
  ShardFile shard(path, std::move(*file));
  MUSTER_RETURN_IF_ERROR(shard.ReadHeader(file_record));
  MUSTER_RETURN_IF_ERROR(shard.CheckIdentity(record, file_record));
  return shard;
}

Status ShardFile::ReadHeader(const FileRecord& record) {
  const Result<std::int64_t> size = file_->Size();
  if (!size.ok()) return Lost(path_, "size", size.status());
  if (*size != record.bytes) {
    return DataLoss(
        fmt::format("{}: has {} bytes, and {} were written", path_, *size, record.bytes));
  }
  const Result<std::string> prefix = ReadPrefix(*file_, path_, *size);
  if (!prefix.ok()) return prefix.status();
  data_start_ = std::ssize(*prefix);
  if (DigestOf(*prefix) != record.header_digest) {
    return DataLoss(fmt::format("{}: its header is not the one that was written", path_));
  }
  Result<ShardHeader> header = DecodeShardHeader(*prefix, *size);
  if (!header.ok()) return Lost(path_, "header", header.status());
  header_ = std::move(*header);
  blocks_ = BlocksOf(header_.tensors);
  std::int64_t block = 0;
  for (const StoredTensor& part : header_.tensors) {
    first_blocks_.push_back(block);
    while (block < std::ssize(blocks_) &&
           blocks_[static_cast<std::size_t>(block)].begin < part.end) {
      ++block;
    }
  }
  first_blocks_.push_back(block);
  return {};
}

Status ShardFile::CheckIdentity(const CheckpointRecord& record, const FileRecord& file) const {
  if (header_.job != record.job || header_.key != record.key || header_.lineage != record.lineage ||
      header_.rank != file.rank || header_.world_size != record.world_size) {
    return DataLoss(fmt::format(
        "{}: belongs to job {}, step {}, generation {}, rank {} of {}, and stands for "
        "rank {} of {}",
        path_, header_.job, header_.key.step.value(), header_.key.generation.value(),
        header_.rank.value(), header_.world_size, file.rank.value(), record.world_size));
  }
  const Result<std::vector<StoredTensor>> layout =
      LayoutOf(record.tensors, file.rank, record.world_size, file.listed);
  if (!layout.ok()) return DataLoss(fmt::format("{}: {}", path_, layout.status().message()));
  const bool first = file.rank == Rank(0);
  const bool same_aliases =
      header_.aliases == (first ? AliasesIn(record.tensors) : std::vector<StoredAlias>());
  if (header_.tensors == *layout && same_aliases) return {};
  return DataLoss(fmt::format("{}: does not hold the tensors that the record lists", path_));
}

Status ShardFile::Read(const Extent& extent, AlignedBuffer* buffer, const Use& use) const {
  const Block& last = blocks_[static_cast<std::size_t>(extent.blocks.last - 1)];
  const std::int64_t begin = blocks_[static_cast<std::size_t>(extent.blocks.first)].begin;
  // From a multiple of the alignment to another one or to the end of the file, so that it can go
  // around the page cache.
  const std::int64_t from = begin / kDirectAlignment * kDirectAlignment;
  const std::int64_t to = std::min(AlignUp(last.end), header_.data_bytes());
  MUSTER_RETURN_IF_ERROR(buffer->Resize(to - from));
  if (const Status status = file_->ReadAt(data_start_ + from, buffer->span()); !status.ok()) {
    return Lost(path_, fmt::format("blocks {} to {}", extent.blocks.first, extent.blocks.last - 1),
                status);
  }
  const std::span<const std::byte> data = std::as_const(*buffer).span();
  for (const BlockRange& range : extent.needed) {
    for (std::int64_t b = range.first; b < range.last; ++b) {
      const Block& block = blocks_[static_cast<std::size_t>(b)];
      const auto bytes = data.subspan(static_cast<std::size_t>(block.begin - from),
                                      static_cast<std::size_t>(block.end - block.begin));
      if (DigestOf(bytes) != header_.block_digests[static_cast<std::size_t>(b)]) {
        return DataLoss(fmt::format("{}: block {} (bytes {} to {}) is not what was written", path_,
                                    b, data_start_ + block.begin, data_start_ + block.end - 1));
      }
      use(block.begin, bytes);
    }
  }
  return {};
}

}  // namespace muster::checkpoint
