// Who has which boxes, and where in the files they lie.
#include "checkpoint/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "checkpoint/format.h"
#include "protocol/prng.h"
#include "tests/checkpoint/random_layout.h"
#include "tests/checkpoint/support.h"

namespace muster::checkpoint {
namespace {

using Source = StoredLayout::Source;

// The record of a checkpoint of these tensors; its files are named and nothing more.
CheckpointRecord Record(std::vector<TensorSpec> tensors, std::int32_t world_size,
                        const ListedBoxes& listed) {
  std::vector<FileRecord> files;
  for (std::int32_t r = 0; r < world_size; ++r) {
    files.push_back({ShardFileName(Rank(r), 0), 1, 0, Rank(r), {}});
    if (!listed.empty()) files.back().listed = listed[static_cast<std::size_t>(r)];
  }
  return RecordOf(State{std::move(tensors), {}}, Key(1, 1), std::move(files));
}

// The same list by asking every rank for everything in its file.
std::vector<Source> SourcesByBruteForce(const CheckpointRecord& record, std::size_t tensor,
                                        const Box& want) {
  std::vector<Source> sources;
  for (const FileRecord& file : record.files) {
    const auto layout = LayoutOf(record.tensors, file.rank, record.world_size, file.listed);
    EXPECT_TRUE(layout.ok()) << layout.status().ToString();
    for (const StoredTensor& part : *layout) {
      if (part.index != tensor || part.box.empty()) continue;
      if (auto common = Intersect(part.box, want)) {
        sources.push_back({file.rank, part.box, *common});
      }
    }
  }
  return sources;
}

void Sort(std::vector<Source>* sources) {
  std::sort(sources->begin(), sources->end(), [](const Source& a, const Source& b) {
    return a.rank != b.rank ? a.rank < b.rank : a.stored < b.stored;
  });
}

TEST(Sources, AreExactlyWhatIsWanted) {
  Prng prng(11);
  for (int round = 0; round < 4000; ++round) {
    const auto world_size = static_cast<std::int32_t>(1 + prng.Below(9));
    const std::vector<TensorSpec> tensors = {RandomTensor("t", prng)};
    const CheckpointRecord record =
        Record(tensors, world_size, RandomListedBoxes(tensors, world_size, prng));
    ASSERT_TRUE(CheckRecord(record).ok()) << CheckRecord(record).ToString();
    const Box want = RandomBox(tensors[0].shape, prng);
    std::vector<Source> sources = StoredLayout(record).SourcesOf(0, want);
    std::vector<Source> expected =
        want.empty() ? std::vector<Source>() : SourcesByBruteForce(record, 0, want);
    Sort(&sources);
    Sort(&expected);
    EXPECT_EQ(sources, expected);
    std::int64_t elements = 0;
    for (const Source& source : sources) elements += source.part.count();
    EXPECT_EQ(elements, want.count());
  }
}

// L16: positions beyond 2^31 and 2^32 elements.
TEST(Sources, OfVeryLargeTensors) {
  const std::int64_t extent = (std::int64_t{1} << 40U) + 5;
  for (const int cut : {0, kFlat, kReplicated}) {
    const CheckpointRecord record = Record({{"t", DType::kU8, {extent}, cut}}, 3, {});
    const auto sources = StoredLayout(record).SourcesOf(0, Box{{{extent - 5, extent}}});
    ASSERT_EQ(sources.size(), 1U);
    EXPECT_EQ(sources[0].rank, Rank(2));
    EXPECT_EQ(sources[0].part, (Box{{{extent - 5, extent}}}));
  }
}

TEST(Sources, OfAnAliasAreThoseOfItsTensor) {
  TensorSpec alias{"head", DType::kFloat32, {4, 2}, kReplicated};
  alias.alias_of = "embedding";
  const CheckpointRecord record = Record({alias, {"embedding", DType::kFloat32, {4, 2}, 0}}, 2, {});
  const StoredLayout layout(record);
  EXPECT_EQ(layout.OwnerOf(0), 1U);
  EXPECT_EQ(layout.SourcesOf(0, Box::Whole({4, 2})), layout.SourcesOf(1, Box::Whole({4, 2})));
  EXPECT_EQ(layout.SourcesOf(0, Box::Whole({4, 2})).size(), 2U);
}

// Every part is aligned to its elements, none overlap, and together with the listed boxes of all
// ranks they tile every tensor.
TEST(Layout, TilesEveryTensorWhateverTheCut) {
  Prng prng(12);
  for (int round = 0; round < 500; ++round) {
    const auto world_size = static_cast<std::int32_t>(1 + prng.Below(9));
    std::vector<TensorSpec> tensors;
    for (int i = 0; i < 5; ++i) tensors.push_back(RandomTensor("t" + std::to_string(i), prng));
    const ListedBoxes listed = RandomListedBoxes(tensors, world_size, prng);
    std::vector<std::vector<Box>> boxes(tensors.size());
    for (std::int32_t r = 0; r < world_size; ++r) {
      const auto layout =
          LayoutOf(tensors, Rank(r), world_size, listed[static_cast<std::size_t>(r)]);
      ASSERT_TRUE(layout.ok()) << layout.status().ToString();
      std::int64_t position = 0;
      for (const StoredTensor& part : *layout) {
        EXPECT_EQ(part.begin, position);
        EXPECT_EQ(part.begin % SizeOf(part.spec.dtype), 0);
        position = part.end;
        boxes[part.index].push_back(part.box);
      }
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const Status tiles = TilesExactly(tensors[i].shape, boxes[i]);
      EXPECT_TRUE(tiles.ok()) << tensors[i].name << ": " << tiles.ToString();
      EXPECT_FALSE(boxes[i].empty()) << tensors[i].name << " is in no file";
    }
  }
}

TEST(Layout, RefusesListsThatFitNothing) {
  const std::vector<TensorSpec> tensors = {{"a", DType::kU8, {4}, kListed},
                                           {"b", DType::kU8, {4}, 0}};
  const auto code = [&](const ListedBox& listed) {
    return LayoutOf(tensors, Rank(0), 1, {&listed, 1}).status().code();
  };
  EXPECT_EQ(code({0, Box{{{0, 4}}}}), Code::kOk);
  for (const ListedBox& bad : {ListedBox{1, Box{{{0, 4}}}},
                               {2, Box{{{0, 4}}}},
                               {0, Box{{{0, 5}}}},
                               {0, Box{{{2, 2}}}},
                               {0, Box{}},
                               {-1, Box{{{0, 4}}}}}) {
    EXPECT_EQ(code(bad), Code::kInvalidArgument) << bad.tensor << bad.box.ToString();
  }
}

// S09, VeOmni's local slice recorded as the whole tensor: gaps and overlaps are refused at commit.
TEST(Layout, ARecordWithAGapOrAnOverlapIsRefused) {
  const std::vector<TensorSpec> tensors = {{"w", DType::kU8, {4, 4}, kListed}};
  const ListedBox top{0, Box{{{0, 2}, {0, 4}}}};
  const ListedBox bottom{0, Box{{{2, 4}, {0, 4}}}};
  EXPECT_TRUE(CheckRecord(Record(tensors, 2, {{top}, {bottom}})).ok());
  for (const ListedBoxes& listed :
       std::vector<ListedBoxes>{{{top}, {}}, {{top}, {top}}, {{top, bottom}, {bottom}}, {{}, {}}}) {
    const Status status = CheckRecord(Record(tensors, 2, listed));
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("tensor w"), std::string::npos) << status.message();
  }
}

TEST(Blocks, BeginAnewWithEveryPart) {
  const std::int64_t block = BlockBytes(0);
  std::vector<StoredTensor> layout = *LayoutOf({{"a", DType::kU8, {2 * block + 1}, -1},
                                                {"b", DType::kU8, {0}, -1},
                                                {"c", DType::kU8, {5}, -1}},
                                               Rank(0), 1, {});
  EXPECT_EQ(BlocksOf(layout), (std::vector<Block>{{0, block},
                                                  {block, 2 * block},
                                                  {2 * block, 2 * block + 1},
                                                  {2 * block + 1, 2 * block + 6}}));
}

TEST(Blocks, AreLargerInLargerFiles) {
  EXPECT_EQ(BlockBytes(0), BlockBytes(std::int64_t{1} << 30U));
  for (std::int64_t bytes = 1; bytes < std::int64_t{1} << 60U; bytes *= 2) {
    const std::int64_t block = BlockBytes(bytes);
    EXPECT_EQ(block & (block - 1), 0);
    EXPECT_LE(bytes / block, std::int64_t{1} << 17U);
  }
}

}  // namespace
}  // namespace muster::checkpoint
