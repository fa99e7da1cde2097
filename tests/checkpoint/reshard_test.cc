#include "checkpoint/reshard.h"

#include <gtest/gtest.h>

#include <vector>

#include "checkpoint/format.h"
#include "protocol/prng.h"
#include "tests/checkpoint/support.h"

namespace muster::checkpoint {
namespace {

// All wanted boxes of a random sample: they may be empty, or a single element.
Box RandomBox(const Shape& shape, Prng& prng) {
  Box box;
  for (const std::int64_t extent : shape) {
    auto a = static_cast<std::int64_t>(prng.Below(static_cast<std::uint64_t>(extent) + 1));
    auto b = static_cast<std::int64_t>(prng.Below(static_cast<std::uint64_t>(extent) + 1));
    box.ranges.push_back({std::min(a, b), std::max(a, b)});
  }
  return box;
}

// The same list by asking every rank.
std::vector<Source> SourcesByBruteForce(const TensorSpec& tensor, CutRule rule,
                                        std::int32_t world_size, const Box& want, Rank replica) {
  std::vector<Source> sources;
  if (want.empty()) return sources;
  for (std::int32_t r = 0; r < world_size; ++r) {
    if (rule == CutRule::kHeld && !tensor.sharded() && Rank(r) != replica) continue;
    const Box box = CutBox(rule, tensor, Rank(r), world_size);
    if (box.empty()) continue;
    if (auto common = Intersect(box, want)) sources.push_back({Rank(r), *common});
  }
  return sources;
}

TEST(Sources, AreExactlyWhatIsWanted) {
  Prng prng(11);
  for (int round = 0; round < 5000; ++round) {
    TensorSpec tensor{"t", DType::kFloat32, {}, -1};
    for (std::uint64_t d = prng.Below(4); d > 0; --d) {
      tensor.shape.push_back(static_cast<std::int64_t>(prng.Below(9)));
    }
    tensor.cut_dimension = static_cast<int>(prng.Below(tensor.shape.size() + 1)) - 1;
    const auto world_size = static_cast<std::int32_t>(1 + prng.Below(12));
    const Rank replica(static_cast<std::int32_t>(prng.Below(static_cast<unsigned>(world_size))));
    const Box want = RandomBox(tensor.shape, prng);
    for (const CutRule rule : {CutRule::kHeld, CutRule::kStored}) {
      EXPECT_EQ(SourcesOf(tensor, rule, world_size, want, replica),
                SourcesByBruteForce(tensor, rule, world_size, want, replica));
    }
  }
}

TEST(Sources, OfAScalarAreRankZeroWhenStored) {
  const TensorSpec scalar{"s", DType::kI64, {}, -1};
  EXPECT_EQ(SourcesOf(scalar, CutRule::kStored, 5, Box{}, Rank(3)),
            (std::vector<Source>{{Rank(0), Box{}}}));
  EXPECT_EQ(SourcesOf(scalar, CutRule::kHeld, 5, Box{}, Rank(3)),
            (std::vector<Source>{{Rank(3), Box{}}}));
}

// L16: positions beyond 2^31 and 2^32 elements.
TEST(Sources, OfVeryLargeTensors) {
  const std::int64_t extent = (std::int64_t{1} << 40U) + 5;
  const TensorSpec tensor{"t", DType::kU8, {extent}, 0};
  const auto sources = SourcesOf(tensor, CutRule::kStored, 3, Box{{{extent - 5, extent}}});
  EXPECT_EQ(sources, (std::vector<Source>{{Rank(2), Box{{{extent - 5, extent}}}}}));
  const Box whole = Box::Whole(tensor.shape);
  const RunCursor cursor(whole, Box{{{extent - 5, extent}}}, Box{{{extent - 2, extent}}});
  ASSERT_TRUE(cursor.valid());
  EXPECT_EQ(cursor.run().from, extent - 2);
  EXPECT_EQ(cursor.run().to, 3);
  EXPECT_EQ(cursor.run().count, 2);
}

TEST(Runs, MergeWhatIsContiguous) {
  const auto count_runs = [](const Box& from, const Box& to, const Box& part) {
    int runs = 0;
    for (RunCursor cursor(from, to, part); cursor.valid(); cursor.Advance()) ++runs;
    return runs;
  };
  const Box whole{{{0, 4}, {0, 5}, {0, 6}}};
  EXPECT_EQ(count_runs(whole, whole, whole), 1);
  EXPECT_EQ(count_runs(whole, Box{{{1, 3}, {0, 5}, {0, 6}}}, Box{{{1, 3}, {0, 5}, {0, 6}}}), 1);
  const Box rows{{{0, 4}, {1, 3}, {0, 6}}};
  EXPECT_EQ(count_runs(whole, rows, rows), 4);
  const Box columns{{{0, 4}, {0, 5}, {2, 4}}};
  EXPECT_EQ(count_runs(whole, columns, columns), 20);
  EXPECT_EQ(count_runs(whole, whole, Box{{{1, 1}, {0, 5}, {0, 6}}}), 0);
  EXPECT_EQ(count_runs(Box{}, Box{}, Box{}), 1);
}

TEST(CopyBox, MovesExactlyThePart) {
  Prng prng(5);
  for (int round = 0; round < 2000; ++round) {
    TensorSpec tensor{"t", DType::kI16, {}, -1};
    for (std::uint64_t d = prng.Below(4); d > 0; --d) {
      tensor.shape.push_back(static_cast<std::int64_t>(1 + prng.Below(6)));
    }
    const State state = MakeState({tensor}, prng.Next());
    const Box from = RandomBox(tensor.shape, prng);
    const Box to = RandomBox(tensor.shape, prng);
    const auto part = Intersect(from, to);
    if (!part) continue;
    const Bytes source = Extract(tensor, state.bytes[0], from);
    // Outside of the part the target must stay as it was: it is filled with the true bytes,
    // inverted.
    Bytes inverted = state.bytes[0];
    for (std::byte& byte : inverted) byte = ~byte;
    Bytes target = Extract(tensor, inverted, to);
    CopyBox(from, source, to, target, *part, 2);
    // Moving the part back out of the target, and nothing else, gives the expectation.
    EXPECT_EQ(Extract({"t", DType::kI16, to.shape(), -1}, target,
                      [&] {
                        Box shifted = *part;
                        for (std::size_t d = 0; d < shifted.ranges.size(); ++d) {
                          shifted.ranges[d].lo -= to.ranges[d].lo;
                          shifted.ranges[d].hi -= to.ranges[d].lo;
                        }
                        return shifted;
                      }()),
              Extract(tensor, state.bytes[0], *part));
    std::int64_t changed = 0;
    const Bytes before = Extract(tensor, inverted, to);
    for (std::size_t i = 0; i < target.size(); ++i) changed += target[i] != before[i] ? 1 : 0;
    EXPECT_EQ(changed, part->count() * 2);
  }
}

}  // namespace
}  // namespace muster::checkpoint
