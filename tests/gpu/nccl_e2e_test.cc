// What Muster promises, over NCCL: the scenarios of tests/e2e and those that only GPUs have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>

#include "tests/gpu/nccl_fixture.h"

namespace muster::chaos {
namespace {

using testing::HasSubstr;

class NcclTest : public NcclE2eTest {};

TEST_F(NcclTest, AKilledPeer) {
  const Workload workload = GpuJob();
  ASSERT_NO_FATAL_FAILURE(StartFour(workload));
  const JobStatus before = *lab().Job(workload.job);
  ASSERT_NO_FATAL_FAILURE(RememberSurvivors(before, {"a-0", "b-0", "d-0"}));
  const Result<Fault> fault = Strike(lab(), workload.job, "c", SIGKILL, 0.5);
  ASSERT_TRUE(fault.ok()) << fault.status().ToString();
  const Result<IncidentStatus> incident = AwaitIncident(lab(), workload.job, *fault, kBound);
  ASSERT_TRUE(incident.ok()) << incident.status().ToString();
  EXPECT_EQ(incident->world_after, 3);
  EXPECT_EQ(incident->restored_from, "live");
  EXPECT_EQ(incident->steps_redone, 0);
  const JobStatus after = AwaitFourAfter(workload, incident->to);
  ASSERT_NO_FATAL_FAILURE(LookAgain(after));
  EXPECT_THAT(lab().OutputOf("a"), HasSubstr("gradients go over NCCL"));
  (void)Finish(workload, kFourNodes, 4);
}

// The kernels of the others spin, and no error tells them why.
TEST_F(NcclTest, APausedPeerIsFencedWakesAndRejoinsInTheSameProcess) {
  Workload workload = GpuJob();
  workload.failure_timeout = Duration::Millis(500);
  ASSERT_NO_FATAL_FAILURE(StartFour(workload));
  const JobStatus before = *lab().Job(workload.job);
  ASSERT_NO_FATAL_FAILURE(RememberSurvivors(before, {"a-0", "b-0", "c-0", "d-0"}));
  const Result<Fault> fault = Strike(lab(), workload.job, "c", SIGSTOP, 0.5);
  ASSERT_TRUE(fault.ok()) << fault.status().ToString();
  const Result<IncidentStatus> incident = AwaitIncident(lab(), workload.job, *fault, kBound);
  ASSERT_TRUE(incident.ok()) << incident.status().ToString();
  EXPECT_EQ(incident->world_after, 3);
  (void)KillNow(fault->pid, SIGCONT);
  const JobStatus after = AwaitFourAfter(workload, incident->to);
  ASSERT_NO_FATAL_FAILURE(LookAgain(after));
  (void)Finish(workload, kFourNodes, 4);
}

// Worker d is held still, so that the re-form after the first death cannot end before the second.
TEST_F(NcclTest, ASecondDeathDuringTheReform) {
  Workload workload = GpuJob();
  workload.failure_timeout = Duration::Seconds(10);
  ASSERT_NO_FATAL_FAILURE(StartFour(workload));
  const JobStatus before = *lab().Job(workload.job);
  ASSERT_NO_FATAL_FAILURE(RememberSurvivors(before, {"a-0"}));
  (void)KillNow(before.Named("d-0")->pid, SIGSTOP);
  (void)KillNow(before.Named("b-0")->pid, SIGKILL);
  (void)Await(workload, "the re-form after the first death",
              [](const JobStatus& job) { return job.phase == "forming"; });
  (void)KillNow(before.Named("c-0")->pid, SIGKILL);
  (void)Await(workload, "the second death", [](const JobStatus& job) {
    const WorkerStatus* c = job.Named("c-0");
    return c == nullptr || c->state != "alive" || c->role != "member";
  });
  (void)KillNow(before.Named("d-0")->pid, SIGCONT);
  const JobStatus after = AwaitFourAfter(workload, before.generation);
  ASSERT_NO_FATAL_FAILURE(LookAgain(after));
  (void)Finish(workload, kFourNodes, 4);
}

// C01, the first half: an abort returns only when all ranks of the host have aborted or ended. Two
// hosts with two GPUs each; on one of them a rank dies, on the other all have to abort together.
TEST_F(NcclTest, RanksOfOneHostAbortTogether) {
  const Workload workload = GpuJob();
  ASSERT_NO_FATAL_FAILURE(StartNodes(workload, {"a", "b"}, 2));
  const JobStatus before = Await(workload, "four workers", [](const JobStatus& job) {
    return job.world_size == 4 && job.phase == "running" && job.committed >= 5;
  });
  ASSERT_EQ(before.world_size, 4);
  ASSERT_NO_FATAL_FAILURE(RememberSurvivors(before, {"a-0", "b-0", "b-1"}));
  (void)KillNow(before.Named("a-1")->pid, SIGKILL);
  const JobStatus after = AwaitFourAfter(workload, before.generation);
  ASSERT_NO_FATAL_FAILURE(LookAgain(after));
  (void)Finish(workload, {"a", "b"}, 4);
}

// Nobody has died: the communicator is a new one, the members are the same, in the same processes.
TEST_F(NcclTest, AnErrorOnOneRankAlone) {
  const Workload workload = GpuJob();
  const std::string armed = Switch("error");
  ASSERT_NO_FATAL_FAILURE(StartFourWith(workload, "async-error@when=" + armed));
  const JobStatus before = *lab().Job(workload.job);
  ASSERT_NO_FATAL_FAILURE(RememberSurvivors(before, {"a-0", "b-0", "c-0", "d-0"}));
  On(armed);
  (void)Await(workload, "an incident", [&](const JobStatus& job) {
    return job.generation > before.generation || job.phase == "forming";
  });
  Off(armed);
  const JobStatus after = AwaitFourAfter(workload, before.generation);
  EXPECT_EQ(after.incidents.front().world_after, 4);
  ASSERT_NO_FATAL_FAILURE(LookAgain(after));
  (void)Finish(workload, kFourNodes, 4);
}

// C01, the second half: worker c's abort never ends. It is given up and killed; the others wait for
// it no longer than that, and its successor is taken in.
TEST_F(NcclTest, AnAbortThatHangs) {
  const Workload workload = GpuJob();
  const std::string armed = Switch("abort");
  ASSERT_NO_FATAL_FAILURE(StartFourWith(workload, "abort-hang@when=" + armed));
  const JobStatus before = *lab().Job(workload.job);
  ASSERT_NO_FATAL_FAILURE(RememberSurvivors(before, {"a-0", "d-0"}));
  On(armed);
  (void)KillNow(before.Named("b-0")->pid, SIGKILL);
  const std::int64_t stuck = before.Named("c-0")->pid;
  (void)Await(workload, "the end of the stuck process",
              [&](const JobStatus&) { return !StartTicksOf(stuck).has_value(); });
  Off(armed);
  EXPECT_THAT(lab().OutputOf("c"), HasSubstr("could not be aborted"));
  const JobStatus after = AwaitFourAfter(workload, before.generation);
  ASSERT_NO_FATAL_FAILURE(LookAgain(after));
  (void)Finish(workload, kFourNodes, 4);
}

// C02: one rank never comes, and the others wait without an error. The new communicator is never
// complete: the attempt is given up, and the next one succeeds.
TEST_F(NcclTest, AnInitThatHangs) {
  const Workload workload = GpuJob();
  const std::string armed = Switch("init");
  ASSERT_NO_FATAL_FAILURE(StartFourWith(workload, "init-hang@when=" + armed));
  const JobStatus before = *lab().Job(workload.job);
  ASSERT_NO_FATAL_FAILURE(RememberSurvivors(before, {"a-0", "d-0"}));
  On(armed);
  (void)KillNow(before.Named("b-0")->pid, SIGKILL);
  (void)Await(workload, "a second attempt", [&](const JobStatus& job) {
    return job.generation > before.generation + 1 ||
           (!job.incidents.empty() && job.incidents.back().attempts > 1);
  });
  Off(armed);
  const JobStatus after = AwaitFourAfter(workload, before.generation);
  ASSERT_NO_FATAL_FAILURE(LookAgain(after));
  (void)Finish(workload, kFourNodes, 4);
}

// A sticky error after the abort: the device is lost to this process, which says so and ends.
TEST_F(NcclTest, ADeviceThatIsLost) {
  const Workload workload = GpuJob();
  const std::string armed = Switch("sticky");
  ASSERT_NO_FATAL_FAILURE(StartFourWith(workload, "abort-sticky@when=" + armed));
  const JobStatus before = *lab().Job(workload.job);
  ASSERT_NO_FATAL_FAILURE(RememberSurvivors(before, {"a-0", "d-0"}));
  On(armed);
  (void)KillNow(before.Named("b-0")->pid, SIGKILL);
  const std::int64_t lost = before.Named("c-0")->pid;
  (void)Await(workload, "the end of the process with the lost device",
              [&](const JobStatus&) { return !StartTicksOf(lost).has_value(); });
  Off(armed);
  EXPECT_THAT(lab().OutputOf("c"), HasSubstr("this worker is given up"));
  const JobStatus after = AwaitFourAfter(workload, before.generation);
  ASSERT_NO_FATAL_FAILURE(LookAgain(after));
  (void)Finish(workload, kFourNodes, 4);
}

TEST_F(NcclTest, Growth) {
  const Workload workload = GpuJob();
  ASSERT_NO_FATAL_FAILURE(StartNodes(workload, {"a", "b"}, 1));
  const JobStatus before = Await(workload, "two workers", [](const JobStatus& job) {
    return job.world_size == 2 && job.committed >= 5;
  });
  ASSERT_NO_FATAL_FAILURE(RememberSurvivors(before, {"a-0", "b-0"}));
  ASSERT_NO_FATAL_FAILURE(StartNodes(workload, {"c", "d"}, 1));
  const JobStatus after = AwaitFourAfter(workload, before.generation);
  ASSERT_NO_FATAL_FAILURE(LookAgain(after));
  const RunFacts facts = Finish(workload, kFourNodes, 4);
  EXPECT_EQ(StepsRedone(facts), 0);
}

// Shards on devices die with their worker, and come back from the checkpoint.
TEST_F(NcclTest, ShardsOnDevices) {
  const Workload workload = GpuJob(/*sharded=*/true);
  ASSERT_NO_FATAL_FAILURE(StartFour(workload, 30));
  const JobStatus before = *lab().Job(workload.job);
  ASSERT_NO_FATAL_FAILURE(RememberSurvivors(before, {"a-0", "b-0", "d-0"}));
  (void)KillNow(before.Named("c-0")->pid, SIGKILL);
  const JobStatus after = AwaitFourAfter(workload, before.generation);
  ASSERT_NO_FATAL_FAILURE(LookAgain(after));
  (void)Finish(workload, kFourNodes, 4);
}

// The same tensors on devices and the same sums, with nothing of NCCL.
TEST_F(NcclTest, DevicesOverTcp) {
  Workload workload = GpuJob();
  workload.flags = {"--device", "cuda", "--backend", "tcp"};
  ASSERT_NO_FATAL_FAILURE(StartFour(workload));
  const JobStatus before = *lab().Job(workload.job);
  ASSERT_NO_FATAL_FAILURE(RememberSurvivors(before, {"a-0", "b-0", "d-0"}));
  (void)KillNow(before.Named("c-0")->pid, SIGKILL);
  const JobStatus after = AwaitFourAfter(workload, before.generation);
  ASSERT_NO_FATAL_FAILURE(LookAgain(after));
  (void)Finish(workload, kFourNodes, 4);
}

}  // namespace
}  // namespace muster::chaos
