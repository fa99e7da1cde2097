#include "worker/collective/reduction_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "protocol/prng.h"
#include "tests/worker/collective/group.h"

namespace muster::testing {
namespace {

// Values of very different sizes and both signs, so that the order of additions shows.
template <class T>
T Leaf(std::int64_t leaf, std::int64_t element) {
  const std::uint64_t bits =
      Mix64(static_cast<std::uint64_t>(leaf) * 1'000'003 + static_cast<std::uint64_t>(element));
  return std::ldexp(static_cast<T>(static_cast<std::int64_t>(bits >> 44U) - 524288),
                    static_cast<int>(bits % 30) - 15);
}
template <class T>
std::vector<T> LeafVector(std::int64_t leaf, std::int64_t elements) {
  std::vector<T> values;
  for (std::int64_t i = 0; i < elements; ++i) values.push_back(Leaf<T>(leaf, i));
  return values;
}

// The tree as the definition has it, for one element.
template <class T>
T Oracle(std::int64_t lo, std::int64_t hi, std::int64_t element) {
  if (hi - lo == 1) return Leaf<T>(lo, element);
  std::int64_t half = 1;
  while (half * 2 < hi - lo) half *= 2;
  return Oracle<T>(lo, lo + half, element) + Oracle<T>(lo + half, hi, element);
}

std::vector<Range> RandomCut(Prng& prng, std::int64_t leaves, std::int32_t size) {
  std::vector<std::int64_t> ends;
  for (std::int32_t i = 1; i < size; ++i) {
    ends.push_back(static_cast<std::int64_t>(prng.Below(static_cast<std::uint64_t>(leaves) + 1)));
  }
  std::ranges::sort(ends);
  ends.push_back(leaves);
  std::vector<Range> ranges;
  std::int64_t lo = 0;
  for (const std::int64_t hi : ends) {
    ranges.push_back({lo, hi});
    lo = hi;
  }
  return ranges;
}

template <class T>
PartialSums<T> Filled(std::int64_t leaves, Range range, std::int64_t elements) {
  PartialSums<T> sums(leaves, range, elements);
  for (std::int64_t leaf = range.lo; leaf < range.hi; ++leaf) {
    EXPECT_EQ(sums.Add(leaf, LeafVector<T>(leaf, elements)), Status());
  }
  return sums;
}

template <class T>
std::vector<Status> ReduceOnAll(const Ranks& ranks, const std::vector<Range>& cut,
                                std::int64_t elements, const std::vector<T>& expected) {
  return OnAll(ranks, [&](Communicator& ours) -> Status {
    const Range range = cut[static_cast<std::size_t>(ours.rank().value())];
    const PartialSums<T> sums = Filled<T>(cut.back().hi, range, elements);
    std::vector<T> result(static_cast<std::size_t>(elements), T{-1});
    MUSTER_RETURN_IF_ERROR(ReduceTree<T>(ours, cut, sums, result));
    const bool same = elements == 0 ||
                      std::memcmp(result.data(), expected.data(), expected.size() * sizeof(T)) == 0;
    return same ? Status() : Internal("differs from the tree");
  });
}

TEST(ReductionTree, RandomCutsAgreeBitwiseWithTheTree) {
  Prng prng(2026);
  for (std::int32_t size = 1; size <= 6; ++size) {
    const Ranks ranks = LocalRanks(size);
    for (int round = 0; round < 40; ++round) {
      const auto leaves = static_cast<std::int64_t>(1 + prng.Below(40));
      const auto elements = static_cast<std::int64_t>(prng.Below(20));
      const std::vector<Range> cut = RandomCut(prng, leaves, size);
      std::vector<float> expected;
      for (std::int64_t i = 0; i < elements; ++i) expected.push_back(Oracle<float>(0, leaves, i));
      ASSERT_EQ(Unlike(Code::kOk, ReduceOnAll<float>(ranks, cut, elements, expected)), "")
          << "world " << size << ", " << leaves << " leaves, " << elements << " elements";
    }
  }
}

TEST(ReductionTree, DoublesAgreeToo) {
  const Ranks ranks = LocalRanks(3);
  const std::vector<double> expected = {Oracle<double>(0, 11, 0), Oracle<double>(0, 11, 1)};
  for (const std::vector<Range>& cut : {std::vector<Range>{{0, 3}, {3, 10}, {10, 11}},
                                        std::vector<Range>{{0, 0}, {0, 11}, {11, 11}}}) {
    EXPECT_EQ(Unlike(Code::kOk, ReduceOnAll<double>(ranks, cut, 2, expected)), "");
  }
}

// The oracle can fail: for these values the order of the ranks gives another sum.
TEST(ReductionTree, TheOrderOfAdditionsShows) {
  int different = 0;
  for (std::int64_t element = 0; element < 100; ++element) {
    float naive = 0;
    for (std::int64_t leaf = 0; leaf < 13; ++leaf) naive += Leaf<float>(leaf, element);
    if (naive != Oracle<float>(0, 13, element)) ++different;
  }
  EXPECT_GT(different, 10);
}

TEST(ReductionTree, MoreElementsThanOneTileAndManyRaggedSums) {
  const std::int64_t elements = 1024 * 1024 + 77;  // more than a tile
  std::vector<float> expected;
  for (std::int64_t i = 0; i < elements; ++i) expected.push_back(Oracle<float>(0, 7, i));
  const Ranks ranks = TcpRanks(3);
  const std::vector<Range> cut = {{0, 1}, {1, 6}, {6, 7}};
  EXPECT_EQ(Unlike(Code::kOk, ReduceOnAll<float>(ranks, cut, elements, expected)), "");
}

TEST(ReductionTree, NodesOfARange) {
  EXPECT_EQ(CoverByNodes(8, {0, 8}), (std::vector<Range>{{0, 8}}));
  EXPECT_EQ(CoverByNodes(8, {4, 8}), (std::vector<Range>{{4, 8}}));
  EXPECT_EQ(CoverByNodes(8, {1, 7}), (std::vector<Range>{{1, 2}, {2, 4}, {4, 6}, {6, 7}}));
  EXPECT_EQ(CoverByNodes(7, {4, 7}), (std::vector<Range>{{4, 7}}));  // ragged, and a node
  EXPECT_EQ(CoverByNodes(5, {3, 5}), (std::vector<Range>{{3, 4}, {4, 5}}));
  EXPECT_EQ(CoverByNodes(5, {2, 2}), std::vector<Range>{});
  EXPECT_EQ(CoverByNodes(1, {0, 1}), (std::vector<Range>{{0, 1}}));
}

TEST(PartialSums, KeepsTheFewestSums) {
  for (std::int64_t leaves = 1; leaves <= 40; ++leaves) {
    for (std::int64_t lo = 0; lo <= leaves; ++lo) {
      for (std::int64_t hi = lo; hi <= leaves; ++hi) {
        const PartialSums<float> sums = Filled<float>(leaves, {lo, hi}, 1);
        const std::vector<Range> nodes = CoverByNodes(leaves, {lo, hi});
        ASSERT_TRUE(sums.complete());
        ASSERT_EQ(sums.size(), nodes.size());
        for (std::size_t i = 0; i < nodes.size(); ++i) {
          ASSERT_EQ(sums.node(i), nodes[i]);
          ASSERT_EQ(sums.values(i)[0], Oracle<float>(nodes[i].lo, nodes[i].hi, 0));
        }
      }
    }
  }
}

TEST(PartialSums, RefusesWhatIsOutOfTurn) {
  PartialSums<float> sums(8, {2, 4}, 2);
  const std::vector<float> two = {1, 2};
  EXPECT_EQ(sums.Add(3, two).code(), Code::kFailedPrecondition);
  EXPECT_EQ(sums.Add(2, std::vector<float>{1}).code(), Code::kInvalidArgument);
  EXPECT_EQ(sums.Add(2, two), Status());
  EXPECT_EQ(sums.Add(2, two).code(), Code::kFailedPrecondition);
  EXPECT_FALSE(sums.complete());
  EXPECT_EQ(sums.Add(3, two), Status());
  EXPECT_EQ(sums.Add(4, two).code(), Code::kFailedPrecondition);
  EXPECT_EQ(sums.values(0)[1], 4.0F);
  sums.Clear();
  EXPECT_EQ(sums.size(), 0U);
  EXPECT_EQ(sums.Add(2, two), Status());
  EXPECT_EQ(sums.values(0)[1], 2.0F);
}

TEST(ReductionTree, RefusesArgumentsThatDoNotFit) {
  const Ranks ranks = LocalRanks(1);
  std::vector<float> result(1);
  const PartialSums<float> sums = Filled<float>(4, {0, 4}, 1);
  const auto reduce = [&](std::vector<Range> ranges, const PartialSums<float>& of,
                          std::span<float> into) {
    return ReduceTree<float>(*ranks[0], ranges, of, into).code();
  };
  EXPECT_EQ(reduce({{0, 4}}, sums, result), Code::kOk);
  EXPECT_EQ(reduce({}, sums, result), Code::kInvalidArgument);
  EXPECT_EQ(reduce({{0, 3}}, sums, result), Code::kInvalidArgument);
  EXPECT_EQ(reduce({{1, 4}}, sums, result), Code::kInvalidArgument);
  EXPECT_EQ(reduce({{0, 4}}, Filled<float>(4, {0, 3}, 1), result), Code::kInvalidArgument);
  EXPECT_EQ(reduce({{0, 4}}, sums, {}), Code::kInvalidArgument);
  EXPECT_EQ(reduce({{0, 4}}, PartialSums<float>(4, {0, 4}, 1), result), Code::kFailedPrecondition);
  EXPECT_EQ(reduce({{0, 0}}, PartialSums<float>(0, {0, 0}, 1), result), Code::kInvalidArgument);
}

TEST(NormSquared, IsExactWhereItCanBeAndFixedWhereItCannot) {
  EXPECT_EQ(NormSquared({}), 0.0);
  EXPECT_EQ(NormSquared(std::vector<float>{3, 4}), 25.0);
  for (const std::size_t size : {1UL, 7UL, 8UL, 4096UL, 4097UL, 12'288UL, 100'003UL}) {
    EXPECT_EQ(NormSquared(std::vector<float>(size, 2.0F)), 4.0 * static_cast<double>(size));
  }
  std::vector<float> values;
  long double exact = 0;
  for (std::int64_t i = 0; i < 100'003; ++i) {
    values.push_back(Leaf<float>(1, i));
    exact += static_cast<long double>(values.back()) * static_cast<long double>(values.back());
  }
  const double norm = NormSquared(values);
  EXPECT_NEAR(norm, static_cast<double>(exact), 1e-12 * norm);
  // Wherever it lies in memory, the same bits.
  std::vector<float> moved(values.size() + 1);
  std::ranges::copy(values, moved.begin() + 1);
  EXPECT_EQ(NormSquared(std::span(moved).subspan(1)), norm);
}

}  // namespace
}  // namespace muster::testing
