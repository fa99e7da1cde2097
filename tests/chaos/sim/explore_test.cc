// Small jobs, all interleavings. A violation is printed with the way to it; the same search by
// hand:
//   muster-sim explore --help
#include "chaos/sim/explore.h"

#include <gtest/gtest.h>

namespace muster::sim {
namespace {

struct Case {
  const char* name;
  int workers = 2;
  Budget budget;
  bool sharded = false;
  bool from_start = true;
  Backend backend = Backend::kTcp;
};

ExploreOptions OptionsOf(const Case& c) {
  ExploreOptions options = ExploreOptions::Small(c.workers);
  options.budget = c.budget;
  options.job.sharded = c.sharded;
  options.job.backend = c.backend;
  options.from_start = c.from_start;
  return options;
}

std::string Lines(const ExploreResult& result) {
  std::string text;
  for (const std::string& line : result.path) text += line + "\n";
  return text;
}

class ExploreTest : public testing::TestWithParam<Case> {};

TEST_P(ExploreTest, EveryPromiseHoldsInEveryState) {
  const ExploreResult result = Explorer(OptionsOf(GetParam())).Run();
  EXPECT_EQ(result.violation, "") << Lines(result);
  EXPECT_TRUE(result.complete) << Lines(result);
  RecordProperty("states", static_cast<int>(result.states));
  RecordProperty("transitions", static_cast<int>(result.transitions));
  // Fewer would mean that the faults are not tried.
  const ExploreResult calm = Explorer(OptionsOf({"calm",
                                                 GetParam().workers,
                                                 {},
                                                 GetParam().sharded,
                                                 GetParam().from_start,
                                                 GetParam().backend}))
                                 .Run();
  EXPECT_TRUE(calm.complete);
  EXPECT_GT(result.states, calm.states);
}

INSTANTIATE_TEST_SUITE_P(
    OneFault, ExploreTest,
    testing::Values(
        Case{"Kill", 2, {.kills = 1}}, Case{"Vanish", 2, {.vanishings = 1}, false, false},
        Case{"CoordinatorCrash", 2, {.coordinator_crashes = 1}},
        Case{"StoreLoss", 2, {.store_losses = 1}}, Case{"Pause", 2, {.pauses = 1}, false, false},
        Case{"Cut", 2, {.cuts = 1}}, Case{"Block", 2, {.blocks = 1}, false, false},
        Case{"EarlyTimer", 2, {.early_timers = 1}, false, false}, Case{"Leave", 2, {.leaves = 1}},
        Case{"ShardedCrash", 2, {.coordinator_crashes = 1}, true},
        Case{"ShardedLeave", 2, {.leaves = 1}, true}, Case{"FailedCall", 2, {.failures = 1}},
        Case{"ShardedFailedCall", 2, {.failures = 1}, true, false},
        Case{"ShardedKill", 2, {.kills = 1}, true, false},
        Case{"NcclCut", 2, {.cuts = 1}, false, true, Backend::kNccl},
        Case{"NcclCrash", 2, {.coordinator_crashes = 1}, false, true, Backend::kNccl},
        Case{"ThreeWorkersCrash", 3, {.coordinator_crashes = 1}, false, false}),
    [](const auto& param) { return std::string(param.param.name); });

INSTANTIATE_TEST_SUITE_P(
    TwoFaults, ExploreTest,
    testing::Values(Case{"Crashes", 2, {.coordinator_crashes = 2}, false, false},
                    Case{"CutAndCrash", 2, {.coordinator_crashes = 1, .cuts = 1}, false, false}),
    [](const auto& param) { return std::string(param.param.name); });

TEST(ExplorerTest, SameSearchTwice) {
  const Case one{"Kill", 2, {.kills = 1}, false, false};
  const ExploreResult first = Explorer(OptionsOf(one)).Run();
  const ExploreResult second = Explorer(OptionsOf(one)).Run();
  EXPECT_TRUE(first.complete);
  EXPECT_EQ(first.states, second.states);
  EXPECT_EQ(first.transitions, second.transitions);
  EXPECT_EQ(first.depth, second.depth);
}

// What was cut short does not pass for a proof.
TEST(ExplorerTest, ABoundThatWasHitIsSaid) {
  ExploreOptions options = OptionsOf({"Kill", 2, {.kills = 1}});
  options.max_depth = 10;
  const ExploreResult shallow = Explorer(options).Run();
  EXPECT_FALSE(shallow.complete);
  EXPECT_TRUE(shallow.depth_hit);
  EXPECT_FALSE(shallow.path.empty());
  options = OptionsOf({"Kill", 2, {.kills = 1}});
  options.max_states = 5000;
  EXPECT_FALSE(Explorer(options).Run().complete);
  options.max_states = UINT64_MAX;
  const auto once = [](const ExploreResult&, std::size_t) { return false; };
  EXPECT_FALSE(Explorer(options).Run(once).complete);
}

}  // namespace
}  // namespace muster::sim
