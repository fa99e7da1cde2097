// `muster run`: the workers of one node. Starts them, watches them, restarts those that fail, and
// tells the coordinator of each death at once.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "protocol/ids.h"
#include "protocol/time.h"
#include "worker/cli/child_process.h"
#include "worker/cli/launcher_session.h"
#include "worker/cli/line_assembler.h"
#include "worker/cli/output_queue.h"
#include "worker/cli/restart_policy.h"

namespace muster::cli {

class Standalone;

struct LauncherOptions {
  int workers = 1;
  std::string coordinator;  // URL, handed to the workers
  std::string job;
  std::string node;                  // workers are named <node>-<local rank>
  std::vector<std::string> program;  // with its arguments
  RestartPolicy restarts;
  // How long workers that were asked to stop may take to reach a step boundary.
  Duration stop_timeout = Duration::Seconds(30);
  // While this file exists the node is about to be taken away (a spot or maintenance notice): its
  // workers are asked to leave, and none is started. Empty: there is no such file.
  std::string notice_file;
};

// Makes SIGTERM and SIGINT of the process readable from the returned descriptor instead of
// delivering them, and ignores SIGPIPE. Call it before any other thread is started: threads inherit
// what is blocked.
[[nodiscard]] Result<FileDescriptor> CatchSignals();

// What a worker is told by its environment, over what it inherits.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> WorkerEnvironment(
    const LauncherOptions& options, int local_rank);

// One thread makes all calls, and outlives the launcher: the workers die with that thread.
class Launcher {
 public:
  // `signals` is from CatchSignals. `attestor` and `standalone` (may be null: the coordinator is
  // someone else's) stay the caller's and outlive the launcher. Output of the workers goes to
  // `output_fd` and `error_fd`, what the launcher has to say to `error_fd`.
  Launcher(LauncherOptions options, int signals, Attestor& attestor, Standalone* standalone,
           int output_fd, int error_fd);

  // Runs the workers until none is left or to come. Returns what the process should exit with: 0
  // when all ended well, else the code of the first that failed for good, as a shell reports it.
  [[nodiscard]] int Run();

 private:
  struct Slot {
    WorkerId name;
    int local_rank = 0;
    std::optional<ChildProcess> process;
    std::optional<LineAssembler> output;
    std::optional<LineAssembler> errors;
    std::vector<Instant> failures;
    Instant restart_at = Instant::Never();
    bool parked = false;   // a notice keeps it from running
    bool returns = false;  // the notice was withdrawn before it had left
  };

  [[nodiscard]] bool Running() const;
  [[nodiscard]] Status Launch(Slot& slot);
  void PollOnce();
  void RestartDue(Instant now);
  [[nodiscard]] Instant NextDeadline() const;

  void OnDeath(Slot& slot);
  void OnFailure(Slot& slot, const ExitState& exit, int pid);
  void FailForGood(const Slot& slot, const ExitState& exit, const std::string& story);
  void Relay(FileDescriptor& from, LineAssembler& lines, OutputQueue& to);
  void Remains(FileDescriptor& from, LineAssembler& lines, OutputQueue& to);
  void CheckNotice(Instant now);
  void OnSignal();
  void StopAll(int signal);
  void KillAll();
  void OnNews();
  void Say(const std::string& line);

  const LauncherOptions options_;
  const int signals_;
  Attestor& attestor_;
  Standalone* const standalone_;
  OutputQueue output_;
  OutputQueue errors_;
  std::vector<Slot> slots_;
  bool stopping_ = false;  // no restarts any more
  bool job_ended_ = false;
  Instant kill_at_ = Instant::Never();
  bool noticed_ = false;  // the notice stands
  Instant notice_check_;  // when the file is looked for next
  int exit_code_ = 0;
};

}  // namespace muster::cli
