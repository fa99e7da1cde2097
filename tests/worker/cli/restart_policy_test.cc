#include "worker/cli/restart_policy.h"

#include <gtest/gtest.h>

#include <csignal>

namespace muster::cli {
namespace {

Instant At(std::int64_t ms) { return Instant() + Duration::Millis(ms); }

RestartPolicy Policy() {
  return {.max_restarts = 3,
          .window = Duration::Seconds(100),
          .first_pause = Duration::Millis(200),
          .max_pause = Duration::Seconds(30)};
}

TEST(DecideRestartTest, PausesDoubleUntilTheBudgetIsSpent) {
  std::vector<Instant> failures;
  for (const std::int64_t pause_ms : {200, 400, 800}) {
    failures.push_back(At(static_cast<std::int64_t>(failures.size()) * 1000));
    const RestartDecision decision = DecideRestart(Policy(), failures, failures.back());
    EXPECT_TRUE(decision.restart);
    EXPECT_EQ(decision.pause.millis(), pause_ms);
    EXPECT_EQ(decision.failures, static_cast<int>(failures.size()));
  }
  failures.push_back(At(5000));
  const RestartDecision last = DecideRestart(Policy(), failures, failures.back());
  EXPECT_FALSE(last.restart);
  EXPECT_EQ(last.failures, 4);
}

TEST(DecideRestartTest, FailuresOutsideOfTheWindowAreForgotten) {
  const std::vector<Instant> failures = {At(0), At(1), At(2), At(100'001)};
  const RestartDecision decision = DecideRestart(Policy(), failures, failures.back());
  EXPECT_TRUE(decision.restart);
  EXPECT_EQ(decision.failures, 2);
  EXPECT_EQ(decision.pause.millis(), 400);
}

TEST(DecideRestartTest, PauseIsBoundedHoweverManyFailures) {
  RestartPolicy policy = Policy();
  policy.max_restarts = 1000;
  const std::vector<Instant> failures(200, At(7));
  const RestartDecision decision = DecideRestart(policy, failures, At(7));
  EXPECT_TRUE(decision.restart);
  EXPECT_EQ(decision.pause, policy.max_pause);
}

TEST(DecideRestartTest, ABudgetOfNoneNeverRestarts) {
  RestartPolicy policy = Policy();
  policy.max_restarts = 0;
  EXPECT_FALSE(DecideRestart(policy, {At(1)}, At(1)).restart);
}

TEST(DecideRestartTest, NoPauseStaysNone) {
  RestartPolicy policy = Policy();
  policy.first_pause = Duration();
  EXPECT_EQ(DecideRestart(policy, {At(1), At(2), At(3)}, At(3)).pause, Duration());
}

TEST(RestartPolicyTest, NonsenseIsNamedByItsFlag) {
  EXPECT_EQ(Policy().Problem(), "");
  RestartPolicy policy = Policy();
  policy.max_restarts = -1;
  EXPECT_NE(policy.Problem().find("--max-restarts"), std::string::npos);
  policy = Policy();
  policy.window = Duration();
  EXPECT_NE(policy.Problem().find("--restart-window"), std::string::npos);
  policy = Policy();
  policy.first_pause = Duration::Seconds(31);
  EXPECT_NE(policy.Problem().find("--restart-pause"), std::string::npos);
}

TEST(ExitStateTest, SaysHowAndGivesAShellsCode) {
  EXPECT_TRUE(ExitState{}.ok());
  EXPECT_EQ(ExitState{}.Remedy(), "");
  const ExitState exited{.code = 3};
  EXPECT_FALSE(exited.ok());
  EXPECT_EQ(exited.ShellCode(), 3);
  EXPECT_EQ(exited.ToString(), "exited with code 3");
  const ExitState killed{.signal = SIGKILL};
  EXPECT_FALSE(killed.ok());
  EXPECT_EQ(killed.ShellCode(), 137);
  EXPECT_EQ(killed.ToString(), "killed by signal 9 (SIGKILL)");
  EXPECT_NE(killed.Remedy().find("memory"), std::string::npos);
  const ExitState crashed{.signal = SIGSEGV, .core_dumped = true};
  EXPECT_EQ(crashed.ToString(), "killed by signal 11 (SIGSEGV), core dumped");
}

TEST(DurationTextTest, UsesTheUnitThatFits) {
  EXPECT_EQ(DurationText(Duration::Millis(200)), "200 ms");
  EXPECT_EQ(DurationText(Duration::Millis(1500)), "1.5 s");
  EXPECT_EQ(DurationText(Duration::Seconds(300)), "300 s");
}

}  // namespace
}  // namespace muster::cli
