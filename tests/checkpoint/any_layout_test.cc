// Any layout into any other: what was saved is what is loaded, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "checkpoint/format.h"
#include "checkpoint/layout.h"
#include "checkpoint/reader.h"
#include "checkpoint/retention.h"
#include "checkpoint/tie_check.h"
#include "checkpoint/writer.h"
#include "protocol/prng.h"
#include "tests/checkpoint/memory_disk.h"
#include "tests/checkpoint/random_layout.h"
#include "tests/checkpoint/support.h"

namespace muster::checkpoint {
namespace {

class AnyLayout : public testing::Test {
 protected:
  AnyLayout() { EXPECT_TRUE(disk_.MakeDirectory("/c").ok()); }

  // Every element of every tensor, read whole from the record.
  State LoadWhole(const CheckpointRecord& record) {
    State state;
    state.tensors = record.tensors;
    std::vector<WantedBox> wanted;
    for (const TensorSpec& tensor : record.tensors) {
      const Box whole = Box::Whole(tensor.shape);
      state.bytes.emplace_back(static_cast<std::size_t>(ByteCount(tensor, whole)), std::byte{0xEE});
    }
    for (std::size_t i = 0; i < state.bytes.size(); ++i) {
      wanted.push_back({i, Box::Whole(record.tensors[i].shape), state.bytes[i]});
    }
    const Result<LoadReport> report = LoadBoxes(disk_, "/c", record, wanted);
    EXPECT_TRUE(report.ok()) << report.status().ToString();
    return state;
  }

  CheckpointRecord SaveAs(const State& state, const CheckpointKey& key, const ListedBoxes& listed) {
    const Result<CheckpointRecord> record = SaveListed(disk_, "/c", state, key, listed);
    EXPECT_TRUE(record.ok()) << record.status().ToString();
    // Through the manifest, as it is for whoever loads it.
    const Result<Manifest> manifest = ReadManifest(disk_, "/c", DirectoryName(key));
    EXPECT_TRUE(manifest.ok()) << manifest.status().ToString();
    return manifest->record;
  }

  MemoryDisk disk_;
};

// The same tensors, cut in another way.
std::vector<TensorSpec> CutAnew(std::vector<TensorSpec> tensors, Prng& prng) {
  for (TensorSpec& tensor : tensors) {
    const auto ways = static_cast<std::uint64_t>(tensor.shape.size()) + 3;
    tensor.cut_dimension = static_cast<int>(prng.Below(ways)) + kListed;
  }
  return tensors;
}

// A to B to C: thousands of random layouts, uneven, empty, replicated, flat, in several boxes,
// tied; every rank of B and C loads exactly what it will store, into contiguous and strided memory.
TEST_F(AnyLayout, ThroughRandomLayouts) {
  Prng prng(20);
  for (int round = 0; round < 1500; ++round) {
    std::vector<TensorSpec> tensors;
    for (std::uint64_t i = 0, count = 1 + prng.Below(6); i < count; ++i) {
      tensors.push_back(RandomTensor("t" + std::to_string(i), prng));
    }
    TensorSpec tied = tensors[0];
    tied.name = "tied";
    tied.alias_of = "t0";
    tensors.push_back(tied);
    State state = MakeState(tensors, prng.Next());
    state.bytes.back() = state.bytes.front();
    State moving = state;
    for (std::int64_t step = 1; step <= 3; ++step) {
      moving.tensors = CutAnew(moving.tensors, prng);
      const auto world_size = static_cast<std::int32_t>(1 + prng.Below(7));
      const ListedBoxes listed = RandomListedBoxes(moving.tensors, world_size, prng);
      const CheckpointRecord record = SaveAs(moving, Key(step, 1), listed);
      moving = LoadWhole(record);
      ASSERT_EQ(moving.bytes, state.bytes) << "round " << round << ", step " << step;
      ASSERT_TRUE(RemoveCheckpoint(disk_, "/c", record.directory).ok());
    }
  }
}

// Any box, to any place in memory.
TEST_F(AnyLayout, IntoAnyBoxWithAnyStrides) {
  Prng prng(21);
  for (int round = 0; round < 1500; ++round) {
    const std::vector<TensorSpec> tensors = {RandomTensor("t", prng)};
    const State state = MakeState(tensors, prng.Next());
    const auto world_size = static_cast<std::int32_t>(1 + prng.Below(7));
    const CheckpointRecord record =
        SaveAs(state, Key(1, 1), RandomListedBoxes(tensors, world_size, prng));
    const Box box = RandomBox(tensors[0].shape, prng);
    // Dimensions in a random order, with room between the elements, some of them backwards.
    std::vector<std::size_t> order(box.ranges.size());
    for (std::size_t d = 0; d < order.size(); ++d) order[d] = d;
    for (std::size_t d = order.size(); d > 1; --d) std::swap(order[d - 1], order[prng.Below(d)]);
    WantedBox wanted{0, box, {}, std::vector<std::int64_t>(box.ranges.size()), 0};
    std::int64_t stride = 1;
    for (const std::size_t d : order) {
      stride *= static_cast<std::int64_t>(1 + prng.Below(3));
      wanted.strides[d] = stride;
      if (prng.Below(2) == 0 && box.ranges[d].size() > 0) {
        wanted.offset += stride * (box.ranges[d].size() - 1);
        wanted.strides[d] = -stride;
      }
      stride *= std::max<std::int64_t>(1, box.ranges[d].size());
    }
    const std::int64_t element = SizeOf(tensors[0].dtype);
    Bytes memory(static_cast<std::size_t>(stride * element), std::byte{0xEE});
    wanted.into = memory;
    if (wanted.strides.empty())
      wanted.into = std::span(memory).first(static_cast<std::size_t>(element));
    const Result<LoadReport> report = LoadBoxes(disk_, "/c", record, {&wanted, 1});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(report->bytes_used, box.count() * element);
    // Read back element by element.
    const Bytes expected = Extract(tensors[0], state.bytes[0], box);
    std::vector<std::int64_t> at(box.ranges.size());
    for (std::int64_t i = 0; i < box.count(); ++i) {
      std::int64_t place = wanted.offset;
      for (std::size_t d = 0; d < at.size(); ++d) place += at[d] * wanted.strides[d];
      for (std::int64_t b = 0; b < element; ++b) {
        ASSERT_EQ(memory[static_cast<std::size_t>(place * element + b)],
                  expected[static_cast<std::size_t>(i * element + b)]);
      }
      for (std::size_t d = at.size(); d-- > 0;) {
        if (++at[d] < box.ranges[d].size()) break;
        at[d] = 0;
      }
    }
    ASSERT_TRUE(RemoveCheckpoint(disk_, "/c", record.directory).ok());
  }
}

// Some of it from memory, the rest from files; what is in memory is not read.
TEST_F(AnyLayout, FromMemoryAndFiles) {
  Prng prng(22);
  for (int round = 0; round < 800; ++round) {
    const std::vector<TensorSpec> tensors = {RandomTensor("t", prng)};
    const State state = MakeState(tensors, prng.Next());
    const auto world_size = static_cast<std::int32_t>(1 + prng.Below(5));
    const CheckpointRecord record =
        SaveAs(state, Key(1, 1), RandomListedBoxes(tensors, world_size, prng));
    std::vector<Bytes> memory;
    std::vector<LiveBox> live;
    for (int i = 0; i < 2; ++i) {
      live.push_back({0, RandomBox(tensors[0].shape, prng), {}});
      memory.push_back(Extract(tensors[0], state.bytes[0], live.back().box));
    }
    for (std::size_t i = 0; i < live.size(); ++i) live[i].bytes = memory[i];
    const Box box = RandomBox(tensors[0].shape, prng);
    Bytes buffer(static_cast<std::size_t>(ByteCount(tensors[0], box)), std::byte{0xEE});
    const WantedBox wanted{0, box, buffer};
    ReadOptions options;
    options.live = live;
    const Result<LoadReport> report = LoadBoxes(disk_, "/c", record, {&wanted, 1}, options);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(buffer, Extract(tensors[0], state.bytes[0], box));
    EXPECT_EQ(report->bytes_live + report->bytes_used, std::ssize(buffer));
    if (const auto common = Intersect(box, live[0].box)) {
      EXPECT_GE(report->bytes_live, ByteCount(tensors[0], *common));
    }
    ASSERT_TRUE(RemoveCheckpoint(disk_, "/c", record.directory).ok());
  }
}

// The boxes of a mesh: tensor parallel rank t of T, data parallel rank d of D. Each dimension names
// who cuts it, in order; a later cut cuts what the earlier one left.
Box CutTwice(const Shape& shape, std::size_t dimension, std::int64_t first, std::int64_t of_first,
             std::int64_t second, std::int64_t of_second) {
  Box box = Box::Whole(shape);
  Range& range = box.ranges[dimension];
  const Range outer = EvenCut(range.size(), first, of_first);
  const Range inner = EvenCut(outer.size(), second, of_second);
  range = {outer.lo + inner.lo, outer.lo + inner.hi};
  return box;
}

// L05: tensor parallel first and data parallel second on the same dimension, so that the rows of
// neighbouring ranks are not neighbours; loaded as dp 3, as tp 2 x dp 1, and whole.
TEST_F(AnyLayout, StridedOrderOnOneDimension) {
  const State state = MakeState({{"w", DType::kI64, {10}, kListed}}, 23);
  ListedBoxes listed(4);
  for (std::int64_t dp = 0; dp < 2; ++dp) {
    for (std::int64_t tp = 0; tp < 2; ++tp) {
      listed[static_cast<std::size_t>(dp * 2 + tp)] = {{0, CutTwice({10}, 0, tp, 2, dp, 2)}};
    }
  }
  EXPECT_EQ(listed[1][0].box, (Box{{{5, 8}}}));
  const CheckpointRecord record = SaveAs(state, Key(1, 1), listed);
  for (const std::int64_t parts : {1, 2, 3}) {
    for (std::int64_t part = 0; part < parts; ++part) {
      const Box box{{EvenCut(10, part, parts)}};
      Bytes buffer(static_cast<std::size_t>(box.count() * 8));
      const WantedBox wanted{0, box, buffer};
      ASSERT_TRUE(LoadBoxes(disk_, "/c", record, {&wanted, 1}).ok());
      EXPECT_EQ(buffer, Extract(state.tensors[0], state.bytes[0], box));
    }
  }
}

// L23: ten layers over four pipeline stages, interleaved, then over three, then over one: each
// layer is there once, in its place.
TEST_F(AnyLayout, PipelineStages) {
  std::vector<TensorSpec> tensors;
  for (int layer = 0; layer < 10; ++layer) {
    tensors.push_back({"layers." + std::to_string(layer) + ".w", DType::kFloat32, {3, 2}, kListed});
  }
  const State state = MakeState(tensors, 24);
  std::int64_t step = 1;
  for (const std::size_t stages : {4U, 3U, 1U}) {
    for (const bool interleaved : {true, false}) {
      ListedBoxes listed(stages);
      for (std::size_t layer = 0; layer < tensors.size(); ++layer) {
        const std::size_t stage = interleaved ? layer % stages : layer * stages / tensors.size();
        listed[stage].push_back({static_cast<std::int64_t>(layer), Box::Whole({3, 2})});
      }
      EXPECT_EQ(LoadWhole(SaveAs(state, Key(step++, 1), listed)).bytes, state.bytes);
      // A stage that nobody has is refused, and not filled with anything.
      listed.back().pop_back();
      EXPECT_EQ(SaveListed(disk_, "/c", state, Key(step++, 1), listed).status().code(),
                Code::kInvalidArgument);
    }
  }
}

// L02, L22: the flat buffer of an optimizer, whose padding depends on the world size; 13 rows of a
// vocabulary. Nothing of the padding is stored, and each logical element stays where it belongs.
TEST_F(AnyLayout, FlatWithPaddingAtAnyWorldSize) {
  const State state = MakeState(
      {{"exp_avg", DType::kFloat32, {13}, kFlat}, {"vocabulary", DType::kBFloat16, {13, 3}, kFlat}},
      25);
  const std::vector<TensorSpec>& tensors = state.tensors;
  for (const std::int32_t save : {3, 5, 4, 1, 16}) {
    const CheckpointRecord record =
        SaveAs(state, Key(save, 1), ListedBoxes(static_cast<std::size_t>(save)));
    for (const std::int32_t load : {5, 1, 4, 6, 2, 16}) {
      for (std::int32_t r = 0; r < load; ++r) {
        // The padded local buffers that such an optimizer has.
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          const std::int64_t element = SizeOf(tensors[i].dtype);
          const std::int64_t count = *CountElements(tensors[i].shape);
          const std::int64_t padded = (count + load - 1) / load;
          Bytes local(static_cast<std::size_t>(padded * element), std::byte{0xEE});
          std::vector<WantedBox> wanted;
          std::size_t at = 0;
          for (const Box& box : BoxesOf(tensors[i], r, load)) {
            const auto bytes = static_cast<std::size_t>(box.count() * element);
            wanted.push_back({i, box, std::span(local).subspan(at, bytes)});
            at += bytes;
          }
          ASSERT_TRUE(LoadBoxes(disk_, "/c", record, wanted).ok());
          const Range range = EvenCut(count, r, load);
          ASSERT_EQ(std::ssize(local) >= range.size() * element, true);
          EXPECT_TRUE(std::equal(local.begin(), local.begin() + range.size() * element,
                                 state.bytes[i].begin() + range.lo * element));
          for (std::size_t b = at; b < local.size(); ++b) EXPECT_EQ(local[b], std::byte{0xEE});
        }
      }
    }
  }
}

// L08: two names, one tensor: stored once, and there under both names.
TEST_F(AnyLayout, TiedTensorsAreStoredOnce) {
  TensorSpec head{"head", DType::kFloat32, {6, 4}, kReplicated};
  head.alias_of = "embedding";
  State state = MakeState({{"embedding", DType::kFloat32, {6, 4}, 0}, head}, 26);
  state.bytes[1] = state.bytes[0];
  const CheckpointRecord record = SaveAs(state, Key(1, 1), ListedBoxes(2));
  EXPECT_EQ(record.tensors[1].alias_of, "embedding");
  const State loaded = LoadWhole(record);
  EXPECT_EQ(loaded.bytes, state.bytes);
  std::int64_t data = 0;
  for (const FileRecord& file : record.files) data += file.bytes;
  EXPECT_LT(data, std::int64_t{2} * 4096 + 2 * 6 * 4 * 4);
}

// L08: two tensors that were stored apart become one only if they are equal.
TEST_F(AnyLayout, CopiesThatDifferAreNotTied) {
  State state =
      MakeState({{"a", DType::kFloat32, {7, 3}, 0}, {"b", DType::kFloat32, {7, 3}, kFlat}}, 27);
  const std::vector<TensorMatch::Tie> tie = {{"b", "a"}};
  CheckpointRecord record = SaveAs(state, Key(1, 1), ListedBoxes(3));
  const Status differ = CheckTies(disk_, "/c", record, tie, {});
  EXPECT_EQ(differ.code(), Code::kFailedPrecondition);
  EXPECT_NE(differ.message().find("tensors b and a"), std::string::npos) << differ.message();
  state.bytes[1] = state.bytes[0];
  record = SaveAs(state, Key(2, 1), ListedBoxes(3));
  EXPECT_TRUE(CheckTies(disk_, "/c", record, tie, {}).ok());
}

}  // namespace
}  // namespace muster::checkpoint
