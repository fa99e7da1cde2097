// The coordinator dies and comes back.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>

#include "tests/e2e/fixture.h"

namespace muster::chaos {
namespace {

class CoordinatorTest : public E2eTest {
 protected:
  std::int64_t LastStep(const Workload& workload) {
    EXPECT_TRUE(lab().Records(workload.job).Poll().ok());
    return lab().Records(workload.job).last_step();
  }
  // All four have a session with it and have been heard since, or the job is over.
  JobStatus AwaitAllBack(const Workload& workload, std::int64_t step) {
    return Await(workload, "four workers back", [&](const JobStatus& job) {
      if (job.phase == "ended") return true;
      return job.Count("member") == 4 && job.phase == "running" && job.committed >= step;
    });
  }
};

TEST_F(CoordinatorTest, TrainingGoesOnWithoutItAndNoOneIsHarmed) {
  Workload workload = Job();
  // Mostly not over before the coordinator is back the second time, also on a busy machine.
  workload.steps = 1500;
  ASSERT_NO_FATAL_FAILURE(StartFour(workload));
  const JobStatus before = *lab().Job(workload.job);
  ASSERT_NO_FATAL_FAILURE(RememberSurvivors(before, {"a-0", "b-0", "c-0", "d-0"}));
  for (int round = 0; round < 2; ++round) {
    lab().KillCoordinator();
    const std::int64_t step = std::min(LastStep(workload) + 20, workload.steps);
    const Status grew = lab().AwaitStep(workload.job, step, kBound);
    ASSERT_TRUE(grew.ok()) << grew.ToString();
    const Status started = lab().StartCoordinator();
    ASSERT_TRUE(started.ok()) << started.ToString();
    const JobStatus after = AwaitAllBack(workload, step);
    if (after.phase == "ended") break;
    EXPECT_EQ(after.generation, before.generation);
    ASSERT_NO_FATAL_FAILURE(LookAgain(after));
  }
  const RunFacts facts = Finish(workload, kFourNodes, 4);
  EXPECT_TRUE(facts.evictions.empty());
}

TEST_F(CoordinatorTest, ADeathWhileItIsDownWaitsForItsReturn) {
  const Workload workload = Job();
  ASSERT_NO_FATAL_FAILURE(StartFour(workload));
  const JobStatus before = *lab().Job(workload.job);
  ASSERT_NO_FATAL_FAILURE(RememberSurvivors(before, {"a-0", "b-0", "d-0"}));
  const std::int64_t dead = before.Named("c-0")->pid;
  lab().KillCoordinator();
  (void)KillNow(dead, SIGKILL);
  const Status started = lab().StartCoordinator();
  ASSERT_TRUE(started.ok()) << started.ToString();
  const JobStatus after = AwaitFourAfter(workload, before.generation);
  ASSERT_NE(after.Named("c-0"), nullptr);
  EXPECT_NE(after.Named("c-0")->pid, dead);
  ASSERT_NO_FATAL_FAILURE(LookAgain(after));
  (void)Finish(workload, kFourNodes, 4);
}

TEST_F(CoordinatorTest, TheEndOfAJobOutlivesIt) {
  Workload workload = Job();
  workload.steps = 30;
  ASSERT_NO_FATAL_FAILURE(StartNodes(workload, {"a"}, 4));
  ASSERT_TRUE(lab().AwaitExit({"a"}, kBound).ok()) << lab().OutputOf("a");
  lab().KillCoordinator();
  ASSERT_TRUE(lab().StartCoordinator().ok());
  const Result<JobStatus> after = lab().Job(workload.job);
  ASSERT_TRUE(after.ok()) << after.status().ToString();
  EXPECT_TRUE(after->ended());
  EXPECT_EQ(after->committed, 30);
}

}  // namespace
}  // namespace muster::chaos
