// Saving at one world size and loading at another gives the same bytes.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/format.h"
#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"
#include "checkpoint/posix_file_system.h"
#include "checkpoint/reader.h"
#include "checkpoint/retention.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/writer.h"
#include "tests/checkpoint/memory_disk.h"
#include "tests/checkpoint/support.h"

namespace muster::checkpoint {
namespace {

// Of files as small as these.
const std::int64_t kBlock = BlockBytes(0);

class RoundTrip : public testing::Test {
 protected:
  RoundTrip() { EXPECT_TRUE(disk_.MakeDirectory("/c").ok()); }

  // Saves at one world size and loads at each of the others.
  void SaveAndLoad(const State& state, std::int32_t save, std::int32_t load_max) {
    const Result<CheckpointRecord> record = Save(disk_, "/c", state, Key(save, 1), save);
    ASSERT_TRUE(record.ok()) << record.status().ToString();
    const Result<Manifest> manifest = ReadManifest(disk_, "/c", record->directory);
    ASSERT_TRUE(manifest.ok()) << manifest.status().ToString();
    EXPECT_EQ(manifest->record, *record);
    for (std::int32_t load = 1; load <= load_max; ++load) {
      const Status status = LoadAndCompare(disk_, "/c", manifest->record, state, load);
      EXPECT_TRUE(status.ok()) << save << " to " << load << ": " << status.ToString();
    }
    EXPECT_TRUE(RemoveCheckpoint(disk_, "/c", record->directory).ok());
  }

  MemoryDisk disk_;
};

// L01: 0 to 9 rows at every pair of world sizes, sharded and replicated, with empty shards.
TEST_F(RoundTrip, UnevenRows) {
  for (std::int32_t save = 1; save <= 8; ++save) {
    std::vector<TensorSpec> tensors;
    for (std::int64_t rows = 0; rows <= 9; ++rows) {
      const std::string name = "rows" + std::to_string(rows);
      tensors.push_back({name, DType::kFloat32, {rows, 2}, 0});
      tensors.push_back({name + ".whole", DType::kFloat32, {rows, 2}, -1});
    }
    SaveAndLoad(MakeState(tensors, 1), save, 8);
  }
}

// L03, L07, L17, L22: every kind of tensor keeps shape, type and bits at every pair of world sizes.
TEST_F(RoundTrip, EveryKindOfTensor) {
  const State state = MakeState(VariedTensors(), 2);
  for (std::int32_t save = 1; save <= 8; ++save) SaveAndLoad(state, save, 8);
  for (const std::int32_t save : {11, 16}) SaveAndLoad(state, save, 16);
}

// L02: 13 elements do not divide by any of these; padding would shift them.
TEST_F(RoundTrip, ThirteenElements) {
  const State state = MakeState({{"exp_avg", DType::kFloat32, {13}, 0}}, 3);
  for (const std::int32_t save : {1, 3, 4, 5, 13, 16}) SaveAndLoad(state, save, 16);
}

TEST_F(RoundTrip, EveryType) {
  std::vector<TensorSpec> tensors;
  for (const DType dtype :
       {DType::kBool, DType::kU8, DType::kI8, DType::kI16, DType::kU16, DType::kI32, DType::kU32,
        DType::kI64, DType::kU64, DType::kFloat8E4M3, DType::kFloat8E5M2, DType::kFloat16,
        DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    tensors.push_back({std::string(DTypeName(dtype)), dtype, {5, 3}, 0});
  }
  SaveAndLoad(MakeState(tensors, 4), 3, 5);
}

TEST_F(RoundTrip, NoTensorsAtAll) { SaveAndLoad(State{}, 3, 3); }

// A to B to C: what rank sets of other sizes loaded and saved again is still the same.
TEST_F(RoundTrip, ThroughSeveralWorldSizes) {
  const State state = MakeState(VariedTensors(), 5);
  Result<CheckpointRecord> record = Save(disk_, "/c", state, Key(1, 1), 4);
  ASSERT_TRUE(record.ok());
  std::int64_t step = 1;
  for (const std::int32_t world_size : {3, 7, 1, 16, 2}) {
    // Each rank loads what it will store, and stores exactly the bytes that it loaded.
    std::vector<FileRecord> files;
    ++step;
    for (std::int32_t r = 0; r < world_size; ++r) {
      const auto layout = LayoutOf(state.tensors, Rank(r), world_size, {});
      ASSERT_TRUE(layout.ok());
      AlignedBuffer data;
      ASSERT_TRUE(data.Resize(layout->empty() ? 0 : layout->back().end).ok());
      std::vector<WantedBox> wanted;
      for (const StoredTensor& stored : *layout) {
        wanted.push_back(
            {stored.index, stored.box,
             data.span().subspan(static_cast<std::size_t>(stored.begin),
                                 static_cast<std::size_t>(stored.end - stored.begin))});
      }
      ASSERT_TRUE(LoadBoxes(disk_, "/c", *record, wanted).ok());
      const auto file =
          WriteAlone(disk_, "/c", PlanOf(state, Key(step, 1), Rank(r), world_size), data);
      ASSERT_TRUE(file.ok()) << file.status().ToString();
      files.push_back(*file);
    }
    record = RecordOf(state, Key(step, 1), files);
    ASSERT_TRUE(WriteManifest(disk_, "/c", *record).ok());
  }
  EXPECT_TRUE(LoadAndCompare(disk_, "/c", *record, state, 5).ok());
}

// L26: the same step saved again by another generation and a smaller world is a checkpoint of its
// own; nothing of the other one is read.
TEST_F(RoundTrip, SameStepOfTwoGenerations) {
  const State first = MakeState(VariedTensors(), 6);
  const State second = MakeState(VariedTensors(), 7);
  const Result<CheckpointRecord> a = Save(disk_, "/c", first, Key(9, 1), 8);
  const Result<CheckpointRecord> b = Save(disk_, "/c", second, Key(9, 2), 4);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_TRUE(LoadAndCompare(disk_, "/c", *a, first, 3).ok());
  EXPECT_TRUE(LoadAndCompare(disk_, "/c", *b, second, 3).ok());
}

// L05, L23: arbitrary boxes, not only those of the rule.
TEST_F(RoundTrip, AnyBox) {
  const State state = MakeState({{"grid", DType::kU8, {7, 9}, 1}}, 8);
  const Result<CheckpointRecord> record = Save(disk_, "/c", state, Key(1, 1), 4);
  ASSERT_TRUE(record.ok());
  for (std::int64_t top = 0; top <= 7; ++top) {
    for (std::int64_t left = 0; left <= 9; ++left) {
      const Box box{{{top, 7}, {left, 9}}};
      Bytes buffer(static_cast<std::size_t>(box.count()));
      const WantedBox wanted{0, box, buffer};
      ASSERT_TRUE(LoadBoxes(disk_, "/c", *record, {&wanted, 1}).ok());
      EXPECT_EQ(buffer, Extract(state.tensors[0], state.bytes[0], box));
    }
  }
}

TEST_F(RoundTrip, RefusesWantsThatDoNotFit) {
  const State state = MakeState({{"a", DType::kFloat32, {4}, 0}}, 9);
  const Result<CheckpointRecord> record = Save(disk_, "/c", state, Key(1, 1), 2);
  ASSERT_TRUE(record.ok());
  Bytes buffer(16);
  const auto code = [&](const WantedBox& wanted) {
    return LoadBoxes(disk_, "/c", *record, {&wanted, 1}).status().code();
  };
  EXPECT_EQ(code({0, Box{{{0, 4}}}, buffer}), Code::kOk);
  EXPECT_EQ(code({1, Box{{{0, 4}}}, buffer}), Code::kInvalidArgument);
  EXPECT_EQ(code({0, Box{{{1, 5}}}, buffer}), Code::kInvalidArgument);
  EXPECT_EQ(code({0, Box{{{0, 3}}}, buffer}), Code::kInvalidArgument);
  EXPECT_EQ(code({0, Box{}, buffer}), Code::kInvalidArgument);
  CheckpointRecord broken = *record;
  broken.files.pop_back();
  const WantedBox wanted{0, Box{{{0, 4}}}, buffer};
  EXPECT_EQ(LoadBoxes(disk_, "/c", broken, {&wanted, 1}).status().code(), Code::kInvalidArgument);
}

// L13: only files and blocks that hold something wanted are read, each block once.
TEST_F(RoundTrip, ReadsNoMoreThanItNeeds) {
  const std::int64_t kRows = 10 * kBlock / 1024;
  const State state = MakeState(
      {{"big", DType::kU8, {kRows, 1024}, 0}, {"columns", DType::kU8, {3, kBlock * 2}, 0}}, 10);
  const Result<CheckpointRecord> record = Save(disk_, "/c", state, Key(1, 1), 2);
  ASSERT_TRUE(record.ok());
  const auto load = [&](std::size_t tensor, const Box& box) {
    Bytes buffer(static_cast<std::size_t>(box.count()));
    const WantedBox wanted{tensor, box, buffer};
    const Result<LoadReport> report = LoadBoxes(disk_, "/c", *record, {&wanted, 1});
    EXPECT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(buffer, Extract(state.tensors[tensor], state.bytes[tensor], box));
    EXPECT_EQ(report->bytes_used, box.count());
    return *report;
  };
  // Rank 0's half of "big": its 5 blocks, which "columns" shares with nothing.
  const LoadReport half = load(0, Box{{{0, kRows / 2}, {0, 1024}}});
  EXPECT_EQ(half.files, 1);
  EXPECT_GE(half.bytes_read, 5 * kBlock);
  EXPECT_LE(half.bytes_read, 5 * kBlock + kDataAlignment);
  // One row in the middle: one block.
  EXPECT_LE(load(0, Box{{{7, 8}, {0, 1024}}}).bytes_read, kBlock + kDataAlignment);
  // Ten bytes of each of three rows, a row being two blocks: three blocks, of two files.
  const LoadReport columns = load(1, Box{{{0, 3}, {100, 110}}});
  EXPECT_EQ(columns.files, 2);
  EXPECT_LE(columns.bytes_read, 3 * kBlock + 2 * kDataAlignment);
  // Nothing wanted, nothing read.
  EXPECT_EQ(load(0, Box{{{3, 3}, {0, 1024}}}).files, 0);
}

// Files of several blocks, with tensors that begin and end within one.
TEST_F(RoundTrip, ManyBlocks) {
  const State state = MakeState({{"a", DType::kU8, {kBlock / 2 - 1}, -1},
                                 {"b", DType::kFloat32, {kBlock / 30, 5}, 1},
                                 {"c", DType::kI64, {}, -1},
                                 {"d", DType::kI64, {11 * kBlock / 8 + 1}, 0}},
                                11);
  SaveAndLoad(state, 1, 3);
  SaveAndLoad(state, 3, 2);
}

// Parts that end within a page, so that what is read at once ends there too.
TEST_F(RoundTrip, ExtentsThatEndWithinAPage) {
  constexpr std::int64_t kLong = std::int64_t{9} << 20U;
  const State state = MakeState({{"a", DType::kU8, {kLong + 5}, -1},
                                 {"b", DType::kU8, {kLong + 70}, -1},
                                 {"c", DType::kU8, {3}, -1}},
                                12);
  SaveAndLoad(state, 1, 1);
  SaveAndLoad(state, 1, 3);
}

// The files are ordinary safetensors files with the right bytes at the right places, read here with
// nothing but the format's own definition.
TEST(RoundTripFiles, AreSafetensors) {
  const TemporaryDirectory root;
  PosixFileSystem fs;
  const State state = MakeState(VariedTensors(), 12);
  const Result<CheckpointRecord> record = Save(fs, root.path(), state, Key(3, 1), 2);
  ASSERT_TRUE(record.ok()) << record.status().ToString();
  std::size_t found = 0;
  for (std::int32_t r = 0; r < 2; ++r) {
    const std::string file = ReadFileBytes(std::filesystem::path(root.path()) / record->directory /
                                           record->files[static_cast<std::size_t>(r)].name);
    std::uint64_t length = 0;
    std::memcpy(&length, file.data(), 8);
    ASSERT_EQ((8 + length) % 4096, 0U);
    const auto header =
        DecodeSafetensors(std::string_view(file).substr(0, 8 + length), std::ssize(file));
    ASSERT_TRUE(header.ok()) << header.status().ToString();
    for (std::size_t i = 0; i < state.tensors.size(); ++i) {
      const TensorSpec& tensor = state.tensors[i];
      const std::vector<Box> boxes = StoredBoxesOf(tensor, r, 2);
      const Box box = boxes.empty() ? Box::Whole(tensor.shape) : boxes[0];
      for (const SafetensorsEntry& entry : header->tensors) {
        if (entry.name != StoredName(tensor, box)) continue;
        ++found;
        EXPECT_EQ(entry.dtype, tensor.dtype);
        EXPECT_EQ(entry.shape, box.shape());
        const Bytes expected = Extract(tensor, state.bytes[i], box);
        ASSERT_EQ(entry.end - entry.begin, std::ssize(expected));
        const auto stored =
            std::as_bytes(std::span(file))
                .subspan(8 + length + static_cast<std::size_t>(entry.begin), expected.size());
        EXPECT_EQ(Bytes(stored.begin(), stored.end()), expected) << entry.name;
      }
    }
  }
  EXPECT_GE(found, state.tensors.size());
}

}  // namespace
}  // namespace muster::checkpoint
