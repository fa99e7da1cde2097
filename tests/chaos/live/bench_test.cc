#include "chaos/live/bench.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace muster::chaos {
namespace {

TEST(PercentileTest, NearestRank) {
  std::vector<double> values(100);
  std::iota(values.rbegin(), values.rend(), 1.0);  // 100, 99, … 1
  EXPECT_EQ(Percentile(values, 50), 50);
  EXPECT_EQ(Percentile(values, 99), 99);
  EXPECT_EQ(Percentile(values, 100), 100);
  EXPECT_EQ(Percentile({7}, 50), 7);
  EXPECT_EQ(Percentile({3, 1, 2}, 50), 2);
  EXPECT_EQ(Percentile({1, 2, 3, 4}, 99), 4);
  EXPECT_EQ(Percentile({}, 50), 0);
}

}  // namespace
}  // namespace muster::chaos
