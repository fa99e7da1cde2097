// Checkpoint directories that are full or read-only: file systems of their own, so only as root.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "tests/e2e/fixture.h"

namespace muster::chaos {
namespace {

using testing::HasSubstr;

class DiskTest : public E2eTest {
 protected:
  void TearDown() override {
    // The workers must be gone before the file system can be.
    if (!mounted_.empty()) umount2(mounted_.c_str(), MNT_DETACH);
    E2eTest::TearDown();
  }
  // Mounts a tmpfs; false when this machine does not let us.
  bool Mount(const std::string& path, const std::string& data, unsigned long flags) {
    std::filesystem::create_directories(path);
    if (mount("tmpfs", path.c_str(), "tmpfs", flags, data.c_str()) != 0) return false;
    mounted_ = path;
    return true;
  }

 private:
  std::string mounted_;
};

TEST_F(DiskTest, AFullDiskCostsCheckpointsButNotTheTraining) {
  Workload workload = Job();
  workload.checkpoints = true;
  workload.checkpoint_every = 20;
  workload.checkpoint_directory = lab().directory() + "/small-disk";
  if (!Mount(workload.checkpoint_directory, "size=64k", 0)) {
    GTEST_SKIP() << "cannot mount a small disk: " << std::strerror(errno);
  }
  ASSERT_NO_FATAL_FAILURE(StartFour(workload));
  const JobStatus before = *lab().Job(workload.job);
  ASSERT_NO_FATAL_FAILURE(RememberSurvivors(before, {"a-0", "b-0", "c-0", "d-0"}));
  const JobStatus aborted = Await(workload, "a save that was given up", [](const JobStatus& job) {
    return job.saves_aborted > 0 || job.ended();
  });
  EXPECT_GT(aborted.saves_aborted, 0);
  ASSERT_NO_FATAL_FAILURE(LookAgain(aborted));
  const RunFacts facts = Finish(workload, kFourNodes, 4);
  EXPECT_TRUE(facts.evictions.empty());
}

TEST_F(DiskTest, AReadOnlyCheckpointDirectoryIsNamed) {
  Workload workload = Job(true);
  workload.checkpoint_directory = lab().directory() + "/read-only";
  if (!Mount(workload.checkpoint_directory, "", MS_RDONLY)) {
    GTEST_SKIP() << "cannot mount a read-only disk: " << std::strerror(errno);
  }
  ASSERT_TRUE(lab().StartWorker(workload, "worker", "").ok());
  const std::optional<int> ended = lab().At("worker").Wait(kBound);
  ASSERT_TRUE(ended.has_value()) << lab().OutputOf("worker");
  EXPECT_NE(ExitCode(*ended), 0);
  EXPECT_THAT(lab().OutputOf("worker"), HasSubstr(workload.checkpoint_directory));
}

TEST_F(DiskTest, ShardedStateThatCannotBeSavedEndsBeforeTheFirstStep) {
  Workload workload = Job(true);
  workload.max_workers = 1;
  workload.checkpoint_directory = lab().directory() + "/small-disk";
  if (!Mount(workload.checkpoint_directory, "size=8k", 0)) {
    GTEST_SKIP() << "cannot mount a small disk: " << std::strerror(errno);
  }
  ASSERT_TRUE(lab().StartWorker(workload, "worker", "").ok());
  const std::optional<int> ended = lab().At("worker").Wait(kBound);
  ASSERT_TRUE(ended.has_value()) << lab().OutputOf("worker");
  EXPECT_NE(ExitCode(*ended), 0);
  EXPECT_THAT(lab().OutputOf("worker"), HasSubstr("checkpoint"));
}

}  // namespace
}  // namespace muster::chaos
