// One shard file, open and verified, whose blocks are verified as they are read. Internal to the
// reader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "checkpoint/shard_header.h"
#include "protocol/records.h"
#include "protocol/status.h"

namespace muster::checkpoint {

// Blocks [first, last) of a file's data.
struct BlockRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
  friend auto operator<=>(const BlockRange&, const BlockRange&) = default;
};

// The same blocks as sorted ranges that neither meet nor overlap.
[[nodiscard]] std::vector<BlockRange> MergeRanges(std::vector<BlockRange> ranges);

// Not thread-safe.
class ShardReader {
 public:
  // Opens the file that the record names for `rank`, and verifies its length, its header's digest,
  // and that it is the file of this checkpoint, rank and layout. kDataLoss names the file.
  // REQUIRES: the record passed CheckRecord.
  [[nodiscard]] static Result<ShardReader> Open(FileSystem& fs, const std::string& root,
                                                const CheckpointRecord& record, Rank rank);

  [[nodiscard]] const ShardHeader& header() const { return header_; }

  // Says which blocks will be asked for: no others are read. REQUIRES: as MergeRanges returns them.
  void Expect(std::vector<BlockRange> ranges) { expected_ = std::move(ranges); }
  // Fills `into` from byte `offset` of the data, with verified bytes alone. Cheap for offsets that
  // ascend; blocks are read up to 8 at once. kDataLoss names the file and the block.
  // REQUIRES: the bytes lie within expected blocks.
  Status Read(std::int64_t offset, std::span<std::byte> into);
  // Reads and verifies all expected blocks.
  Status VerifyExpected();

  // Bytes read so far, the header included.
  [[nodiscard]] std::int64_t bytes_read() const { return bytes_read_; }

 private:
  ShardReader(std::string path, std::unique_ptr<ReadableFile> file)
      : path_(std::move(path)), file_(std::move(file)) {}

  Status ReadHeader(const FileRecord& record);
  Status CheckIdentity(const CheckpointRecord& record, Rank rank) const;
  // Puts verified blocks into the window, from `block` on. REQUIRES: it is expected.
  Status Fetch(std::int64_t block);

  std::string path_;
  std::unique_ptr<ReadableFile> file_;
  ShardHeader header_;
  std::int64_t data_start_ = 0;
  std::vector<BlockRange> expected_;
  std::int64_t window_start_ = 0;  // byte of the data that the window starts with
  std::vector<std::byte> window_;
  std::int64_t bytes_read_ = 0;
};

}  // namespace muster::checkpoint
