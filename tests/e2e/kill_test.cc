// Workers and launchers that die without a warning.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <string>

#include "tests/e2e/fixture.h"

namespace muster::chaos {
namespace {

using testing::HasSubstr;

class KillTest : public E2eTest {
 protected:
  // Causes under which the coordinator blames this worker, over all incidents.
  static std::vector<std::string> BlamesOf(const JobStatus& job, const std::string& worker) {
    std::vector<std::string> causes;
    for (const IncidentStatus& incident : job.incidents) {
      for (const BlameStatus& blame : incident.blamed) {
        if (blame.worker == worker) causes.push_back(blame.cause);
      }
    }
    return causes;
  }
};

TEST_F(KillTest, OneInTheMiddleOfAStep) {
  const Workload workload = Job();
  ASSERT_NO_FATAL_FAILURE(StartFour(workload));
  const JobStatus before = *lab().Job(workload.job);
  ASSERT_NO_FATAL_FAILURE(RememberSurvivors(before, {"a-0", "b-0", "d-0"}));
  const Result<Fault> fault = Strike(lab(), workload.job, "c", SIGKILL, 0.5);
  ASSERT_TRUE(fault.ok()) << fault.status().ToString();
  const Result<IncidentStatus> incident = AwaitIncident(lab(), workload.job, *fault, kBound);
  ASSERT_TRUE(incident.ok()) << incident.status().ToString();
  EXPECT_EQ(incident->cause, "process_died");
  EXPECT_EQ(incident->world_before, 4);
  EXPECT_EQ(incident->world_after, 3);
  EXPECT_EQ(incident->restored_from, "live");
  EXPECT_EQ(incident->steps_redone, 0);
  ASSERT_EQ(incident->blamed.size(), 1U);
  EXPECT_THAT(incident->blamed[0].evidence, HasSubstr(std::to_string(fault->pid)));
  const JobStatus after = AwaitFourAfter(workload, incident->to);
  ASSERT_NE(after.Named("c-0"), nullptr);
  EXPECT_NE(after.Named("c-0")->pid, fault->pid);
  ASSERT_NO_FATAL_FAILURE(LookAgain(after));
  const RunFacts facts = Finish(workload, kFourNodes, 4);
  EXPECT_EQ(StepsRedone(facts), 0);
}

TEST_F(KillTest, TwoAtOnce) {
  const Workload workload = Job();
  ASSERT_NO_FATAL_FAILURE(StartFour(workload));
  const JobStatus before = *lab().Job(workload.job);
  ASSERT_NO_FATAL_FAILURE(RememberSurvivors(before, {"a-0", "d-0"}));
  (void)KillNow(before.Named("b-0")->pid, SIGKILL);
  (void)KillNow(before.Named("c-0")->pid, SIGKILL);
  const JobStatus after = AwaitFourAfter(workload, before.generation);
  EXPECT_THAT(BlamesOf(after, "b-0"), testing::Contains("process_died"));
  EXPECT_THAT(BlamesOf(after, "c-0"), testing::Contains("process_died"));
  EXPECT_THAT(BlamesOf(after, "a-0"), testing::IsEmpty());
  EXPECT_THAT(BlamesOf(after, "d-0"), testing::IsEmpty());
  ASSERT_NO_FATAL_FAILURE(LookAgain(after));
  (void)Finish(workload, kFourNodes, 4);
}

// Worker d is held still, so that the re-form after the first death cannot end before the second.
TEST_F(KillTest, ASecondDuringTheReform) {
  Workload workload = Job();
  workload.failure_timeout = Duration::Seconds(10);
  ASSERT_NO_FATAL_FAILURE(StartFour(workload));
  const JobStatus before = *lab().Job(workload.job);
  ASSERT_NO_FATAL_FAILURE(RememberSurvivors(before, {"a-0", "d-0"}));
  (void)KillNow(before.Named("d-0")->pid, SIGSTOP);
  (void)KillNow(before.Named("b-0")->pid, SIGKILL);
  const JobStatus forming = Await(workload, "the re-form after the first death",
                                  [](const JobStatus& job) { return job.phase == "forming"; });
  EXPECT_THAT(forming.waiting_for, HasSubstr("d-0"));
  (void)KillNow(before.Named("c-0")->pid, SIGKILL);
  (void)Await(workload, "the second death", [](const JobStatus& job) {
    const WorkerStatus* c = job.Named("c-0");
    return c == nullptr || c->state != "alive" || c->role != "member";
  });
  (void)KillNow(before.Named("d-0")->pid, SIGCONT);
  const JobStatus after = AwaitFourAfter(workload, before.generation);
  EXPECT_THAT(BlamesOf(after, "b-0"), testing::Contains("process_died"));
  EXPECT_THAT(BlamesOf(after, "c-0"), testing::Contains("process_died"));
  EXPECT_THAT(BlamesOf(after, "d-0"), testing::IsEmpty());
  ASSERT_NO_FATAL_FAILURE(LookAgain(after));
  (void)Finish(workload, kFourNodes, 4);
}

TEST_F(KillTest, TheLauncherTakesItsWorkersAlong) {
  const Workload workload = Job();
  ASSERT_NO_FATAL_FAILURE(StartNodes(workload, {"a", "b"}, 2));
  ASSERT_TRUE(lab().AwaitStep(workload.job, 10, kBound).ok());
  const JobStatus before = *lab().Job(workload.job);
  ASSERT_EQ(before.world_size, 4);
  ASSERT_NO_FATAL_FAILURE(RememberSurvivors(before, {"b-0", "b-1"}));
  const std::int64_t orphans[] = {before.Named("a-0")->pid, before.Named("a-1")->pid};
  lab().At("a").Signal(SIGKILL);
  const JobStatus smaller = Await(workload, "two workers less", [&](const JobStatus& job) {
    return job.world_size == 2 && job.committed > before.committed && job.phase == "running";
  });
  for (const std::int64_t pid : orphans) EXPECT_FALSE(StartTicksOf(pid).has_value()) << pid;
  EXPECT_GT(smaller.generation, before.generation);
  ASSERT_NO_FATAL_FAILURE(StartNodes(workload, {"a"}, 2));
  const JobStatus after = AwaitFourAfter(workload, smaller.generation);
  ASSERT_NO_FATAL_FAILURE(LookAgain(after));
  (void)Finish(workload, {"a", "b"}, 4);
}

TEST_F(KillTest, BelowMinWorkersTheJobWaitsAndSaysForWhat) {
  Workload workload = Job();
  workload.min_workers = 4;
  ASSERT_NO_FATAL_FAILURE(StartFour(workload));
  const JobStatus before = *lab().Job(workload.job);
  ASSERT_NO_FATAL_FAILURE(RememberSurvivors(before, {"a-0", "b-0", "d-0"}));
  lab().At("c").Signal(SIGKILL);
  const JobStatus waiting = Await(workload, "waiting", [](const JobStatus& job) {
    return job.phase != "running" && job.waiting_for.find("3 of at least 4") != std::string::npos;
  });
  EXPECT_FALSE(waiting.ended());
  ASSERT_NO_FATAL_FAILURE(StartNodes(workload, {"c"}, 1));
  const JobStatus after = AwaitFourAfter(workload, before.generation);
  ASSERT_NO_FATAL_FAILURE(LookAgain(after));
  (void)Finish(workload, kFourNodes, 4);
}

TEST_F(KillTest, AllAtOnceGoesBackToTheCheckpoint) {
  Workload workload = Job();
  workload.checkpoints = true;
  workload.checkpoint_every = 20;
  ASSERT_NO_FATAL_FAILURE(StartFour(workload, 30));
  const JobStatus before = Await(workload, "a checkpoint", [](const JobStatus& job) {
    return std::any_of(
        job.checkpoints.begin(), job.checkpoints.end(),
        [](const CheckpointStatus& entry) { return entry.state == "announced" && entry.step > 0; });
  });
  ASSERT_EQ(before.workers.size(), 4U);
  for (const WorkerStatus& worker : before.workers) (void)KillNow(worker.pid, SIGKILL);
  const JobStatus after = AwaitFourAfter(workload, before.generation);
  EXPECT_TRUE(std::any_of(
      after.incidents.begin(), after.incidents.end(), [](const IncidentStatus& incident) {
        return incident.restored_from == "checkpoint" && incident.restored_step >= 20;
      }));
  const RunFacts facts = Finish(workload, kFourNodes, 4);
  EXPECT_FALSE(facts.rollbacks.empty());
}

}  // namespace
}  // namespace muster::chaos
