// Two jobs on one checkpoint directory (S16).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/e2e/fixture.h"

namespace muster::chaos {
namespace {

using testing::HasSubstr;

class RootTest : public E2eTest {
 protected:
  // One worker of `workload` under no launcher ends with an error that names the job that has the
  // directory.
  void ExpectRefused(const Workload& workload, const std::string& key, const std::string& holder) {
    ASSERT_TRUE(lab().StartWorker(workload, key, key).ok());
    const std::optional<int> ended = lab().At(key).Wait(kBound);
    ASSERT_TRUE(ended.has_value()) << lab().OutputOf(key);
    EXPECT_NE(ExitCode(*ended), 0) << lab().OutputOf(key);
    EXPECT_THAT(lab().OutputOf(key), HasSubstr("is in use by job " + holder));
    EXPECT_THAT(lab().OutputOf(key), HasSubstr(lab().CheckpointDirectory(workload)));
  }
};

TEST_F(RootTest, ASecondJobIsRefusedWhileTheFirstLivesOrIsStopped) {
  Workload first = Job(true);
  first.steps = 1'000'000;
  first.max_workers = 1;
  first.checkpoint_directory = lab().directory() + "/checkpoints";
  Workload second = first;
  second.job = "second";
  second.steps = 30;
  ASSERT_TRUE(lab().StartWorker(first, "first", "first").ok());
  ASSERT_TRUE(lab().AwaitStep(first.job, 10, kBound).ok());
  ASSERT_NO_FATAL_FAILURE(ExpectRefused(second, "late", first.job));

  const std::int64_t pid = lab().Job(first.job)->Named("first")->pid;
  (void)KillNow(pid, SIGSTOP);
  ASSERT_NO_FATAL_FAILURE(ExpectRefused(second, "later", first.job));
  (void)KillNow(pid, SIGCONT);
  ASSERT_TRUE(lab().Records(first.job).Poll().ok());
  const std::int64_t step = lab().Records(first.job).last_step();
  EXPECT_TRUE(lab().AwaitStep(first.job, step + 50, kBound).ok()) << lab().OutputOf("first");

  (void)KillNow(pid, SIGKILL);
  ASSERT_TRUE(lab().At("first").Wait(kBound).has_value());
  ASSERT_TRUE(lab().StartWorker(second, "last", "last").ok());
  EXPECT_TRUE(lab().AwaitExit({"last"}, kBound).ok()) << lab().OutputOf("last");
}

}  // namespace
}  // namespace muster::chaos
