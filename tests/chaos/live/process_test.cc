#include "chaos/live/process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace muster::chaos {
namespace {

constexpr Duration kLong = Duration::Seconds(30);

ProcessOptions Shell(const std::string& script) { return {.argv = {"/bin/sh", "-c", script}}; }

TEST(ProcessTest, ExitCodesAndSignals) {
  EXPECT_EQ(*RunToEnd(Shell("exit 3"), kLong), 3);
  Result<Process> process = Process::Start(Shell("kill -9 $$"));
  ASSERT_TRUE(process.ok());
  const std::optional<int> ended = process->Wait(kLong);
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ExitCode(*ended), 128 + SIGKILL);
  EXPECT_EQ(DescribeExit(*ended), "signal 9 (Killed)");
}

TEST(ProcessTest, AProgramThatIsNotThereIsAnErrorThatNamesIt) {
  const Result<Process> process = Process::Start({.argv = {"/no/such/program"}});
  ASSERT_FALSE(process.ok());
  EXPECT_EQ(process.status().code(), Code::kNotFound);
  EXPECT_NE(process.status().message().find("/no/such/program"), std::string::npos);
}

TEST(ProcessTest, OutputAndEnvironment) {
  std::string path = testing::TempDir() + "output-XXXXXX";
  close(mkstemp(path.data()));
  ProcessOptions options = Shell("echo \"$GREETING\"; echo \"${HOME:-no home}\" >&2");
  options.environment = {{"GREETING", "hello"}};
  options.unset = {"HOME"};
  options.output = path;
  EXPECT_EQ(*RunToEnd(options, kLong), 0);
  EXPECT_EQ(ReadFile(path), "hello\nno home\n");
  std::filesystem::remove(path);
}

TEST(ProcessTest, KilledAndReapedWithItsObject) {
  pid_t pid = 0;
  {
    Result<Process> process = Process::Start({.argv = {"/bin/cat", "/dev/zero"}});
    ASSERT_TRUE(process.ok());
    pid = process->pid();
    EXPECT_TRUE(process->Running());
    EXPECT_TRUE(StartTicksOf(pid).has_value());
  }
  EXPECT_FALSE(StartTicksOf(pid).has_value());
  EXPECT_EQ(kill(pid, 0), -1);
}

TEST(ProcessTest, ADeadlineKills) {
  const Result<int> code = RunToEnd({.argv = {"/bin/cat", "/dev/zero"}}, Duration::Millis(50));
  EXPECT_EQ(code.status().code(), Code::kDeadlineExceeded);
}

TEST(ProcessTest, AZombieIsNotAProcess) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(StartTicksOf(child).has_value());
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace muster::chaos
