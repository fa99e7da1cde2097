#include "tests/gpu/processes.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace muster::gpu_double {
namespace {

constexpr int kLimitMs = 60'000;
using Clock = std::chrono::steady_clock;

// A message from a channel; "" at its end or after the limit.
std::string ReceiveFrom(int channel) {
  pollfd polled{channel, POLLIN, 0};
  if (::poll(&polled, 1, kLimitMs) <= 0) return "";
  std::array<char, 1000> text{};
  const ssize_t size = ::recv(channel, text.data(), text.size(), 0);
  return size > 0 ? std::string(text.data(), static_cast<std::size_t>(size)) : "";
}

void SendTo(int channel, const std::string& message) {
  static_cast<void>(::send(channel, message.data(), message.size(), MSG_NOSIGNAL));
}

std::string ReadAll(int fd) {
  std::string text;
  std::array<char, 4096> piece{};
  for (ssize_t size = 0; (size = ::read(fd, piece.data(), piece.size())) > 0;) {
    text.append(piece.data(), static_cast<std::size_t>(size));
  }
  return text;
}

}  // namespace

void Child::Tell(const std::string& message) const { SendTo(channel_, message); }

std::string Child::Await() const {
  std::string message = ReceiveFrom(channel_);
  REQUIRE(!message.empty());
  return message;
}

Processes::Processes(int size, const Body& body, const Variables& variables) {
  std::fflush(nullptr);
  for (int rank = 0; rank < size; ++rank) {
    std::array<int, 2> channel{};
    std::array<int, 2> output{};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, channel.data()) != 0 ||
        ::pipe2(output.data(), O_CLOEXEC) != 0) {
      ADD_FAILURE() << "no file descriptors";
      return;
    }
    const pid_t pid = ::fork();
    if (pid == 0) {
      // The others' ends would keep their channels open.
      for (const Process& process : processes_) {
        ::close(process.channel);
        ::close(process.output);
        ::close(process.pidfd);
      }
      ::close(channel[0]);
      ::close(output[0]);
      ::dup2(output[1], STDERR_FILENO);
      ::setenv("NCCL_HOSTID", ("host-" + std::to_string(rank)).c_str(), 1);
      for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
      body(Child(rank, size, channel[1]));
      ::_exit(0);
    }
    ::close(channel[1]);
    ::close(output[1]);
    Process process;
    process.pid = pid;
    process.pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
    process.channel = channel[0];
    process.output = output[0];
    processes_.push_back(process);
  }
}

Processes::~Processes() {
  for (Process& process : processes_) {
    if (!process.reaped) {
      ::kill(process.pid, SIGKILL);
      ::waitpid(process.pid, nullptr, 0);
    }
    ::close(process.pidfd);
    ::close(process.channel);
    ::close(process.output);
  }
}

void Processes::Tell(int rank, const std::string& message) {
  SendTo(processes_[static_cast<std::size_t>(rank)].channel, message);
}

std::string Processes::Await(int rank) {
  return ReceiveFrom(processes_[static_cast<std::size_t>(rank)].channel);
}

std::string Processes::AwaitAny() {
  std::vector<pollfd> polled;
  for (const Process& process : processes_) polled.push_back({process.channel, POLLIN, 0});
  static_cast<void>(::poll(polled.data(), polled.size(), kLimitMs));
  for (const pollfd& one : polled) {
    if (one.revents != 0) return ReceiveFrom(one.fd);
  }
  return "";
}

void Processes::PassOnId() {
  const std::string id = Await(0);
  ASSERT_FALSE(id.empty()) << Wait(0).output;
  for (int rank = 1; rank < static_cast<int>(processes_.size()); ++rank) Tell(rank, id);
}

void Processes::Kill(int rank) {
  ::kill(processes_[static_cast<std::size_t>(rank)].pid, SIGKILL);
  static_cast<void>(Wait(rank));
}

End Processes::Wait(int rank) {
  Process& process = processes_[static_cast<std::size_t>(rank)];
  if (process.reaped) return process.end;
  pollfd polled{process.pidfd, POLLIN, 0};
  if (::poll(&polled, 1, kLimitMs) <= 0) {
    ADD_FAILURE() << "rank " << rank << " has not ended";
    ::kill(process.pid, SIGKILL);
  }
  int status = 0;
  ::waitpid(process.pid, &status, 0);
  process.reaped = true;
  if (WIFEXITED(status)) process.end.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) process.end.signal = WTERMSIG(status);
  process.end.output = ReadAll(process.output);
  return process.end;
}

void Processes::ExpectAllWell() {
  for (int rank = 0; rank < static_cast<int>(processes_.size()); ++rank) {
    const End end = Wait(rank);
    EXPECT_EQ(end.exit_code, 0) << "rank " << rank << ", signal " << end.signal << ": "
                                << end.output;
  }
}

End RunAlone(const std::function<void()>& body, const Variables& variables) {
  Processes processes(
      1, [&](const Child&) { body(); }, variables);
  return processes.Wait(0);
}

void RequireAt(const char* file, int line, const char* condition, bool holds) {
  if (holds) return;
  std::fprintf(stderr, "%s:%d: %s does not hold\n", file, line, condition);
  ::_exit(1);
}

void Until(const std::function<bool()>& is_true) {
  const auto limit = Clock::now() + std::chrono::milliseconds(kLimitMs);
  while (!is_true()) {
    REQUIRE(Clock::now() < limit);
    ::poll(nullptr, 0, 1);
  }
}

void Stays(const std::function<bool()>& is_true) {
  const auto end = Clock::now() + std::chrono::milliseconds(100);
  do {
    REQUIRE(is_true());
    ::poll(nullptr, 0, 1);
  } while (Clock::now() < end);
}

void Leave() { ::_exit(0); }

}  // namespace muster::gpu_double
