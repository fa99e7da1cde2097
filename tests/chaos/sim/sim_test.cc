// The promises under faults, in virtual time. A failing seed is repeated, with every event, by
//   muster-sim --seed SEED --count 1 --trace
#include <gtest/gtest.h>

#include "chaos/sim/cluster.h"

namespace muster::sim {
namespace {

TEST(SimTest, PromisesHoldUnderFaults) {
  constexpr std::uint64_t kSeeds = 60;
  std::int64_t generations = 0;
  std::int64_t rollbacks = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Options options = Options::Draw(seed);
    const RunResult result = Cluster(options).Run();
    EXPECT_EQ(result.violation, "") << options.ToString();
    EXPECT_GE(result.steps, 20) << options.ToString();
    generations += result.reforms;
    rollbacks += result.rollbacks;
  }
  // Otherwise the faults do not reach what they are there for.
  EXPECT_GT(generations, static_cast<std::int64_t>(2 * kSeeds));
  EXPECT_GT(rollbacks, 0);
}

TEST(SimTest, SameSeedGivesTheSameTrace) {
  for (const std::uint64_t seed : {3U, 17U, 29U}) {
    const Options options = Options::Draw(seed);
    const RunResult first = Cluster(options).Run();
    const RunResult second = Cluster(options).Run();
    EXPECT_EQ(first.trace_hash, second.trace_hash) << options.ToString();
    EXPECT_EQ(first.steps, second.steps);
  }
  EXPECT_NE(Cluster(Options::Draw(3)).Run().trace_hash, Cluster(Options::Draw(4)).Run().trace_hash);
}

}  // namespace
}  // namespace muster::sim
