// Sizes that no test has the memory or the disk for: very long tensors, very many of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/digest.h"
#include "checkpoint/format.h"
#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"
#include "checkpoint/reader.h"
#include "checkpoint/shard_header.h"
#include "tests/checkpoint/memory_disk.h"
#include "tests/checkpoint/support.h"

namespace muster::checkpoint {
namespace {

// A file of a header, zeros, and a few last bytes.
class SparseFile : public ReadableFile {
 public:
  SparseFile(std::string prefix, std::string tail, std::int64_t size)
      : prefix_(std::move(prefix)), tail_(std::move(tail)), size_(size) {}
  [[nodiscard]] Result<std::int64_t> Size() const override { return size_; }
  Status ReadAt(std::int64_t offset, std::span<std::byte> into) override {
    if (offset + std::ssize(into) > size_) return DataLoss("beyond the end");
    std::ranges::fill(into, std::byte{0});
    Overlay(prefix_, 0, offset, into);
    Overlay(tail_, size_ - std::ssize(tail_), offset, into);
    return {};
  }

 private:
  static void Overlay(const std::string& text, std::int64_t at, std::int64_t offset,
                      std::span<std::byte> into) {
    const std::int64_t begin = std::max(at, offset);
    const std::int64_t end = std::min(at + std::ssize(text), offset + std::ssize(into));
    if (begin >= end) return;
    std::memcpy(into.data() + (begin - offset), text.data() + (begin - at),
                static_cast<std::size_t>(end - begin));
  }
  std::string prefix_;
  std::string tail_;
  std::int64_t size_;
};

class SparseDisk : public MemoryDisk {
 public:
  std::string prefix;
  std::string tail;
  std::int64_t size = 0;
  [[nodiscard]] Result<std::unique_ptr<ReadableFile>> OpenForReading(
      const std::string& /*path*/) override {
    return std::unique_ptr<ReadableFile>(std::make_unique<SparseFile>(prefix, tail, size));
  }
};

// L16: more than 2^31 elements, and offsets beyond 2^32.
TEST(Huge, LastElementsOfAVeryLongTensor) {
  for (const unsigned bits : {31U, 33U}) {
    const std::int64_t count = (std::int64_t{1} << bits) + 5;
    const State state{{{"t", DType::kU8, {count}, kReplicated}}, {}};
    SparseDisk disk;
    disk.tail = "\x01\x02\x03\x04\x05";
    ShardHeader header{"test-job", Key(1, 1), Lineage(0x1234), Rank(0), 1, {}, {}, {}};
    header.tensors = *LayoutOf(state.tensors, Rank(0), 1, {});
    const std::string zeros(static_cast<std::size_t>(BlockBytes(count)), '\0');
    for (const Block& block : BlocksOf(header.tensors)) {
      const auto bytes = static_cast<std::size_t>(block.end - block.begin);
      header.block_digests.push_back(block.end == count
                                         ? DigestOf(disk.tail)
                                         : DigestOf(std::string_view(zeros).substr(0, bytes)));
    }
    ASSERT_EQ(BlocksOf(header.tensors).back().end - BlocksOf(header.tensors).back().begin, 5);
    disk.prefix = *EncodeShardHeader(header);
    disk.size = std::ssize(disk.prefix) + count;
    const CheckpointRecord record =
        RecordOf(state, Key(1, 1),
                 {{ShardFileName(Rank(0), 0), disk.size, DigestOf(disk.prefix), Rank(0), {}}});
    Bytes buffer(8, std::byte{0xEE});
    const WantedBox wanted{0, Box{{{count - 8, count}}}, buffer};
    const Result<LoadReport> report = LoadBoxes(disk, "/c", record, {&wanted, 1});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    for (std::size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(std::to_integer<int>(buffer[i]), i < 3 ? 0 : static_cast<int>(i) - 2);
    }
    EXPECT_LT(report->bytes_read, std::ssize(disk.prefix) + 3 * BlockBytes(count));
  }
}

// L14: 300,000 tiny tensors, and headers around the sizes where other readers break.
TEST(Huge, VeryManyTensors) {
#ifdef __SANITIZE_ADDRESS__
  constexpr int kCount = 30'000;  // ten times as slow
#else
  constexpr int kCount = 300'000;
#endif
  std::vector<TensorSpec> tensors;
  tensors.reserve(kCount);
  for (int i = 0; i < kCount; ++i) {
    tensors.push_back({"experts." + std::to_string(i) + ".bias", DType::kFloat32, {2}, 0});
  }
  ShardHeader header{"test-job", Key(1, 1), Lineage(1), Rank(1), 2, {}, {}, {}};
  header.tensors = *LayoutOf(tensors, Rank(1), 2, {});
  header.block_digests.assign(BlocksOf(header.tensors).size(), 7);
  const Result<std::string> prefix = EncodeShardHeader(header);
  ASSERT_TRUE(prefix.ok()) << prefix.status().ToString();
  const auto read = DecodeShardHeader(*prefix, std::ssize(*prefix) + header.data_bytes());
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_TRUE(*read == header);
  const CheckpointRecord record = RecordOf(
      State{tensors, {}}, Key(1, 1),
      {{"r00000.safetensors", 1, 0, Rank(0), {}}, {"r00001.safetensors", 1, 0, Rank(1), {}}});
  const Result<std::string> manifest = EncodeManifest(record);
  ASSERT_TRUE(manifest.ok()) << manifest.status().ToString();
  EXPECT_TRUE(DecodeManifest(*manifest)->record == record);
}

TEST(Huge, HeadersOfAnySizeAroundThePagesTheyFill) {
  for (const std::size_t target :
       {std::size_t{4096}, std::size_t{100'000}, std::size_t{4} << 20U}) {
    for (std::size_t name = target - 700; name < target - 100; name += 97) {
      ShardHeader header{std::string(name, 'j'), Key(1, 1), Lineage(1), Rank(0), 1, {}, {}, {}};
      header.tensors = *LayoutOf({{"t", DType::kU8, {3}, -1}}, Rank(0), 1, {});
      header.block_digests = {1};
      const Result<std::string> prefix = EncodeShardHeader(header);
      ASSERT_TRUE(prefix.ok());
      EXPECT_EQ(std::ssize(*prefix) % kDataAlignment, 0);
      const auto read = DecodeShardHeader(*prefix, std::ssize(*prefix) + 3);
      ASSERT_TRUE(read.ok()) << read.status().ToString();
      EXPECT_EQ(*read, header);
    }
  }
}

}  // namespace
}  // namespace muster::checkpoint
