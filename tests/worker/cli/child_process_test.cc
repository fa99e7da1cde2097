#include "worker/cli/child_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

namespace muster::cli {
namespace {

// Bounds how long a test that fails can take; nothing waits for it to pass.
constexpr int kLimitMs = 60'000;

bool Readable(int fd) {
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&entry, 1, kLimitMs) == 1;
}

std::string ReadAll(const FileDescriptor& fd) {
  std::string text;
  std::array<char, 4096> buffer;
  while (Readable(fd.get())) {
    const ssize_t got = read(fd.get(), buffer.data(), buffer.size());
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return text;
}

Result<ChildProcess> Shell(const std::string& script) {
  return ChildProcess::Start({.arguments = {"sh", "-c", script}, .environment = {}});
}

// True once the process is gone: its pidfd polls readable.
bool Ends(int pid) {
  const FileDescriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  return !pidfd.open() ? errno == ESRCH : Readable(pidfd.get());
}

TEST(ChildProcessTest, OutputAndEndAreSeen) {
  auto child = Shell("echo out; echo err >&2; exit 7");
  ASSERT_TRUE(child.ok()) << child.status().ToString();
  EXPECT_EQ(ReadAll(child->output()), "out\n");
  EXPECT_EQ(ReadAll(child->errors()), "err\n");
  ASSERT_TRUE(Readable(child->pidfd()));
  EXPECT_EQ(child->AwaitEnd().code, 7);
  EXPECT_EQ(child->AwaitEnd().code, 7) << "looking twice is no harm";
  child->Reap();
}

TEST(ChildProcessTest, EnvironmentIsSetOverTheInheritedOne) {
  ASSERT_EQ(setenv("MUSTER_TEST_KEPT", "kept", 1), 0);
  ASSERT_EQ(setenv("MUSTER_TEST_SET", "old", 1), 0);
  auto child = ChildProcess::Start(
      {.arguments = {"sh", "-c", "echo $MUSTER_TEST_KEPT $MUSTER_TEST_SET; env | grep -c TEST_SET"},
       .environment = {{"MUSTER_TEST_SET", "new value"}}});
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(ReadAll(child->output()), "kept new value\n1\n");
}

TEST(ChildProcessTest, AProgramThatIsNotThereIsAnErrorNotAChild) {
  const auto child = ChildProcess::Start({.arguments = {"/no/such/program"}, .environment = {}});
  ASSERT_FALSE(child.ok());
  EXPECT_EQ(child.status().code(), Code::kNotFound);
  EXPECT_NE(child.status().message().find("/no/such/program"), std::string::npos);
  const auto directory = ChildProcess::Start({.arguments = {"/tmp"}, .environment = {}});
  EXPECT_EQ(directory.status().code(), Code::kPermissionDenied);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "no zombie is left";
}

TEST(ChildProcessTest, ItsDestructionKillsTheWholeGroup) {
  int grandchild = 0;
  {
    auto child = Shell("sleep 1000 & echo $!; wait");
    ASSERT_TRUE(child.ok());
    ASSERT_TRUE(Readable(child->output().get()));
    std::array<char, 64> text{};
    ASSERT_GT(read(child->output().get(), text.data(), text.size() - 1), 0);
    grandchild = std::atoi(text.data());
    ASSERT_GT(grandchild, 1);
  }
  EXPECT_TRUE(Ends(grandchild));
}

TEST(ChildProcessTest, SignalsReachTheProcessWithNothingBlocked) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &all, &before), 0);
  auto child = Shell("trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.01; done");
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, &before, nullptr), 0);
  ASSERT_TRUE(child.ok());
  ASSERT_TRUE(Readable(child->output().get()));
  child->Signal(SIGTERM);
  ASSERT_TRUE(Readable(child->pidfd()));
  EXPECT_EQ(child->AwaitEnd().code, 5);
  EXPECT_EQ(ReadAll(child->output()), "ready\ncaught\n");
}

TEST(ChildProcessTest, AKillIsToldFromAnExit) {
  auto child = Shell("sleep 1000");
  ASSERT_TRUE(child.ok());
  child->Signal(SIGKILL);
  EXPECT_EQ(child->AwaitEnd().signal, SIGKILL);
  child->Reap();
}

// The kernel's part of "no orphans": the process dies with the one that started it.
TEST(ChildProcessTest, DiesWithItsParent) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  const FileDescriptor from(ends[0]);
  FileDescriptor to(ends[1]);
  const pid_t parent = fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    auto child = Shell("sleep 1000");
    const int pid = child.ok() ? child->pid() : -1;
    if (write(to.get(), &pid, sizeof pid) < 0) _exit(1);
    for (;;) pause();
  }
  to.Close();
  int pid = -1;
  ASSERT_EQ(read(from.get(), &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
  ASSERT_GT(pid, 1);
  ASSERT_EQ(kill(pid, 0), 0) << "it runs";
  ASSERT_EQ(kill(parent, SIGKILL), 0);
  ASSERT_EQ(waitpid(parent, nullptr, 0), parent);
  EXPECT_TRUE(Ends(pid));
}

}  // namespace
}  // namespace muster::cli
