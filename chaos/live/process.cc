#include "chaos/live/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "protocol/transport/steady_clock.h"

extern char** environ;

namespace muster::chaos {
namespace {

std::vector<std::string> EnvironmentOf(const ProcessOptions& options) {
  std::vector<std::string> result;
  const auto replaced = [&](const std::string& entry) {
    const std::string name = entry.substr(0, entry.find('='));
    return std::any_of(options.environment.begin(), options.environment.end(),
                       [&](const auto& added) { return added.first == name; }) ||
           std::find(options.unset.begin(), options.unset.end(), name) != options.unset.end();
  };
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!replaced(*entry)) result.emplace_back(*entry);
  }
  for (const auto& [name, value] : options.environment) result.push_back(name + "=" + value);
  return result;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// Runs in the child between fork and exec: only what is safe there. Reports errno through `report`.
[[noreturn]] void ExecChild(const ProcessOptions& options, char* const* argv, char* const* envp,
                            pid_t parent, int output, int report) {
  const auto fail = [report] {
    const int error = errno;
    (void)!write(report, &error, sizeof(error));
    _exit(127);
  };
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it died before the line above
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (options.network >= 0 && setns(options.network, CLONE_NEWNET) != 0) fail();
  if (!options.directory.empty() && chdir(options.directory.c_str()) != 0) fail();
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(null, STDIN_FILENO);
  execve(argv[0], argv, envp);
  fail();
  _exit(127);
}

volatile sig_atomic_t interrupted = 0;

}  // namespace

void CatchInterrupts() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = 1; };
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool Interrupted() { return interrupted != 0; }

std::int64_t UnixNanos() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

Result<Process> Process::Start(const ProcessOptions& options) {
  MUSTER_CHECK(!options.argv.empty(), "a process needs a program");
  const std::string path = options.output.empty() ? "/dev/null" : options.output;
  const int output = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (output < 0) return FromErrno(errno, path);
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) {
    close(output);
    return FromErrno(errno, "pipe");
  }
  std::vector<std::string> arguments = options.argv;
  std::vector<std::string> environment = EnvironmentOf(options);
  const std::vector<char*> argv = Pointers(arguments);
  const std::vector<char*> envp = Pointers(environment);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) ExecChild(options, argv.data(), envp.data(), parent, output, report[1]);
  const int fork_error = errno;
  close(output);
  close(report[1]);
  if (pid < 0) {
    close(report[0]);
    return FromErrno(fork_error, "fork");
  }
  int error = 0;
  const ssize_t got = read(report[0], &error, sizeof(error));  // end of file: exec has happened
  close(report[0]);
  if (got == static_cast<ssize_t>(sizeof(error))) {
    waitpid(pid, nullptr, 0);
    return FromErrno(error, options.argv[0]);
  }
  Process process;
  process.pid_ = pid;
  process.pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  return process;
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pidfd_(std::exchange(other.pidfd_, -1)),
      ended_(std::exchange(other.ended_, std::nullopt)) {}

Process& Process::operator=(Process&& other) noexcept {
  if (this != &other) {
    KillAndReap();
    pid_ = std::exchange(other.pid_, -1);
    pidfd_ = std::exchange(other.pidfd_, -1);
    ended_ = std::exchange(other.ended_, std::nullopt);
  }
  return *this;
}

Process::~Process() { KillAndReap(); }

void Process::KillAndReap() {
  if (pid_ > 0 && !ended_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (pidfd_ >= 0) close(pidfd_);
  pid_ = -1;
  pidfd_ = -1;
}

void Process::Signal(int signal) const {
  if (pid_ > 0 && !ended_) kill(pid_, signal);
}

std::optional<int> Process::Wait(Duration limit) {
  if (ended_ || pid_ <= 0) return ended_;
  const Instant deadline = MonotonicNow() + limit;
  while (true) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      ended_ = status;
      return ended_;
    }
    const Duration left = deadline - MonotonicNow();
    if (left <= Duration()) return std::nullopt;
    pollfd waiting{.fd = pidfd_, .events = POLLIN, .revents = 0};
    poll(&waiting, 1, static_cast<int>(std::min<std::int64_t>(left.millis() + 1, 60'000)));
  }
}

std::string DescribeExit(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    return fmt::format("signal {} ({})", WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)));
  }
  return fmt::format("exit code {}", WEXITSTATUS(wait_status));
}

int ExitCode(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

Result<int> RunToEnd(const ProcessOptions& options, Duration limit) {
  Result<Process> process = Process::Start(options);
  if (!process.ok()) return process.status();
  const std::optional<int> ended = process->Wait(limit);
  if (!ended) {
    return DeadlineExceeded(
        fmt::format("{} still ran after {} s", options.argv[0], limit.ToSeconds()));
  }
  return ExitCode(*ended);
}

std::optional<std::uint64_t> StartTicksOf(std::int64_t pid) {
  const std::string text = ReadFile(fmt::format("/proc/{}/stat", pid));
  // The name, in parentheses, may hold anything; the fields after it are: state, ppid, …
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  constexpr int kStateField = 3;
  constexpr int kStartField = 22;
  for (int number = kStateField; number <= kStartField; ++number) {
    if (!(fields >> field)) return std::nullopt;
    if (number == kStateField && (field == "Z" || field == "X")) return std::nullopt;
  }
  return std::strtoull(field.c_str(), nullptr, 10);
}

void BecomeSubreaper() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

int ReapStrays(const std::vector<pid_t>& known) {
  int ended = 0;
  std::istringstream children(ReadFile(fmt::format("/proc/self/task/{}/children", getpid())));
  for (pid_t child = 0; children >> child;) {
    if (std::find(known.begin(), known.end(), child) != known.end()) continue;
    kill(child, SIGKILL);
    if (waitpid(child, nullptr, 0) == child) ++ended;
  }
  return ended;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

}  // namespace muster::chaos
