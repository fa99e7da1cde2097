// A process that lives no longer than its launcher: started in a group of its own, watched through
// a pidfd, with pipes for what it prints.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "protocol/status.h"
#include "worker/cli/restart_policy.h"

namespace muster::cli {

// An owned file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor() { Close(); }

  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool open() const { return fd_ >= 0; }
  void Close();

 private:
  int fd_ = -1;
};

struct ProgramSpec {
  std::vector<std::string> arguments;  // [0] is the program, looked up in PATH
  // Set over the launcher's own environment.
  std::vector<std::pair<std::string, std::string>> environment;
  bool own_output = true;  // stdout and stderr go to pipes; false: to those of the launcher
};

// Used by one thread: the one that started it, which has to outlive it, since the kernel kills the
// process when that thread ends (PR_SET_PDEATHSIG).
class ChildProcess {
 public:
  // Starts the program: its stdin is /dev/null, no signal is blocked, SIGPIPE has its default.
  // Returns once it runs, or the reason why not: kNotFound (no such program), kPermissionDenied,
  // kResourceExhausted (no more processes or descriptors).
  // REQUIRES: spec.arguments is not empty
  [[nodiscard]] static Result<ChildProcess> Start(const ProgramSpec& spec);

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  // Kills its whole group, if it still runs, and waits for that.
  ~ChildProcess();

  [[nodiscard]] int pid() const { return pid_; }
  // Readable once the process has ended, with all of its threads.
  [[nodiscard]] int pidfd() const { return pidfd_.get(); }
  // What it prints: non-blocking read ends; not open when the launcher's own are used.
  [[nodiscard]] FileDescriptor& output() { return output_; }
  [[nodiscard]] FileDescriptor& errors() { return errors_; }

  // To the process alone: helpers that it started (data loaders) must not die before it.
  void Signal(int signal) const;
  // SIGKILL to the process and all that it started in its group.
  void KillGroup() const;

  // How it ended. It stays a zombie, so that its number and its group cannot be taken by others.
  // Blocks until it has ended.
  [[nodiscard]] ExitState AwaitEnd() const;
  // Kills what is left of its group, and gives back its number. Blocks as AwaitEnd does.
  void Reap();

 private:
  ChildProcess() = default;

  int pid_ = -1;  // -1 once reaped
  FileDescriptor pidfd_;
  FileDescriptor output_;
  FileDescriptor errors_;
};

}  // namespace muster::cli
