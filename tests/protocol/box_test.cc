#include "protocol/box.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "protocol/prng.h"
#include "protocol/tiling.h"

namespace muster {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

// Cuts the whole of `shape` into random boxes by splitting one of them `splits` times.
std::vector<Box> RandomTiling(const Shape& shape, int splits, Prng& prng) {
  std::vector<Box> boxes = {Box::Whole(shape)};
  for (int i = 0; i < splits; ++i) {
    const std::size_t pick = prng.Below(boxes.size());
    const std::size_t d = prng.Below(shape.size());
    const Range range = boxes[pick].ranges[d];
    if (range.size() < 2) continue;
    const auto at =
        range.lo + 1 +
        static_cast<std::int64_t>(prng.Below(static_cast<std::uint64_t>(range.size() - 1)));
    Box upper = boxes[pick];
    boxes[pick].ranges[d].hi = at;
    upper.ranges[d].lo = at;
    boxes.push_back(std::move(upper));
  }
  for (std::size_t i = boxes.size(); i > 1; --i) std::swap(boxes[i - 1], boxes[prng.Below(i)]);
  return boxes;
}

Shape RandomShape(Prng& prng) {
  Shape shape(1 + prng.Below(4));
  for (std::int64_t& extent : shape) extent = 1 + static_cast<std::int64_t>(prng.Below(9));
  return shape;
}

TEST(DTypes, NamesAndSizesAgree) {
  EXPECT_EQ(DTypeName(DType::kBFloat16), "BF16");
  EXPECT_EQ(SizeOf(DType::kBFloat16), 2);
  EXPECT_EQ(DTypeName(DType::kFloat8E4M3), "F8_E4M3");
  EXPECT_EQ(SizeOf(DType::kFloat64), 8);
  for (int i = 0; i <= static_cast<int>(DType::kFloat64); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(DTypeFromName(DTypeName(dtype)), dtype);
  }
  EXPECT_EQ(DTypeFromName("f32"), std::nullopt);
}

TEST(CountElements, BoundsAndZeros) {
  EXPECT_EQ(CountElements({}).value(), 1);
  EXPECT_EQ(CountElements({3, 4}).value(), 12);
  EXPECT_EQ(CountElements({kMax}).value(), kMax);
  EXPECT_EQ(CountElements({kMax, kMax, 0}).value(), 0);
  EXPECT_EQ(CountElements({kMax, 2}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(CountElements({std::int64_t{1} << 32, std::int64_t{1} << 31}).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(CountElements({0, -1}).status().code(), Code::kInvalidArgument);
}

TEST(Box, CountShapeAndText) {
  EXPECT_EQ(Box{}.count(), 1);
  EXPECT_EQ(Box{}.ToString(), "[]");
  const Box box{{{0, 4}, {2, 8}}};
  EXPECT_EQ(box.count(), 24);
  EXPECT_EQ(box.shape(), (Shape{4, 6}));
  EXPECT_EQ(box.ToString(), "[0:4,2:8]");
  EXPECT_TRUE(Box::Whole({3, 0}).empty());
  EXPECT_EQ(Box::Whole({kMax, kMax, 0}).count(), 0);
}

TEST(Box, Fits) {
  EXPECT_TRUE(Fits(Box{{{0, 4}}}, {4}));
  EXPECT_TRUE(Fits(Box{{{4, 4}}}, {4}));
  EXPECT_FALSE(Fits(Box{{{0, 5}}}, {4}));
  EXPECT_FALSE(Fits(Box{{{-1, 2}}}, {4}));
  EXPECT_FALSE(Fits(Box{{{3, 2}}}, {4}));
  EXPECT_FALSE(Fits(Box{{{0, 4}}}, {4, 1}));
  EXPECT_TRUE(Fits(Box{}, {}));
}

TEST(Box, Intersect) {
  EXPECT_EQ(Intersect(Box{{{0, 4}, {0, 4}}}, Box{{{2, 6}, {3, 9}}}), (Box{{{2, 4}, {3, 4}}}));
  EXPECT_EQ(Intersect(Box{{{0, 4}}}, Box{{{4, 6}}}), std::nullopt);
  EXPECT_EQ(Intersect(Box{{{2, 2}}}, Box{{{0, 6}}}), std::nullopt);
  EXPECT_EQ(Intersect(Box{}, Box{}), Box{});
}

TEST(TilesExactly, AcceptsRandomTilings) {
  Prng prng(1);
  for (int i = 0; i < 300; ++i) {
    const Shape shape = RandomShape(prng);
    const Status status = TilesExactly(shape, RandomTiling(shape, 20, prng));
    EXPECT_TRUE(status.ok()) << "case " << i << ": " << status.ToString();
  }
}

TEST(TilesExactly, FindsAPlantedGap) {
  Prng prng(2);
  for (int i = 0; i < 300; ++i) {
    const Shape shape = RandomShape(prng);
    std::vector<Box> boxes = RandomTiling(shape, 20, prng);
    const Box lost = boxes.back();
    boxes.pop_back();
    const Status status = TilesExactly(shape, boxes);
    ASSERT_EQ(status.code(), Code::kInvalidArgument) << "case " << i;
    // The lost box is one gap, so the reported one starts where it does.
    const std::string low_corner = "[" + std::to_string(lost.ranges[0].lo) + ":";
    EXPECT_NE(status.message().find(low_corner), std::string::npos) << status.ToString();
  }
}

TEST(TilesExactly, FindsAPlantedOverlap) {
  Prng prng(3);
  for (int i = 0; i < 300; ++i) {
    const Shape shape = RandomShape(prng);
    std::vector<Box> boxes = RandomTiling(shape, 20, prng);
    Box& grown = boxes[prng.Below(boxes.size())];
    const std::size_t d = prng.Below(shape.size());
    if (grown.ranges[d].lo > 0) {
      --grown.ranges[d].lo;
    } else if (grown.ranges[d].hi < shape[d]) {
      ++grown.ranges[d].hi;
    } else {
      boxes.push_back(Box(grown));
    }
    EXPECT_EQ(TilesExactly(shape, boxes).code(), Code::kInvalidArgument) << "case " << i;
  }
}

TEST(TilesExactly, OverlapThatMakesUpForAGapInSize) {
  EXPECT_FALSE(TilesExactly({4}, {Box{{{0, 2}}}, Box{{{1, 3}}}}).ok());
}

TEST(TilesExactly, NamesGapAndOverlap) {
  const Status gap = TilesExactly({4, 6}, {Box{{{0, 4}, {0, 3}}}, Box{{{0, 2}, {3, 6}}}});
  EXPECT_NE(gap.message().find("[2:4,3:6]"), std::string::npos) << gap.ToString();
  const Status overlap = TilesExactly({4, 6}, {Box{{{0, 3}, {0, 6}}}, Box{{{2, 4}, {0, 6}}}});
  EXPECT_NE(overlap.message().find("[2:3,0:6]"), std::string::npos) << overlap.ToString();
}

TEST(TilesExactly, ScalarsEmptyTensorsAndEmptyBoxes) {
  EXPECT_TRUE(TilesExactly({}, {Box{}}).ok());
  EXPECT_FALSE(TilesExactly({}, {}).ok());
  EXPECT_FALSE(TilesExactly({}, {Box{}, Box{}}).ok());
  EXPECT_TRUE(TilesExactly({0, 5}, {}).ok());
  EXPECT_TRUE(TilesExactly({3}, {Box{{{1, 1}}}, Box{{{0, 3}}}}).ok());
}

TEST(TilesExactly, RefusesBoxesOutsideOfTheShape) {
  EXPECT_FALSE(TilesExactly({3}, {Box{{{0, 4}}}}).ok());
  EXPECT_FALSE(TilesExactly({3}, {Box{{{2, 1}}}, Box{{{0, 3}}}}).ok());
  EXPECT_FALSE(TilesExactly({3}, {Box{{{0, 3}, {0, 1}}}}).ok());
  EXPECT_FALSE(TilesExactly({kMax, kMax}, {}).ok());
}

TEST(EvenCut, LargerPartsFirst) {
  const std::vector<Range> expected = {{0, 2}, {2, 4}, {4, 5}, {5, 6}};
  for (std::int64_t part = 0; part < 4; ++part) {
    EXPECT_EQ(EvenCut(6, part, 4), expected[static_cast<std::size_t>(part)]);
  }
  EXPECT_EQ(EvenCut(0, 2, 4), (Range{0, 0}));
  EXPECT_EQ(EvenCut(1, 3, 4), (Range{1, 1}));
  EXPECT_EQ(EvenCut(kMax, 6, 7).hi, kMax);
}

TEST(EvenCut, RefusesAPartThatIsNotThere) {
  EXPECT_DEATH((void)EvenCut(4, 4, 4), "there is no such part");
}

TEST(Layout, BoxesOfAllRanksTileEveryTensor) {
  const std::vector<TensorSpec> tensors = {
      {"scalar", DType::kFloat32, {}, -1},     {"replicated", DType::kFloat32, {7, 3}, -1},
      {"rows", DType::kFloat32, {5, 4}, 0},    {"columns", DType::kBFloat16, {2, 13}, 1},
      {"empty", DType::kFloat32, {0, 4}, 0},   {"one", DType::kI64, {1}, 0},
      {"empty too", DType::kFloat32, {0}, -1}, {"flat", DType::kFloat32, {3, 2, 5}, kFlat},
      {"flat scalar", DType::kI64, {}, kFlat}, {"flat empty", DType::kI64, {2, 0}, kFlat},
  };
  for (const TensorSpec& tensor : tensors) {
    for (std::int64_t world = 1; world <= 16; ++world) {
      std::vector<Box> stored;
      for (std::int64_t rank = 0; rank < world; ++rank) {
        const std::vector<Box> held = BoxesOf(tensor, rank, world);
        for (const Box& box : StoredBoxesOf(tensor, rank, world)) stored.push_back(box);
        if (tensor.sharded()) {
          EXPECT_EQ(held, StoredBoxesOf(tensor, rank, world));
        } else if (!Box::Whole(tensor.shape).empty()) {
          EXPECT_EQ(held, std::vector<Box>{Box::Whole(tensor.shape)});
        }
      }
      const Status status = TilesExactly(tensor.shape, stored);
      EXPECT_TRUE(status.ok()) << tensor.name << " over " << world << ": " << status.ToString();
    }
  }
}

// The boxes of every flat range are its elements, in their order, and few.
TEST(FlatBoxes, AreTheElementsOfTheRange) {
  for (const Shape& shape :
       std::vector<Shape>{{}, {7}, {3, 4}, {1, 5}, {5, 1}, {2, 3, 4}, {3, 1, 2, 3}}) {
    const std::int64_t count = *CountElements(shape);
    for (std::int64_t begin = 0; begin <= count; ++begin) {
      for (std::int64_t end = begin; end <= count; ++end) {
        std::int64_t next = begin;
        const std::vector<Box> boxes = FlatBoxes(shape, begin, end);
        EXPECT_LE(boxes.size(), std::max<std::size_t>(1, 2 * shape.size() - 1));
        for (const Box& box : boxes) {
          ASSERT_TRUE(Fits(box, shape));
          // A box whose first element is `next` and whose last is as far away as it has elements is
          // one stretch of the flat order.
          std::int64_t first = 0;
          std::int64_t last = 0;
          for (std::size_t d = 0; d < shape.size(); ++d) {
            first = first * shape[d] + box.ranges[d].lo;
            last = last * shape[d] + box.ranges[d].hi - 1;
          }
          EXPECT_EQ(first, next);
          EXPECT_EQ(last, next + box.count() - 1);
          next += box.count();
        }
        EXPECT_EQ(next, end);
      }
    }
  }
}

TEST(Layout, AnAliasIsHeldAndNotStored) {
  TensorSpec alias{"b", DType::kFloat32, {4}, 0};
  alias.alias_of = "a";
  EXPECT_EQ(BoxesOf(alias, 1, 2), std::vector<Box>{(Box{{{2, 4}}})});
  EXPECT_TRUE(StoredBoxesOf(alias, 1, 2).empty());
}

TEST(Tiling, LooksAtListedBoxesAlone) {
  const std::vector<TensorSpec> tensors = {{"a", DType::kU8, {4, 4}, kListed},
                                           {"b", DType::kU8, {4}, 0}};
  std::vector<FileRecord> files(2);
  files[0].listed = {{0, Box{{{0, 4}, {0, 2}}}}};
  EXPECT_FALSE(CheckTiling(tensors, files).ok());
  files[1].listed = {{0, Box{{{0, 2}, {2, 4}}}}, {0, Box{{{2, 4}, {2, 4}}}}};
  EXPECT_TRUE(CheckTiling(tensors, files).ok());
  files[1].listed.push_back({0, Box{{{3, 4}, {3, 4}}}});
  EXPECT_NE(CheckTiling(tensors, files).message().find("tensor a"), std::string::npos);
  files[1].listed.pop_back();
  for (const Box& bad : {Box{{{5, 5}}}, Box{{{1, 1}, {0, 4}}}, Box{{{0, 4}, {0, 5}}}}) {
    files[1].listed.push_back({0, bad});
    EXPECT_EQ(CheckTiling(tensors, files).code(), Code::kInvalidArgument) << bad.ToString();
    files[1].listed.pop_back();
  }
  files[1].listed.push_back({1, Box{{{0, 4}}}});  // cut by rule: nothing to list
  EXPECT_EQ(CheckTiling(tensors, files).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace muster
