// A laboratory of real processes on this machine: one musterd, nodes (each a `muster run` with its
// workers), and what they write. All of it lives in one run directory, and nothing outlives the
// object. One thread makes all calls.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "chaos/live/checks.h"
#include "chaos/live/network.h"
#include "chaos/live/process.h"
#include "chaos/live/records.h"
#include "chaos/live/status.h"
#include "protocol/status.h"
#include "protocol/time.h"

namespace muster::chaos {

// A job for worker/examples/char_lm. Its flags, as values.
struct Workload {
  std::string job = "demo";
  std::int64_t steps = 200;
  std::int64_t min_workers = 1;
  std::int64_t max_workers = 4;
  std::int64_t batch = 64;
  std::int64_t micro_batches = 8;
  std::int64_t hidden = 64;
  bool sharded = false;
  std::int64_t checkpoint_every = 0;
  bool checkpoints = false;          // into the run directory; implied by sharded
  std::string checkpoint_directory;  // instead of the one in the run directory
  Duration failure_timeout = Duration::Seconds(1);
  std::string text;                // the file to train on; empty: the licence texts
  std::vector<std::string> flags;  // more of them
  std::vector<std::pair<std::string, std::string>> environment;  // of its workers
};

struct LabOptions {
  std::string bin_directory;  // where musterd, muster and char_lm lie
  std::string parent;         // of the run directory; empty: $TMPDIR or /tmp
  std::string name = "muster";
  bool keep = false;  // leave the run directory behind
  std::vector<std::string> coordinator_flags;
  std::vector<std::string> launcher_flags;
  std::string coordinator_program;  // instead of musterd
  // Where nodes and musterd ("musterd") run, each with an address of its own; null: all on
  // loopback. Stays the caller's.
  Network* network = nullptr;
  std::vector<std::pair<std::string, std::string>> environment;  // of all processes
};

class Lab {
 public:
  // Makes the run directory. Starts nothing.
  [[nodiscard]] static Result<std::unique_ptr<Lab>> Create(LabOptions options);
  Lab(const Lab&) = delete;
  Lab& operator=(const Lab&) = delete;
  // Kills everything, and removes the run directory unless it is to be kept.
  ~Lab();

  [[nodiscard]] const std::string& directory() const { return directory_; }
  [[nodiscard]] const std::string& url() const { return url_; }
  void Keep() { options_.keep = true; }
  // "MUSTER_LAB_RUN=muster-x7Kq2p": stands in the environment of every process of the run.
  [[nodiscard]] std::string Mark() const;
  [[nodiscard]] std::string Program(const std::string& name) const;

  // Starts musterd and waits until it listens. The first time on any free port, later on the same
  // one, always on the same data directory.
  [[nodiscard]] Status StartCoordinator();
  // SIGKILL, and waits for its end.
  void KillCoordinator();
  [[nodiscard]] Process* coordinator() { return coordinator_ ? &*coordinator_ : nullptr; }
  // What the coordinator remembers is gone. REQUIRES: it does not run.
  void LoseStore();

  // Starts a node with `workers` workers of the job: "<node>-0", …
  [[nodiscard]] Status StartNode(const Workload& workload, const std::string& node,
                                 int workers = 1);
  // The same for any program that embeds the worker library. "{run}" in its arguments stands for
  // the run directory.
  [[nodiscard]] Status StartProgram(const std::string& job, const std::string& node, int workers,
                                    const std::vector<std::string>& program,
                                    std::vector<std::pair<std::string, std::string>> environment);
  // Starts char_lm by itself, without a launcher. `worker` empty: a name of its own.
  [[nodiscard]] Status StartWorker(const Workload& workload, const std::string& key,
                                   const std::string& worker);
  // The launcher, or the worker started alone, under its name. REQUIRES: it was started.
  [[nodiscard]] Process& At(const std::string& node);
  // The same; null when it was never started.
  [[nodiscard]] Process* Find(const std::string& node);
  // Pids of musterd and of all that was started under a name and has not ended.
  [[nodiscard]] std::vector<pid_t> Pids();
  [[nodiscard]] const std::string& token() const { return token_; }
  // What it and its workers have printed so far.
  [[nodiscard]] std::string OutputOf(const std::string& node) const;

  // GET from musterd.
  [[nodiscard]] Result<JobStatus> Job(const std::string& job) const;
  [[nodiscard]] Result<std::vector<EventStatus>> Events(const std::string& job) const;
  // Looks at the job's status each time its records change, and every 20 ms, until `done` or
  // `limit`. Errors: kDeadlineExceeded naming `what` and the last status seen. While musterd does
  // not answer, it goes on trying.
  using Predicate = std::function<bool(const JobStatus&)>;
  [[nodiscard]] Result<JobStatus> Await(const std::string& job, const std::string& what,
                                        Duration limit, const Predicate& done);
  // Waits until the records hold a committed step >= `step`.
  [[nodiscard]] Status AwaitStep(const std::string& job, std::int64_t step, Duration limit);
  // Waits until all processes under `nodes` have ended with exit code 0.
  [[nodiscard]] Status AwaitExit(const std::vector<std::string>& nodes, Duration limit);

  [[nodiscard]] RecordFollower& Records(const std::string& job);
  [[nodiscard]] std::string CheckpointDirectory(const Workload& workload) const;
  // Records, named rollbacks and evictions of the job so far; survivors are the caller's to add.
  [[nodiscard]] Result<RunFacts> Facts(const Workload& workload);

  // The command line of char_lm for that job.
  [[nodiscard]] std::vector<std::string> CommandOf(const Workload& workload) const;
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> EnvironmentOf(
      const Workload& workload) const;

 private:
  explicit Lab(LabOptions options) : options_(std::move(options)) {}
  [[nodiscard]] Status Launch(const std::string& key, ProcessOptions options);
  [[nodiscard]] Status MakeToken();
  [[nodiscard]] std::string RunName() const;
  void AddEnvironment(const std::string& job,
                      std::vector<std::pair<std::string, std::string>>* environment) const;

  LabOptions options_;
  std::string directory_;
  std::string url_;
  std::string token_;  // empty: none is needed
  std::optional<Process> coordinator_;
  std::map<std::string, Process> processes_;  // by node
  std::map<std::string, std::unique_ptr<RecordFollower>> records_;
};

// Four nodes "a", "b", "c", "d" with one worker each.
inline const std::vector<std::string> kFourNodes = {"a", "b", "c", "d"};

}  // namespace muster::chaos
