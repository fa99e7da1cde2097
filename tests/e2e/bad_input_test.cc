// Wrong input and a hostile environment: each gives one clear line that names the thing, a non-zero
// exit where a program ends, and loses nothing.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>

#include "protocol/transport/steady_clock.h"
#include "tests/e2e/fixture.h"

namespace muster::chaos {
namespace {

using testing::HasSubstr;

class BadInputTest : public E2eTest {
 protected:
  // The exit code of a char_lm that is refused; `key` names its output.
  int Refused(const Workload& workload, const std::string& key, const std::string& worker) {
    const Status started = lab().StartWorker(workload, key, worker);
    EXPECT_TRUE(started.ok()) << started.ToString();
    const std::optional<int> ended = lab().At(key).Wait(kBound);
    EXPECT_TRUE(ended.has_value()) << lab().OutputOf(key);
    return ended ? ExitCode(*ended) : -1;
  }
  // A job that already runs, and has to go on unharmed to its end.
  void StartRunning(const Workload& workload) {
    ASSERT_NO_FATAL_FAILURE(StartFour(workload));
    before_ = *lab().Job(workload.job);
    ASSERT_NO_FATAL_FAILURE(RememberSurvivors(before_, {"a-0", "b-0", "c-0", "d-0"}));
  }
  void ExpectUnharmed(const Workload& workload) {
    const JobStatus after = *lab().Job(workload.job);
    EXPECT_EQ(after.generation, before_.generation);
    ASSERT_NO_FATAL_FAILURE(LookAgain(after));
    (void)Finish(workload, kFourNodes, 4);
  }
  static std::vector<std::string> MusterdFlags(const std::string& listen, const std::string& data) {
    return {"--listen", listen, "--data-dir", data};
  }
  std::string Address() { return lab().url().substr(lab().url().rfind('/') + 1); }

 private:
  JobStatus before_;
};

TEST_F(BadInputTest, ASpecThatContradictsTheRunningJob) {
  const Workload workload = Job();
  ASSERT_NO_FATAL_FAILURE(StartRunning(workload));
  Workload other = workload;
  other.steps = 7;
  EXPECT_NE(Refused(other, "stranger", ""), 0);
  EXPECT_THAT(lab().OutputOf("stranger"),
              testing::AllOf(HasSubstr("steps"), HasSubstr("400"), HasSubstr("7")));
  ExpectUnharmed(workload);
}

TEST_F(BadInputTest, ASecondWorkerWithAnExplicitNameThatIsAlive) {
  const Workload workload = Job();
  ASSERT_NO_FATAL_FAILURE(StartRunning(workload));
  EXPECT_NE(Refused(workload, "twin", "a-0"), 0);
  EXPECT_THAT(lab().OutputOf("twin"), HasSubstr("a-0"));
  ExpectUnharmed(workload);
}

TEST_F(BadInputTest, StatusOfAnUnknownJob) {
  std::string output;
  EXPECT_NE(RunProgram("muster", {"status", "--coordinator", lab().url(), "nowhere"}, &output), 0);
  EXPECT_THAT(output, HasSubstr("nowhere"));
  EXPECT_NE(RunProgram("muster", {"status", "--coordinator", lab().url(), "-o", "json", "nowhere"},
                       &output),
            0);
  EXPECT_THAT(output, HasSubstr("nowhere"));
  EXPECT_EQ(lab().Job("nowhere").status().code(), Code::kNotFound);
}

TEST_F(BadInputTest, AnAddressWhereNoCoordinatorAnswers) {
  const std::string url = lab().url();
  lab().KillCoordinator();
  std::string output;
  EXPECT_NE(RunProgram("muster", {"status", "--coordinator", url}, &output), 0);
  EXPECT_THAT(output, HasSubstr(url));
  EXPECT_NE(RunProgram("muster", {"status", "--coordinator", "gopher://x"}, &output), 0);
  EXPECT_THAT(output, HasSubstr("gopher://x"));
  // A worker goes on trying, and says so at once.
  ASSERT_TRUE(lab().StartWorker(Job(), "early", "").ok());
  Workload workload = Job();
  const Instant deadline = MonotonicNow() + kBound;
  while (lab().OutputOf("early").find(url) == std::string::npos) {
    ASSERT_FALSE(lab().At("early").Wait(Duration::Millis(20))) << lab().OutputOf("early");
    ASSERT_LT(MonotonicNow(), deadline) << lab().OutputOf("early");
  }
  // And it trains once the coordinator is there.
  ASSERT_TRUE(lab().StartCoordinator().ok());
  const Status stepped = lab().AwaitStep(workload.job, 1, kBound);
  EXPECT_TRUE(stepped.ok()) << stepped.ToString() << lab().OutputOf("early");
}

TEST_F(BadInputTest, ACoordinatorThatWantsAToken) {
  lab().KillCoordinator();
  const std::string token_file = lab().directory() + "/token";
  std::ofstream(token_file) << "open-sesame\n";
  ProcessOptions options;
  const std::string port_file = lab().directory() + "/port-with-token";
  options.argv = {lab().Program("musterd"),
                  "--listen",
                  "127.0.0.1:0",
                  "--data-dir",
                  lab().directory() + "/guarded",
                  "--port-file",
                  port_file,
                  "--token-file",
                  token_file};
  options.output = lab().directory() + "/guarded.log";
  Result<Process> guarded = Process::Start(options);
  ASSERT_TRUE(guarded.ok());
  const Instant deadline = MonotonicNow() + kBound;
  while (!std::filesystem::exists(port_file)) {
    ASSERT_FALSE(guarded->Wait(Duration::Millis(5))) << ReadFile(options.output);
    ASSERT_LT(MonotonicNow(), deadline);
  }
  std::string address = ReadFile(port_file);
  std::erase(address, '\n');
  const std::string url = address.starts_with("http") ? address : "http://" + address;
  std::string output;
  EXPECT_NE(RunProgram("muster", {"status", "--coordinator", url}, &output), 0);
  EXPECT_THAT(output, HasSubstr("token"));
  ProcessOptions worker;
  worker.argv = lab().CommandOf(Job());
  worker.environment = {{"MUSTER_COORDINATOR", url}, {"MUSTER_JOB", "j"}, {"MUSTER_TOKEN", "no"}};
  worker.output = lab().directory() + "/stranger.log";
  const Result<int> code = RunToEnd(worker, kBound);
  ASSERT_TRUE(code.ok()) << code.status().ToString() << ReadFile(worker.output);
  EXPECT_NE(*code, 0);
  EXPECT_THAT(ReadFile(worker.output), HasSubstr("token"));
}

TEST_F(BadInputTest, APortInUseAndADataDirectoryInUse) {
  std::string output;
  const std::string other = lab().directory() + "/other-data";
  EXPECT_NE(RunProgram("musterd", MusterdFlags(Address(), other), &output), 0);
  EXPECT_THAT(output, HasSubstr(Address()));
  const std::string taken = lab().directory() + "/data";
  EXPECT_NE(RunProgram("musterd", MusterdFlags("127.0.0.1:0", taken), &output), 0);
  EXPECT_THAT(output, HasSubstr(taken));
  // The one that has them is not disturbed.
  EXPECT_EQ(lab().Job("nowhere").status().code(), Code::kNotFound);
}

TEST_F(BadInputTest, ListeningBeyondLoopbackNeedsAToken) {
  std::string output;
  EXPECT_NE(RunProgram("musterd", MusterdFlags("0.0.0.0:0", lab().directory() + "/d"), &output), 0);
  EXPECT_THAT(output, HasSubstr("token"));
}

TEST_F(BadInputTest, ShardedStateWithoutACheckpointDirectory) {
  ProcessOptions options;
  options.argv = {lab().Program("char_lm"), "--optimizer", "sharded"};
  options.environment = {{"MUSTER_COORDINATOR", lab().url()}, {"MUSTER_JOB", "j"}};
  options.output = lab().directory() + "/none.log";
  const Result<int> code = RunToEnd(options, kBound);
  ASSERT_TRUE(code.ok()) << code.status().ToString();
  EXPECT_NE(*code, 0);
  EXPECT_THAT(ReadFile(options.output), HasSubstr("checkpoint"));
}

TEST_F(BadInputTest, ACheckpointDirectoryThatIsAFile) {
  Workload workload = Job(true);
  workload.checkpoint_directory = lab().directory() + "/file";
  std::ofstream(workload.checkpoint_directory) << "not a directory";
  EXPECT_NE(Refused(workload, "worker", ""), 0);
  EXPECT_THAT(lab().OutputOf("worker"), HasSubstr(workload.checkpoint_directory));
}

TEST_F(BadInputTest, ACheckpointDirectoryWhoseParentIsMissing) {
  Workload workload = Job(true);
  workload.checkpoint_directory = lab().directory() + "/no/such/place";
  EXPECT_NE(Refused(workload, "worker", ""), 0);
  EXPECT_THAT(lab().OutputOf("worker"), HasSubstr(workload.checkpoint_directory));
}

}  // namespace
}  // namespace muster::chaos
