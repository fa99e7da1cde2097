#include "checkpoint/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "checkpoint/format.h"
#include "checkpoint/load_plan.h"
#include "checkpoint/shard_file.h"
#include "protocol/check.h"

namespace muster::checkpoint {
namespace {

// As many files as are open at once.
constexpr std::size_t kFilesAtOnce = 16;

// Memory for extents that are being read: as many buffers as threads work at once.
class Buffers {
 public:
  AlignedBuffer Take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return {};
    AlignedBuffer buffer = std::move(idle_.back());
    idle_.pop_back();
    return buffer;
  }
  void Give(AlignedBuffer buffer) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(buffer));
  }

 private:
  std::mutex mutex_;
  std::vector<AlignedBuffer> idle_;  // guarded by mutex_
};

// A file that is being read, and what of it goes where.
struct OpenFile {
  ShardFile file;
  std::vector<PlacedPiece> pieces;
};

// An extent of one of the open files.
struct Task {
  std::size_t file = 0;
  Extent extent;
};

// Reads files a few at a time, all their extents on all threads.
class FileReader {
 public:
  // All must outlive this. Null pieces: everything is verified and nothing is copied.
  FileReader(FileSystem& fs, const std::string& root, const CheckpointRecord& record,
             const LoadPlan* plan, const ReadOptions& options)
      : fs_(fs), root_(root), record_(record), plan_(plan), options_(options) {}

  Status Read(const std::vector<Rank>& ranks) {
    const std::span<const Rank> all(ranks);
    for (std::size_t at = 0; at < all.size(); at += kFilesAtOnce) {
      MUSTER_RETURN_IF_ERROR(ReadSome(all.subspan(at, std::min(kFilesAtOnce, all.size() - at))));
    }
    const std::lock_guard lock(mutex_);
    return first_damage_;
  }
  [[nodiscard]] std::int64_t bytes_read() const { return bytes_read_; }
  [[nodiscard]] std::int64_t bytes_used() const { return bytes_used_; }

 private:
  Status ForEach(std::size_t count, const std::function<Status(std::int64_t)>& work) {
    if (options_.pool != nullptr) {
      return options_.pool->ForEach(static_cast<std::int64_t>(count), work);
    }
    for (std::size_t i = 0; i < count; ++i) {
      MUSTER_RETURN_IF_ERROR(work(static_cast<std::int64_t>(i)));
    }
    return {};
  }

  Result<OpenFile> Open(Rank rank) {
    Result<ShardFile> file = ShardFile::Open(fs_, root_, record_, rank, options_.retry);
    if (!file.ok()) return file.status();
    OpenFile open{std::move(*file), {}};
    if (plan_ != nullptr) {
      Result<std::vector<PlacedPiece>> pieces =
          PlacePieces(open.file, plan_->by_rank.at(rank), plan_->targets);
      if (!pieces.ok()) return pieces.status();
      open.pieces = std::move(*pieces);
    }
    Count(open.file.header_bytes());
    return open;
  }

  Status ReadSome(std::span<const Rank> ranks) {
    std::vector<std::optional<OpenFile>> files(ranks.size());
    MUSTER_RETURN_IF_ERROR(ForEach(ranks.size(), [&](std::int64_t i) -> Status {
      const auto at = static_cast<std::size_t>(i);
      Result<OpenFile> open = Open(ranks[at]);
      if (!open.ok()) return Tell(ranks[at], open.status());
      files[at] = std::move(*open);
      return {};
    }));
    std::vector<Task> tasks;
    for (std::size_t i = 0; i < files.size(); ++i) {
      if (!files[i].has_value()) continue;  // it is damaged, and that was told
      const std::vector<Block>& blocks = files[i]->file.blocks();
      const std::vector<BlockRange> needed =
          plan_ != nullptr
              ? BlocksFor(files[i]->pieces, BlockBytes(files[i]->file.header().data_bytes()))
              : MergeRanges({{0, std::ssize(blocks)}});
      for (Extent& extent : CutExtents(blocks, needed)) tasks.push_back({i, std::move(extent)});
    }
    return ForEach(tasks.size(), [&](std::int64_t i) {
      const Task& task = tasks[static_cast<std::size_t>(i)];
      return ReadTask(ranks[task.file], *files[task.file], task.extent);
    });
  }

  Status ReadTask(Rank rank, const OpenFile& open, const Extent& extent) {
    const Status status = ReadExtent(open, extent);
    if (!GoesOn(status)) return status;
    // Block by block, to say which ones they are.
    for (std::int64_t b = extent.blocks.first; b < extent.blocks.last; ++b) {
      const BlockRange block{b, b + 1};
      MUSTER_RETURN_IF_ERROR(Tell(rank, ReadExtent(open, {block, {block}})));
    }
    return {};
  }

  // Is it a damage, and does somebody want to know of all of them?
  [[nodiscard]] bool GoesOn(const Status& status) const {
    return plan_ == nullptr && options_.damaged && status.code() == Code::kDataLoss;
  }

  // The status, or ok when it goes on.
  Status Tell(Rank rank, const Status& status) {
    if (!GoesOn(status)) return status;
    options_.damaged(rank, status);
    const std::lock_guard lock(mutex_);
    if (first_damage_.ok()) first_damage_ = status;
    return {};
  }

  Status ReadExtent(const OpenFile& open, const Extent& extent) {
    AlignedBuffer buffer = buffers_.Take();
    std::int64_t used = 0;
    MUSTER_RETURN_IF_ERROR(
        open.file.Read(extent, &buffer, [&](std::int64_t begin, std::span<const std::byte> bytes) {
          used += Scatter(open.pieces, begin, bytes);
        }));
    bytes_used_ += used;
    Count(buffer.size());
    buffers_.Give(std::move(buffer));
    return {};
  }

  void Count(std::int64_t bytes) {
    bytes_read_ += bytes;
    if (options_.progress) options_.progress(bytes);
  }

  FileSystem& fs_;
  const std::string& root_;
  const CheckpointRecord& record_;
  const LoadPlan* const plan_;
  const ReadOptions& options_;
  Buffers buffers_;
  std::atomic<std::int64_t> bytes_read_ = 0;
  std::atomic<std::int64_t> bytes_used_ = 0;
  std::mutex mutex_;
  Status first_damage_;  // guarded by mutex_
};

}  // namespace

Result<Manifest> ReadManifest(FileSystem& fs, const std::string& root, const std::string& directory,
                              std::optional<std::uint64_t> digest) {
  const std::optional<CheckpointKey> key = ParseDirectoryName(directory);
  if (!key) {
    return InvalidArgument(
        fmt::format("{} is not the name of a checkpoint's directory", directory));
  }
  const std::string path = JoinPath(JoinPath(root, directory), std::string(kManifestName));
  const Result<std::string> text = ReadWhole(fs, path, kMaxManifestBytes);
  if (!text.ok()) {
    // A disk that cannot give it back (EIO, ESTALE) has lost it.
    const bool lost = text.status().code() == Code::kInternal;
    return Status(lost ? Code::kDataLoss : text.status().code(), text.status().message());
  }
  Result<Manifest> manifest = DecodeManifest(*text);
  if (!manifest.ok()) {
    return Status(manifest.status().code(),
                  fmt::format("{}: {}", path, manifest.status().message()));
  }
  if (manifest->record.key != *key) {
    return DataLoss(fmt::format("{}: is the manifest of {}", path, manifest->record.directory));
  }
  if (digest && *digest != manifest->digest) {
    return DataLoss(fmt::format("{}: has digest {}, and the announced checkpoint {}", path,
                                ToHex(manifest->digest), ToHex(*digest)));
  }
  return manifest;
}

Result<LoadReport> LoadBoxes(FileSystem& fs, const std::string& root,
                             const CheckpointRecord& record, std::span<const WantedBox> wanted,
                             const ReadOptions& options) {
  MUSTER_RETURN_IF_ERROR(CheckRecord(record));
  const StoredLayout layout(record);
  const Result<LoadPlan> plan = PlanLoad(layout, record, wanted, options.live);
  if (!plan.ok()) return plan.status();
  std::vector<Rank> ranks;
  for (const auto& [rank, pieces] : plan->by_rank) ranks.push_back(rank);
  FileReader reader(fs, root, record, &*plan, options);
  MUSTER_RETURN_IF_ERROR(reader.Read(ranks));
  LoadReport report;
  report.files = std::ssize(ranks);
  report.bytes_read = reader.bytes_read();
  report.bytes_used = reader.bytes_used();
  report.bytes_live = plan->bytes_live;
  std::int64_t needed = 0;
  for (const Target& target : plan->targets) {
    needed += target.placement.box.count() * target.element_bytes;
  }
  MUSTER_CHECK(report.bytes_used + report.bytes_live == needed,
               "every byte of every wanted box is accounted for");
  return report;
}

Status VerifyCheckpoint(FileSystem& fs, const std::string& root, const CheckpointRecord& record,
                        const ReadOptions& options) {
  MUSTER_RETURN_IF_ERROR(CheckRecord(record));
  std::vector<Rank> ranks;
  for (const FileRecord& file : record.files) ranks.push_back(file.rank);
  return FileReader(fs, root, record, nullptr, options).Read(ranks);
}

}  // namespace muster::checkpoint
