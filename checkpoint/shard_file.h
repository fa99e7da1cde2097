// One shard file, open, whose header is verified and whose blocks are verified as they are read;
// and the header of one that no record names. Internal to the reader and the catalog.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/aligned_buffer.h"
#include "checkpoint/file_system.h"
#include "checkpoint/shard_header.h"
#include "protocol/records.h"
#include "protocol/status.h"

namespace muster::checkpoint {

// Blocks [first, last) of a file.
struct BlockRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
  friend auto operator<=>(const BlockRange&, const BlockRange&) = default;
};

// What is read at once.
struct Extent {
  BlockRange blocks;
  std::vector<BlockRange> needed;  // those of them whose content matters, ascending
};

// What a shard file says of itself.
struct FoundShard {
  ShardHeader header;
  std::int64_t bytes = 0;           // of the file
  std::uint64_t header_digest = 0;  // of all before the data, as FileRecord has it
};
// Reads the header of a file that no record vouches for. kDataLoss names the file when it is no
// whole shard file, kFailedPrecondition when it is of another version of the format.
[[nodiscard]] Result<FoundShard> ReadShardHeader(FileSystem& fs, const std::string& path);

// Thread-safe once open.
class ShardFile {
 public:
  // Is asked after each failure to find the file that a record names; true means try again. A
  // network file system may show an older state of the directory for a while.
  using Retry = std::function<bool(const Status& problem)>;

  // Opens the file that the record names for `rank`, and verifies its length, its header's digest,
  // and that it is the file of this checkpoint, rank and layout. kDataLoss names the file.
  // REQUIRES: the record passed CheckRecord.
  [[nodiscard]] static Result<ShardFile> Open(FileSystem& fs, const std::string& root,
                                              const CheckpointRecord& record, Rank rank,
                                              const Retry& retry);

  [[nodiscard]] const ShardHeader& header() const { return header_; }
  // BlocksOf(header().tensors).
  [[nodiscard]] const std::vector<Block>& blocks() const { return blocks_; }
  // The first block of each tensor of the header, and at its end the number of all.
  [[nodiscard]] const std::vector<std::int64_t>& first_blocks() const { return first_blocks_; }
  [[nodiscard]] std::int64_t header_bytes() const { return data_start_; }

  // Takes the data from byte `begin` on.
  using Use = std::function<void(std::int64_t begin, std::span<const std::byte> bytes)>;
  // Reads the extent into `buffer`, and hands each block that is needed to `use` once it is
  // verified, while it is in the processor's caches. kDataLoss names the file and the block.
  Status Read(const Extent& extent, AlignedBuffer* buffer, const Use& use) const;

 private:
  ShardFile(std::string path, std::unique_ptr<ReadableFile> file)
      : path_(std::move(path)), file_(std::move(file)) {}

  Status ReadHeader(const FileRecord& record);
  Status CheckIdentity(const CheckpointRecord& record, const FileRecord& file) const;

  std::string path_;
  std::unique_ptr<ReadableFile> file_;
  ShardHeader header_;
  std::int64_t data_start_ = 0;
  std::vector<Block> blocks_;
  std::vector<std::int64_t> first_blocks_;
};

}  // namespace muster::checkpoint
