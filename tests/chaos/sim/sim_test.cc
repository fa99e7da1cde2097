// The promises under faults, in virtual time. A failing seed is repeated, with every event, by
//   muster-sim --seed SEED --seeds 1 --trace
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "chaos/sim/world.h"

namespace muster::sim {
namespace {

TEST(SimTest, PromisesHoldUnderFaults) {
  constexpr std::uint64_t kSeeds = 400;
  RunResult sum;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Options options = Options::Draw(seed);
    const RunResult result = World(options).Run();
    EXPECT_EQ(result.violation, "") << options.ToString();
    sum.reforms += result.reforms;
    sum.rollbacks += result.rollbacks;
    sum.group_ids += result.group_ids;
    for (std::size_t k = 0; k < sum.faults.size(); ++k) sum.faults[k] += result.faults[k];
  }
  // Otherwise the faults do not reach what they are there for.
  EXPECT_GT(sum.reforms, static_cast<std::int64_t>(2 * kSeeds));
  EXPECT_GT(sum.rollbacks, 20);
  EXPECT_GT(sum.group_ids, static_cast<std::int64_t>(kSeeds / 2));
  for (int k = 0; k < kFaultKinds; ++k) {
    EXPECT_GT(sum.faults[static_cast<std::size_t>(k)], 0) << NameOf(static_cast<FaultKind>(k));
  }
}

// Each of these has once shown a fault of the cores, in a job over TCP.
TEST(SimTest, SeedsThatOnceFailedPass) {
  std::ifstream file(std::string(MUSTER_SOURCE_DIR) + "/tests/chaos/sim/kept_seeds.txt");
  ASSERT_TRUE(file.good());
  std::string line;
  int seeds = 0;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::uint64_t seed = 0;
    if (line.starts_with('#') || !(words >> seed)) continue;
    ++seeds;
    Options options = Options::Draw(seed);
    for (const Backend backend : {Backend::kTcp, Backend::kNccl}) {
      options.backend = backend;
      EXPECT_EQ(World(options).Run().violation, "") << line << "\n" << options.ToString();
    }
  }
  EXPECT_GT(seeds, 0);
}

TEST(SimTest, SameSeedGivesTheSameTrace) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Options options = Options::Draw(seed);
    const RunResult first = World(options).Run();
    const RunResult second = World(options).Run();
    EXPECT_EQ(first.trace_hash, second.trace_hash) << options.ToString();
    EXPECT_EQ(first.events, second.events);
  }
  EXPECT_NE(World(Options::Draw(3)).Run().trace_hash, World(Options::Draw(4)).Run().trace_hash);
}

TEST(SimTest, TracingChangesNothing) {
  Options options = Options::Draw(5);
  const RunResult silent = World(options).Run();
  options.trace = true;
  const RunResult traced = World(options).Run();
  EXPECT_EQ(silent.trace_hash, traced.trace_hash);
  EXPECT_GT(traced.trace.size(), 100U);
}

}  // namespace
}  // namespace muster::sim
