#include "checkpoint/reshard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "checkpoint/format.h"
#include "protocol/prng.h"
#include "tests/checkpoint/random_layout.h"
#include "tests/checkpoint/support.h"

namespace muster::checkpoint {
namespace {

// L16: positions beyond 2^31 and 2^32 elements.
TEST(Runs, OfVeryLargeTensors) {
  const std::int64_t extent = (std::int64_t{1} << 40U) + 5;
  const RunCursor cursor(RowMajor(Box{{{0, extent}}}), RowMajor(Box{{{extent - 5, extent}}}),
                         Box{{{extent - 2, extent}}});
  ASSERT_TRUE(cursor.valid());
  EXPECT_EQ(cursor.run().from, extent - 2);
  EXPECT_EQ(cursor.run().to, 3);
  EXPECT_EQ(cursor.run().count, 2);
}

TEST(Runs, MergeWhatIsContiguous) {
  const auto count_runs = [](const Box& from, const Box& to, const Box& part) {
    int runs = 0;
    for (RunCursor cursor(RowMajor(from), RowMajor(to), part); cursor.valid(); cursor.Advance())
      ++runs;
    return runs;
  };
  const Box whole{{{0, 4}, {0, 5}, {0, 6}}};
  EXPECT_EQ(count_runs(whole, whole, whole), 1);
  EXPECT_EQ(count_runs(whole, Box{{{1, 3}, {0, 5}, {0, 6}}}, Box{{{1, 3}, {0, 5}, {0, 6}}}), 1);
  const Box rows{{{0, 4}, {1, 3}, {0, 6}}};
  EXPECT_EQ(count_runs(whole, rows, rows), 4);
  const Box columns{{{0, 4}, {0, 5}, {2, 4}}};
  EXPECT_EQ(count_runs(whole, columns, columns), 20);
  // One column is a single run with steps.
  const Box column{{{0, 4}, {0, 5}, {2, 3}}};
  EXPECT_EQ(count_runs(whole, column, column), 1);
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

// Seeking finds the same run as going there step by step.
TEST(Runs, SeekAsOneWouldWalk) {
  Prng prng(6);
  for (int round = 0; round < 3000; ++round) {
    Shape shape;
    for (std::uint64_t d = prng.Below(4); d > 0; --d) {
      shape.push_back(static_cast<std::int64_t>(1 + prng.Below(5)));
    }
    const Box from = Box::Whole(shape);
    const Box part = RandomBox(shape, prng);
    RunCursor walker(RowMajor(from), RowMajor(part), part);
    RunCursor seeker = walker;
    const auto position = static_cast<std::int64_t>(prng.Below(130));
    while (walker.valid() &&
           walker.run().from + (walker.run().count - 1) * walker.run().from_step < position) {
      walker.Advance();
    }
    seeker.Seek(static_cast<std::int64_t>(prng.Below(130)));  // wherever it was before
    if (seeker.valid()) seeker.Seek(position);
    if (!seeker.valid()) {
      seeker = RunCursor(RowMajor(from), RowMajor(part), part);
      seeker.Seek(position);
    }
    ASSERT_EQ(seeker.valid(), walker.valid());
    if (!walker.valid()) continue;
    EXPECT_EQ(seeker.run().from, walker.run().from);
    EXPECT_EQ(seeker.run().to, walker.run().to);
  }
}

// L15: views that are no contiguous memory: every second element, a transposed matrix, one value
// for all, backwards, and a part in the middle of something larger.
TEST(CopyBox, FollowsStrides) {
  const Box box{{{0, 2}, {0, 3}}};
  const Bytes logical = {std::byte{0}, std::byte{1}, std::byte{2},
                         std::byte{3}, std::byte{4}, std::byte{5}};
  const auto gather = [&](const Bytes& memory, const Placement& view) {
    EXPECT_TRUE(CheckPlacement(view, std::ssize(memory), false).ok());
    Bytes out(6, std::byte{0xEE});
    CopyBox(view, memory, RowMajor(box), out, box, 1);
    return out;
  };
  Bytes memory(16, std::byte{0x77});
  const auto spread = [&](const Placement& view) {
    EXPECT_TRUE(CheckPlacement(view, std::ssize(memory), true).ok());
    CopyBox(RowMajor(box), logical, view, memory, box, 1);
    return view;
  };
  for (const Placement& view : {Placement{box, {6, 2}, 1}, Placement{box, {1, 2}, 0},
                                Placement{box, {-3, -1}, 5}, Placement{box, {8, 1}, 4}}) {
    std::fill(memory.begin(), memory.end(), std::byte{0x77});
    EXPECT_EQ(gather(memory, spread(view)), logical);
    EXPECT_EQ(std::count(memory.begin(), memory.end(), std::byte{0x77}), 10);
  }
  const Bytes one(1, std::byte{9});
  EXPECT_EQ(gather(one, {box, {0, 0}, 0}), Bytes(6, std::byte{9}));
}

TEST(Placements, ThatAreRefused) {
  const Box box{{{0, 2}, {0, 3}}};
  EXPECT_TRUE(CheckPlacement({box, {3, 1}, 0}, 6, true).ok());
  EXPECT_FALSE(CheckPlacement({box, {3, 1}, 0}, 5, false).ok());
  EXPECT_FALSE(CheckPlacement({box, {3, 1}, 1}, 6, false).ok());
  EXPECT_FALSE(CheckPlacement({box, {3, -1}, 1}, 6, false).ok());
  EXPECT_FALSE(CheckPlacement({box, {3}, 0}, 6, false).ok());
  EXPECT_FALSE(CheckPlacement({box, {0, 1}, 0}, 6, true).ok());  // two rows in one place
  EXPECT_TRUE(CheckPlacement({box, {0, 1}, 0}, 6, false).ok());
  EXPECT_FALSE(CheckPlacement({box, {1, 1}, 0}, 6, true).ok());
  EXPECT_FALSE(CheckPlacement({box, {std::int64_t{1} << 62U, 4}, 0}, 6, false).ok());
  EXPECT_TRUE(CheckPlacement({Box{{{1, 1}, {0, 3}}}, {3, 1}, 0}, 0, true).ok());
}

TEST(Subtract, LeavesTheRestExactlyOnce) {
  Prng prng(8);
  for (int round = 0; round < 3000; ++round) {
    Shape shape;
    for (std::uint64_t d = prng.Below(4); d > 0; --d) {
      shape.push_back(static_cast<std::int64_t>(1 + prng.Below(5)));
    }
    const Box box = Box::Whole(shape);
    const Box hole = RandomBox(shape, prng);
    std::vector<Box> parts = Subtract(box, hole);
    EXPECT_LE(parts.size(), std::max<std::size_t>(1, 2 * shape.size()));
    parts.push_back(hole);
    EXPECT_TRUE(TilesExactly(shape, parts).ok());
  }
}

}  // namespace
}  // namespace muster::checkpoint
