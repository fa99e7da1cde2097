#include "worker/cli/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <string_view>

#include "protocol/check.h"

namespace muster::cli {
namespace {

struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};

Result<Pipe> MakePipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return FromErrno(errno, "cannot make a pipe");
  return Pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

// The launcher's environment with `changes` set over it, as "NAME=value".
std::vector<std::string> MergedEnvironment(
    const std::vector<std::pair<std::string, std::string>>& changes) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    bool replaced = false;
    for (const auto& change : changes) replaced = replaced || change.first == name;
    if (!replaced) merged.emplace_back(text);
  }
  for (const auto& [name, value] : changes) merged.push_back(name + "=" + value);
  return merged;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

// All that the new process needs until exec. Other threads may hold any lock at the fork, so
// nothing is allocated after it.
struct Prepared {
  std::vector<char*> arguments;
  std::vector<char*> environment;
  int output = -1;  // -1: inherited
  int errors = -1;
  int report = -1;  // takes errno when exec fails
  int parent = -1;
};

[[noreturn]] void ReportAndExit(int report) {
  const int error = errno;
  // A launcher that does not read it sees the exit code.
  if (write(report, &error, sizeof error) < 0) _exit(126);
  _exit(127);
}

[[noreturn]] void Become(const Prepared& prepared) {
  // The launcher may have died before this call took effect; then its child has another parent.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) ReportAndExit(prepared.report);
  if (getppid() != prepared.parent) _exit(128 + SIGKILL);
  if (setpgid(0, 0) != 0) ReportAndExit(prepared.report);
  const int null = open("/dev/null", O_RDONLY);
  if (null < 0 || dup2(null, STDIN_FILENO) < 0) ReportAndExit(prepared.report);
  if (null > STDERR_FILENO) close(null);
  if (prepared.output >= 0 &&
      (dup2(prepared.output, STDOUT_FILENO) < 0 || dup2(prepared.errors, STDERR_FILENO) < 0)) {
    ReportAndExit(prepared.report);
  }
  signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execvpe(prepared.arguments[0], prepared.arguments.data(), prepared.environment.data());
  ReportAndExit(prepared.report);
}

// 0 when exec succeeded (the pipe closed without a word), else its errno.
int ExecError(const FileDescriptor& report) {
  int error = 0;
  ssize_t got = 0;
  do {
    got = read(report.get(), &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  return got == static_cast<ssize_t>(sizeof error) ? error : 0;
}

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void FileDescriptor::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

Result<ChildProcess> ChildProcess::Start(const ProgramSpec& spec) {
  MUSTER_CHECK(!spec.arguments.empty(), "a program has a name");
  Pipe output;
  Pipe errors;
  for (Pipe* pipe : {&output, &errors}) {
    if (!spec.own_output) continue;
    Result<Pipe> made = MakePipe();
    if (!made.ok()) return made.status();
    *pipe = std::move(*made);
    fcntl(pipe->read.get(), F_SETFL, O_NONBLOCK);
  }
  Result<Pipe> report = MakePipe();
  if (!report.ok()) return report.status();

  std::vector<std::string> arguments = spec.arguments;
  std::vector<std::string> environment = MergedEnvironment(spec.environment);
  const Prepared prepared{.arguments = Pointers(arguments),
                          .environment = Pointers(environment),
                          .output = output.write.get(),
                          .errors = errors.write.get(),
                          .report = report->write.get(),
                          .parent = getpid()};
  const pid_t pid = fork();
  if (pid < 0) return FromErrno(errno, "cannot start a process for " + spec.arguments[0]);
  if (pid == 0) Become(prepared);

  ChildProcess child;
  child.pid_ = pid;
  // Also here: a signal may have to reach the group before the child has run at all.
  setpgid(pid, pid);
  report->write.Close();
  if (const int error = ExecError(report->read); error != 0) {
    child.Reap();
    return FromErrno(error, "cannot start " + spec.arguments[0]);
  }
  // The C library of Debian 12 declares pidfd_open in a way that C++ cannot link.
  child.pidfd_ = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!child.pidfd_.open()) return FromErrno(errno, "cannot watch " + spec.arguments[0]);
  child.output_ = std::move(output.read);
  child.errors_ = std::move(errors.read);
  return child;
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pidfd_(std::move(other.pidfd_)),
      output_(std::move(other.output_)),
      errors_(std::move(other.errors_)) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this != &other) {
    KillGroup();
    Reap();
    pid_ = std::exchange(other.pid_, -1);
    pidfd_ = std::move(other.pidfd_);
    output_ = std::move(other.output_);
    errors_ = std::move(other.errors_);
  }
  return *this;
}

ChildProcess::~ChildProcess() {
  KillGroup();
  Reap();
}

void ChildProcess::Signal(int signal) const {
  // Unreaped, so the number is still its own even when it has ended.
  if (pid_ > 0) kill(pid_, signal);
}

void ChildProcess::KillGroup() const {
  if (pid_ > 0) kill(-pid_, SIGKILL);
}

ExitState ChildProcess::AwaitEnd() const {
  MUSTER_CHECK(pid_ > 0, "the process was not reaped yet");
  siginfo_t info{};
  int result = 0;
  do {
    result = waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
  } while (result != 0 && errno == EINTR);
  MUSTER_CHECK(result == 0, "a child can be waited for");
  ExitState state;
  if (info.si_code == CLD_EXITED) {
    state.code = info.si_status;
  } else {
    state.signal = info.si_status;
    state.core_dumped = info.si_code == CLD_DUMPED;
  }
  return state;
}

void ChildProcess::Reap() {
  if (pid_ <= 0) return;
  (void)AwaitEnd();
  KillGroup();
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

}  // namespace muster::cli
