// One child process, known by its pid, that never outlives the one who started it.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "protocol/status.h"
#include "protocol/time.h"

namespace muster::chaos {

// CLOCK_REALTIME in nanoseconds since 1970: what records and the coordinator's events carry.
[[nodiscard]] std::int64_t UnixNanos();

// From now on SIGINT and SIGTERM only make Interrupted() true and end a poll that waits, so that
// what runs can be taken down in order.
void CatchInterrupts();
[[nodiscard]] bool Interrupted();

struct ProcessOptions {
  std::vector<std::string> argv;  // argv[0] is the path of the program
  std::vector<std::pair<std::string, std::string>> environment = {};  // added to our own
  std::vector<std::string> unset = {};                                // removed from our own
  std::string output = {};     // file that stdout and stderr are appended to; empty: /dev/null
  std::string directory = {};  // working directory; empty: ours
  int network = -1;            // a network namespace to start it in; -1: ours
};

// Kills (SIGKILL) and reaps the process when destroyed. The process also dies with the thread that
// started it (PR_SET_PDEATHSIG), and has a process group of its own, so that Ctrl-C on a terminal
// reaches us alone. Not thread-safe.
class Process {
 public:
  // Starts the program. Fails when it cannot be executed.
  [[nodiscard]] static Result<Process> Start(const ProcessOptions& options);
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  ~Process();

  [[nodiscard]] pid_t pid() const { return pid_; }
  // Sends the signal, unless the process was already reaped.
  void Signal(int signal) const;
  // Waits until the process has ended or `limit` has passed; then the wait status as of waitpid, or
  // nothing. Once ended, answers at once with the same value.
  std::optional<int> Wait(Duration limit);
  [[nodiscard]] bool Running() { return !Wait(Duration()).has_value(); }

 private:
  Process() = default;
  void KillAndReap();

  pid_t pid_ = -1;
  int pidfd_ = -1;
  std::optional<int> ended_;
};

// "exit code 3" or "signal 9 (Killed)".
[[nodiscard]] std::string DescribeExit(int wait_status);
// The exit code; 128 + signal for a process that a signal ended.
[[nodiscard]] int ExitCode(int wait_status);

// Runs a program to its end and returns its exit code; it is killed at `limit`, which is an error.
[[nodiscard]] Result<int> RunToEnd(const ProcessOptions& options, Duration limit);

// When the kernel started this process, in clock ticks since boot; nothing when there is none such
// or it is a zombie. With the pid it names one life of a process for good.
[[nodiscard]] std::optional<std::uint64_t> StartTicksOf(std::int64_t pid);

// From now on, processes whose parent dies below us become our children, so that we can end and
// reap them.
void BecomeSubreaper();
// Kills and reaps every child of ours whose pid is not in `known`; returns their number. With
// BecomeSubreaper: whatever a killed launcher or coordinator left behind.
int ReapStrays(const std::vector<pid_t>& known);

// The bytes of a file; empty when it cannot be read.
[[nodiscard]] std::string ReadFile(const std::string& path);

}  // namespace muster::chaos
