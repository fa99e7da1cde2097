// Workers that stand still for longer than the failure timeout, and workers that are asked to stop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>

#include "tests/e2e/fixture.h"

namespace muster::chaos {
namespace {

using PauseTest = E2eTest;

TEST_F(PauseTest, APausedWorkerIsFencedWakesAndRejoinsInTheSameProcess) {
  Workload workload = Job();
  workload.failure_timeout = Duration::Millis(500);
  ASSERT_NO_FATAL_FAILURE(StartFour(workload));
  const JobStatus before = *lab().Job(workload.job);
  ASSERT_NO_FATAL_FAILURE(RememberSurvivors(before, {"a-0", "b-0", "c-0", "d-0"}));
  const Result<Fault> fault = Strike(lab(), workload.job, "c", SIGSTOP, 0.5);
  ASSERT_TRUE(fault.ok()) << fault.status().ToString();
  const Result<IncidentStatus> incident = AwaitIncident(lab(), workload.job, *fault, kBound);
  ASSERT_TRUE(incident.ok()) << incident.status().ToString();
  EXPECT_EQ(incident->world_after, 3);
  EXPECT_EQ(incident->blamed.front().cause, "lease_expired");
  (void)KillNow(fault->pid, SIGCONT);
  const JobStatus after = AwaitFourAfter(workload, incident->to);
  ASSERT_NE(after.Named("c-0"), nullptr);
  EXPECT_NE(after.Named("c-0")->incarnation, before.Named("c-0")->incarnation);
  ASSERT_NO_FATAL_FAILURE(LookAgain(after));
  (void)Finish(workload, kFourNodes, 4);
}

TEST_F(PauseTest, AShortPauseHarmsNoOne) {
  Workload workload = Job();
  workload.failure_timeout = Duration::Seconds(30);
  ASSERT_NO_FATAL_FAILURE(StartFour(workload));
  const JobStatus before = *lab().Job(workload.job);
  ASSERT_NO_FATAL_FAILURE(RememberSurvivors(before, {"a-0", "b-0", "c-0", "d-0"}));
  const Result<Fault> fault = Strike(lab(), workload.job, "c", SIGSTOP, 0.5);
  ASSERT_TRUE(fault.ok()) << fault.status().ToString();
  (void)KillNow(fault->pid, SIGCONT);
  ASSERT_TRUE(lab().AwaitStep(workload.job, fault->last_step + 20, kBound).ok());
  const JobStatus after = *lab().Job(workload.job);
  EXPECT_EQ(after.generation, before.generation);
  ASSERT_NO_FATAL_FAILURE(LookAgain(after));
  (void)Finish(workload, kFourNodes, 4);
}

TEST_F(PauseTest, SigtermIsAPlannedLeave) {
  const Workload workload = Job();
  ASSERT_NO_FATAL_FAILURE(StartFour(workload));
  const JobStatus before = *lab().Job(workload.job);
  ASSERT_NO_FATAL_FAILURE(RememberSurvivors(before, {"a-0", "b-0", "d-0"}));
  (void)KillNow(before.Named("c-0")->pid, SIGTERM);
  ASSERT_TRUE(lab().AwaitExit({"c"}, kBound).ok()) << lab().OutputOf("c");
  const JobStatus after = Await(workload, "three workers in step", [&](const JobStatus& job) {
    return job.world_size == 3 && job.phase == "running" && !job.incidents.empty() &&
           job.incidents.back().complete;
  });
  ASSERT_FALSE(after.incidents.empty());
  const IncidentStatus& leave = after.incidents.back();
  EXPECT_EQ(leave.cause, "leave");
  EXPECT_TRUE(leave.blamed.empty());
  EXPECT_EQ(leave.steps_redone, 0);
  ASSERT_NO_FATAL_FAILURE(LookAgain(after));
  const RunFacts facts = Finish(workload, {"a", "b", "d"}, 3);
  EXPECT_TRUE(facts.evictions.empty());
}

}  // namespace
}  // namespace muster::chaos
