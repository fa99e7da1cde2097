#include "checkpoint/shard_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "checkpoint/digest.h"
#include "checkpoint/format.h"
#include "checkpoint/safetensors.h"
#include "protocol/check.h"

namespace muster::checkpoint {
namespace {

constexpr std::int64_t kWindowBlocks = 8;

// What a failed read says about the file: bytes that the disk cannot give back (EIO, ESTALE) are as
// lost as damaged ones, and so is a file that is not there. Other errors (no descriptors left, no
// permission) say nothing about it and keep their code.
Status Lost(const std::string& path, const std::string& what, const Status& status) {
  const bool lost = status.code() == Code::kInternal || status.code() == Code::kNotFound ||
                    status.code() == Code::kDataLoss;
  return {lost ? Code::kDataLoss : status.code(),
          fmt::format("{}: {}: {}", path, what, status.message())};
}

}  // namespace

std::vector<BlockRange> MergeRanges(std::vector<BlockRange> ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::vector<BlockRange> merged;
  for (const BlockRange& range : ranges) {
    if (range.first >= range.last) continue;
    if (!merged.empty() && range.first <= merged.back().last) {
      merged.back().last = std::max(merged.back().last, range.last);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

Result<ShardReader> ShardReader::Open(FileSystem& fs, const std::string& root,
                                      const CheckpointRecord& record, Rank rank) {
  const FileRecord& file_record = record.files[static_cast<std::size_t>(rank.value())];
  const std::string path = JoinPath(JoinPath(root, record.directory), file_record.name);
  Result<std::unique_ptr<ReadableFile>> file = fs.OpenForReading(path);
  if (!file.ok()) return Lost(path, "a file of the checkpoint", file.status());
  ShardReader reader(path, std::move(*file));
  MUSTER_RETURN_IF_ERROR(reader.ReadHeader(file_record));
  MUSTER_RETURN_IF_ERROR(reader.CheckIdentity(record, rank));
  return reader;
}

Status ShardReader::ReadHeader(const FileRecord& record) {
  const Result<std::int64_t> size = file_->Size();
  if (!size.ok()) return Lost(path_, "size", size.status());
  if (*size != record.bytes) {
    return DataLoss(
        fmt::format("{}: has {} bytes, and {} were written", path_, *size, record.bytes));
  }
  std::string prefix(static_cast<std::size_t>(std::min(*size, kLengthBytes)), '\0');
  Status status = file_->ReadAt(0, std::as_writable_bytes(std::span(prefix)));
  if (!status.ok()) return Lost(path_, "header", status);
  const Result<std::int64_t> data_start = DataStartOf(prefix, *size);
  if (!data_start.ok()) return Lost(path_, "header", data_start.status());
  data_start_ = *data_start;
  prefix.resize(static_cast<std::size_t>(data_start_));
  status =
      file_->ReadAt(kLengthBytes, std::as_writable_bytes(std::span(prefix).subspan(kLengthBytes)));
  if (!status.ok()) return Lost(path_, "header", status);
  bytes_read_ += data_start_;
  if (DigestOf(prefix) != record.header_digest) {
    return DataLoss(fmt::format("{}: its header is not the one that was written", path_));
  }
  Result<ShardHeader> header = DecodeShardHeader(prefix, *size);
  if (!header.ok()) return Lost(path_, "header", header.status());
  header_ = *std::move(header);
  return {};
}

Status ShardReader::CheckIdentity(const CheckpointRecord& record, Rank rank) const {
  if (header_.job != record.job || header_.key != record.key || header_.lineage != record.lineage ||
      header_.rank != rank || header_.world_size != record.world_size) {
    return DataLoss(
        fmt::format("{}: belongs to job {}, step {}, generation {}, rank {} of {}, and stands for "
                    "rank {} of {}",
                    path_, header_.job, header_.key.step.value(), header_.key.generation.value(),
                    header_.rank.value(), header_.world_size, rank.value(), record.world_size));
  }
  const Result<std::vector<StoredTensor>> layout =
      LayoutOf(record.tensors, rank, record.world_size);
  if (!layout.ok()) return layout.status();
  if (header_.tensors == *layout) return {};
  return DataLoss(fmt::format("{}: does not hold the tensors that the record lists", path_));
}

Status ShardReader::Fetch(std::int64_t block) {
  auto range = std::upper_bound(
      expected_.begin(), expected_.end(), block,
      [](std::int64_t value, const BlockRange& candidate) { return value < candidate.last; });
  MUSTER_CHECK(range != expected_.end() && range->first <= block, "an expected block");
  const std::int64_t last = std::min(range->last, block + kWindowBlocks);
  const std::int64_t start = block * kBlockBytes;
  const std::int64_t end = std::min(last * kBlockBytes, header_.data_bytes());
  window_start_ = start;
  window_.resize(static_cast<std::size_t>(end - start));
  const Status status = file_->ReadAt(data_start_ + start, window_);
  if (!status.ok()) {
    window_.clear();
    return Lost(path_, fmt::format("blocks {} to {}", block, last - 1), status);
  }
  bytes_read_ += end - start;
  std::span<const std::byte> rest(window_);
  for (std::int64_t b = block; b < last; ++b) {
    const auto bytes = rest.first(std::min(rest.size(), static_cast<std::size_t>(kBlockBytes)));
    rest = rest.subspan(bytes.size());
    if (DigestOf(bytes) == header_.block_digests[static_cast<std::size_t>(b)]) continue;
    window_.clear();
    return DataLoss(fmt::format("{}: block {} (bytes {} to {}) is not what was written", path_, b,
                                data_start_ + b * kBlockBytes,
                                data_start_ + b * kBlockBytes + std::ssize(bytes) - 1));
  }
  return {};
}

Status ShardReader::Read(std::int64_t offset, std::span<std::byte> into) {
  while (!into.empty()) {
    if (offset < window_start_ || offset >= window_start_ + std::ssize(window_)) {
      MUSTER_RETURN_IF_ERROR(Fetch(offset / kBlockBytes));
    }
    const auto available = std::span<const std::byte>(window_).subspan(
        static_cast<std::size_t>(offset - window_start_));
    const std::size_t count = std::min(available.size(), into.size());
    std::memcpy(into.data(), available.data(), count);
    into = into.subspan(count);
    offset += static_cast<std::int64_t>(count);
  }
  return {};
}

Status ShardReader::VerifyExpected() {
  for (const BlockRange& range : expected_) {
    for (std::int64_t block = range.first; block < range.last; block += kWindowBlocks) {
      MUSTER_RETURN_IF_ERROR(Fetch(block));
    }
  }
  return {};
}

}  // namespace muster::checkpoint
