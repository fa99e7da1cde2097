// The language of scenarios, what is drawn from them, and when it is due.
#include "chaos/live/scenario.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "chaos/live/campaign.h"
#include "chaos/live/schedule.h"

namespace muster::chaos {
namespace {

using testing::HasSubstr;

constexpr Powers kAll{.network = true, .mounts = true};
constexpr std::int64_t kSecond = 1'000'000'000;

Scenario Parsed(const std::string& text) {
  const Result<Scenario> scenario = ParseScenario("summary: A test.\n" + text, "test");
  EXPECT_TRUE(scenario.ok()) << scenario.status().ToString();
  return scenario.ok() ? *scenario : Scenario{};
}

std::string Refused(const std::string& text) {
  const Result<Scenario> scenario = ParseScenario(text, "test");
  EXPECT_FALSE(scenario.ok()) << text;
  return scenario.ok() ? "" : scenario.status().message();
}

TEST(Scenario, ReadsAllThatOneMaySay) {
  const Scenario scenario = Parsed(R"(
nodes: 3
workers_per_node: 2
run_for: 1m
calm_steps: 5
musterd: --growth-interval 1s
launcher: [--stop-timeout, 5s]
faults:
  - kill: rank 0
    at: 2s
  - pause: 2 workers
    step: 10..20
    for: 1s..1500ms
  - cut: node b
    from: coordinator
    direction: out
  - slow: node
    kbit: 100..200
    during: save
  - kill: worker
    every: 3s
expect: {resume_within: 4s, steps_redone: 0, deaths: any, reforms: 2}
)");
  EXPECT_EQ(scenario.nodes, 3);
  EXPECT_EQ(scenario.workers_per_node, 2);
  EXPECT_EQ(scenario.run_for, Duration::Seconds(60));
  EXPECT_EQ(scenario.calm_steps, 5);
  EXPECT_EQ(scenario.coordinator_flags, (std::vector<std::string>{"--growth-interval", "1s"}));
  EXPECT_EQ(scenario.launcher_flags, (std::vector<std::string>{"--stop-timeout", "5s"}));
  ASSERT_EQ(scenario.faults.size(), 5U);
  EXPECT_EQ(scenario.faults[0].target.kind, Target::Kind::kRank);
  EXPECT_EQ(scenario.faults[0].trigger.kind, Trigger::Kind::kAt);
  EXPECT_EQ(scenario.faults[1].target.count, 2);
  EXPECT_EQ(scenario.faults[1].trigger.step, (Between<std::int64_t>{10, 20}));
  EXPECT_EQ(scenario.faults[1].hold,
            (Between<Duration>{Duration::Seconds(1), Duration::Millis(1500)}));
  EXPECT_EQ(scenario.faults[2].target.node, "b");
  EXPECT_EQ(scenario.faults[2].from, "coordinator");
  EXPECT_EQ(scenario.faults[2].direction, "out");
  EXPECT_EQ(scenario.faults[3].amount, (Between<std::int64_t>{100, 200}));
  EXPECT_EQ(scenario.faults[3].trigger.phase, "save");
  EXPECT_EQ(scenario.faults[4].trigger.kind, Trigger::Kind::kEvery);
  EXPECT_EQ(scenario.expect.resume_within, Duration::Seconds(4));
  EXPECT_EQ(scenario.expect.steps_redone, 0);
  EXPECT_EQ(scenario.expect.deaths, -1);
  EXPECT_EQ(scenario.expect.reforms, 2);
}

TEST(Scenario, RefusesWithTheLineAndWhatMayStandThere) {
  EXPECT_THAT(Refused("nodes: 3\n"), HasSubstr("needs a 'summary'"));
  EXPECT_THAT(Refused("summary: x\nnoodles: 3\n"),
              testing::AllOf(HasSubstr("line 2"), HasSubstr("no 'noodles'"), HasSubstr("nodes")));
  EXPECT_THAT(Refused("summary: x\nnodes: many\n"), HasSubstr("'many' is not a whole number"));
  EXPECT_THAT(Refused("summary: x\nnodes: 0\n"), HasSubstr("0 is not within 1 to 64"));
  EXPECT_THAT(Refused("summary: x\nfaults:\n  - explode: node\n"),
              testing::AllOf(HasSubstr("line 3"), HasSubstr("kill-coordinator")));
  EXPECT_THAT(Refused("summary: x\nfaults:\n  - kill: worker\n    pause: worker\n"),
              HasSubstr("one kind"));
  EXPECT_THAT(Refused("summary: x\nfaults:\n  - kill: worker\n    at: 3s\n    step: 4\n"),
              HasSubstr("one of at, after, step"));
  EXPECT_THAT(Refused("summary: x\nfaults:\n  - slow: node\n"), HasSubstr("needs 'kbit'"));
  EXPECT_THAT(Refused("summary: x\nfaults:\n  - kill: worker\n    percent: 3\n"),
              HasSubstr("belongs to 'lossy'"));
  EXPECT_THAT(Refused("summary: x\nfaults:\n  - kill: worker\n    at: 9s..3s\n"),
              HasSubstr("3s is less than 9s"));
  EXPECT_THAT(Refused("summary: x\nfaults:\n  - kill: worker\n    at: soon\n"), HasSubstr("soon"));
  EXPECT_THAT(Refused("summary: x\nfaults:\n  - kill: 9 workers\n"), HasSubstr("there are 4"));
  EXPECT_THAT(Refused("summary: x\nfaults:\n  - kill: worker\n    every: 3s\n"),
              HasSubstr("run_for"));
  EXPECT_THAT(Refused("summary: x\nswarm: {every: 3s, of: [kill, dance]}\nrun_for: 9s\n"),
              HasSubstr("'dance'"));
  EXPECT_THAT(Refused("summary: [x\n"), HasSubstr("line"));
  EXPECT_THAT(Refused(""), HasSubstr("is a map"));
  EXPECT_THAT(Refused("- a\n- b\n"), HasSubstr("is a map"));
}

TEST(Scenario, AllThatShipCanBeReadAndDrawn) {
  const std::string directory = std::string(MUSTER_SOURCE_DIR) + "/chaos/scenarios";
  const std::vector<std::string> names = ScenariosIn(directory);
  EXPECT_GE(names.size(), 20U);
  for (const std::string& name : names) {
    const Result<Scenario> scenario = LoadScenario(name, directory);
    ASSERT_TRUE(scenario.ok()) << scenario.status().ToString();
    EXPECT_FALSE(Draw(*scenario, 1, kAll).faults.empty()) << name;
  }
  const Result<Scenario> unknown = LoadScenario("nothing-such", directory);
  ASSERT_FALSE(unknown.ok());
  EXPECT_THAT(unknown.status().message(), HasSubstr("single-kill"));
}

std::string TextOf(const Schedule& schedule) {
  std::string text;
  for (const PlannedFault& fault : schedule.faults) text += Describe(fault) + "\n";
  return text;
}

TEST(Schedule, IsTheSameForTheSameSeedAndAnotherForAnother) {
  const Scenario scenario = Parsed("run_for: 60s\nswarm: {every: 2s}\n");
  const std::string first = TextOf(Draw(scenario, 7, kAll));
  EXPECT_EQ(first, TextOf(Draw(scenario, 7, kAll)));
  EXPECT_NE(first, TextOf(Draw(scenario, 8, kAll)));
}

TEST(Schedule, StaysWithinTheBoundsOfTheScenario) {
  const Scenario scenario = Parsed(
      "nodes: 3\nfaults:\n  - cut: 2 nodes\n    at: 2s..4s\n    for: 1s..2s\n    from: one\n");
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const PlannedFault fault = Draw(scenario, seed, kAll).faults.at(0);
    EXPECT_GE(fault.time, Duration::Seconds(2));
    EXPECT_LE(fault.time, Duration::Seconds(4));
    EXPECT_GE(fault.hold, Duration::Seconds(1));
    EXPECT_LE(fault.hold, Duration::Seconds(2));
    ASSERT_EQ(fault.nodes.size(), 2U);
    ASSERT_EQ(fault.peers.size(), 1U);
    EXPECT_NE(fault.nodes[0], fault.nodes[1]);
    EXPECT_EQ(std::count(fault.nodes.begin(), fault.nodes.end(), fault.peers[0]), 0);
  }
}

TEST(Schedule, ComesAtTheRateThatWasAskedFor) {
  const Scenario scenario = Parsed("run_for: 1h\nfaults:\n  - kill: worker\n    every: 10s\n");
  const std::size_t count = Draw(scenario, 3, kAll).faults.size();
  // 360 are expected; six standard deviations of a Poisson process are 114.
  EXPECT_GT(count, 246U);
  EXPECT_LT(count, 474U);
}

TEST(Schedule, NamesWhatThisMachineCannotDo) {
  const Scenario scenario =
      Parsed("faults:\n  - kill: worker\n  - link-down: node\n  - fill-index-disk:\n");
  const Schedule schedule = Draw(scenario, 1, Powers{});
  ASSERT_EQ(schedule.faults.size(), 1U);
  ASSERT_EQ(schedule.left_out.size(), 2U);
  EXPECT_THAT(schedule.left_out[0].reason, HasSubstr("network"));
  EXPECT_THAT(schedule.left_out[1].reason, HasSubstr("disk"));
}

class CampaignTest : public testing::Test {
 protected:
  void Make(const std::string& text) {
    scenario_ = Parsed(text);
    campaign_.emplace(scenario_, Draw(scenario_, 1, kAll).faults, 0, 2, 4);
  }
  void Commit(std::int64_t step, std::int64_t t_ns) {
    StepRecord record;
    record.step = step;
    record.t_ns = t_ns;
    campaign_->Committed(record);
  }
  std::optional<PlannedFault> DueAt(std::int64_t now_ns, bool reforming = false) {
    return campaign_->Due({.now_ns = now_ns, .reforming = reforming, .saving = false}, done_);
  }
  void Made(const PlannedFault& fault, std::int64_t begun, std::int64_t over) {
    Injection injection;
    injection.planned = fault;
    injection.begun_ns = begun;
    injection.over_ns = over;
    done_.push_back(injection);
    campaign_->MarkBlocking(&done_);
  }

  Scenario scenario_;
  std::optional<Campaign> campaign_;
  std::vector<Injection> done_;
};

TEST_F(CampaignTest, OneAfterAnotherWaitsForTheNextStep) {
  Make("faults:\n  - pause: worker\n    after: 1s\n  - kill: worker\n    after: 2s\n");
  Commit(1, kSecond / 2);
  EXPECT_FALSE(DueAt(kSecond - 1));
  const auto first = DueAt(kSecond);
  ASSERT_TRUE(first);
  Made(*first, kSecond, 0);
  Commit(2, 9 * kSecond);
  EXPECT_FALSE(DueAt(9 * kSecond)) << "the first is not over";
  done_[0].over_ns = 10 * kSecond;
  EXPECT_FALSE(DueAt(20 * kSecond)) << "no step since";
  Commit(3, 11 * kSecond);
  EXPECT_FALSE(DueAt(12 * kSecond - 1));
  EXPECT_TRUE(DueAt(12 * kSecond));
}

TEST_F(CampaignTest, AStepAndAPhaseAreWaitedFor) {
  Make("faults:\n  - kill: worker\n    step: 5\n  - kill: worker\n    during: reform\n");
  Commit(4, kSecond);
  EXPECT_FALSE(DueAt(kSecond, true)) << "the second waits for the first";
  Commit(5, 2 * kSecond);
  const auto first = DueAt(2 * kSecond);
  ASSERT_TRUE(first);
  Made(*first, 2 * kSecond, 2 * kSecond);
  EXPECT_TRUE(campaign_->AwaitsPhase());
  EXPECT_FALSE(DueAt(2 * kSecond, false));
  EXPECT_TRUE(DueAt(2 * kSecond, true));
}

TEST_F(CampaignTest, ALostStoreHasTheRunForItself) {
  Make("faults:\n  - lose-store:\n    at: 1s\n  - kill: worker\n    at: 1s\n");
  Commit(1, kSecond / 2);
  const auto first = DueAt(kSecond);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->kind, FaultKind::kLoseStore);
  Made(*first, kSecond, 0);
  EXPECT_FALSE(DueAt(2 * kSecond));
  done_[0].over_ns = 2 * kSecond;
  EXPECT_TRUE(DueAt(2 * kSecond));
}

TEST_F(CampaignTest, TooFewWorkersLeftMeansWaiting) {
  Make("nodes: 3\nfaults:\n  - pause: node a\n    at: 1s\n  - lose-node: node b\n    at: 1s\n");
  const auto first = DueAt(kSecond);
  ASSERT_TRUE(first);
  Made(*first, kSecond, 0);
  EXPECT_FALSE(done_[0].blocks) << "two of three are left, and two are enough";
  const auto second = DueAt(kSecond);
  ASSERT_TRUE(second);
  Made(*second, kSecond, 0);
  EXPECT_TRUE(done_[0].blocks);
  EXPECT_TRUE(done_[1].blocks);
}

TEST_F(CampaignTest, ADeathWithoutACoordinatorWaitsForItsReturn) {
  Make("faults:\n  - kill-coordinator:\n    at: 1s\n  - kill: worker\n    at: 2s\n");
  const auto first = DueAt(kSecond);
  Made(*first, kSecond, 0);
  EXPECT_FALSE(done_[0].blocks);
  const auto second = DueAt(2 * kSecond);
  Made(*second, 2 * kSecond, 2 * kSecond);
  EXPECT_TRUE(done_[0].blocks);
}

TEST_F(CampaignTest, IsOverAfterTheFaultsTheTimeAndSomeSteps) {
  Make("run_for: 10s\ncalm_steps: 5\nfaults:\n  - kill: worker\n    at: 1s\n");
  Commit(1, kSecond / 2);
  EXPECT_FALSE(campaign_->IsOver(11 * kSecond, 4, done_).over);
  const auto fault = DueAt(kSecond);
  Made(*fault, kSecond, kSecond);
  for (std::int64_t step = 2; step <= 6; ++step) Commit(step, 5 * kSecond);
  EXPECT_FALSE(campaign_->IsOver(5 * kSecond, 4, done_).over) << "the time is not over";
  EXPECT_FALSE(campaign_->IsOver(10 * kSecond, 3, done_).over) << "it has not grown back";
  EXPECT_TRUE(campaign_->IsOver(10 * kSecond, 4, done_).over);
  Commit(9, 74 * kSecond);
  EXPECT_THAT(campaign_->IsOver(75 * kSecond, 3, done_).trouble, HasSubstr("3 workers"));
}

TEST_F(CampaignTest, AJobThatStandsStillIsTrouble) {
  Make("faults:\n  - kill: worker\n    at: 1s\nexpect: {resume_within: 5s}\n");
  const auto fault = DueAt(kSecond);
  Made(*fault, kSecond, kSecond);
  Commit(7, kSecond / 2);
  EXPECT_TRUE(campaign_->IsOver(60 * kSecond, 4, done_).trouble.empty());
  EXPECT_THAT(campaign_->IsOver(62 * kSecond, 4, done_).trouble, HasSubstr("after step 7"));
}

}  // namespace
}  // namespace muster::chaos
