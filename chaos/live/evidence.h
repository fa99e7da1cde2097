// All that is known of a finished run, as values: what the verdict judges and the report shows.
// None of it is taken from the workers' or the coordinator's word alone where something else can be
// asked.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "chaos/live/checks.h"
#include "chaos/live/scenario.h"
#include "chaos/live/schedule.h"
#include "chaos/live/status.h"

namespace muster::chaos {

// A fault as it happened. Times are CLOCK_REALTIME in ns; 0: it did not come to that.
struct Injection {
  PlannedFault planned;
  std::int64_t begun_ns = 0;
  std::int64_t over_ns = 0;  // undone; equal to begun_ns where there is nothing to undo
  // No step is expected before it is over: it may hold up the job for as long as it lasts.
  bool blocks = false;
  std::vector<std::string> victims;  // workers that were hit, by name; their processes may not live
  std::vector<std::int64_t> pids;    // of the processes that were hit
  std::string what;                  // one line: "SIGKILL to b-0 (process 812)"
  std::string failure;               // why it was not made; empty: it was
};

// One look at one process.
struct ProcessSample {
  std::int64_t t_ns = 0;
  std::int64_t descriptors = 0;
  std::int64_t threads = 0;
  std::int64_t resident_kib = 0;
};

// One life of a process of the run.
struct ProcessHistory {
  std::int64_t pid = 0;
  std::uint64_t start_ticks = 0;
  std::string role;  // "worker", "launcher", "coordinator", "other"
  std::string name;  // worker "b-0", node "b", "musterd", or the command
  std::int64_t first_ns = 0;
  std::int64_t last_ns = 0;  // of the last look at which it lived
  std::vector<ProcessSample> samples;
};

struct LogFact {
  std::string name;  // "musterd.log"
  std::int64_t bytes = 0;
  std::int64_t lines = 0;  // that Muster wrote; not those of the user's program
  // The line that came most often, numbers taken out, and how often.
  std::string most_frequent;
  std::int64_t repeats = 0;
};

// What `muster checkpoint verify` says of one checkpoint after the run.
struct CheckpointFact {
  std::string directory;
  std::int64_t step = 0;
  bool announced = false;  // the coordinator counts on it
  bool loads = false;      // every byte verified
  bool damaged_by_us = false;
  std::string detail;
};

struct Evidence {
  Scenario scenario;
  std::uint64_t seed = 0;
  std::vector<std::string> program;
  std::string directory;         // of the run: logs, records
  std::int64_t began_ns = 0;     // the launchers were started
  std::int64_t training_ns = 0;  // the first step was committed
  std::int64_t stopped_ns = 0;   // the lab began to stop what still ran
  std::int64_t ended_ns = 0;     // all processes had ended, or were given up

  RunFacts facts;                     // of the run; facts.steps is the last step of the chain
  std::optional<RunFacts> reference;  // undisturbed; nothing when it was not wanted
  std::vector<Injection> injections;
  std::vector<LeftOut> left_out;
  std::vector<IncidentStatus> incidents;  // by number of the generation they led to
  std::vector<EventStatus> events;        // in the order of time, over all lives of musterd
  std::optional<JobStatus> job;           // the last status that was seen
  std::vector<ProcessHistory> processes;
  std::vector<LogFact> logs;
  std::vector<CheckpointFact> checkpoints;
  std::int64_t min_workers = 1;
  Duration lease = Duration::Seconds(2);  // the job's failure timeout

  // How the run ended.
  bool finished = false;             // the job had taken all its steps; otherwise we stopped it
  std::string trouble;               // why the lab gave up; empty: it came to its end
  std::map<std::string, int> exits;  // exit codes by node, of those that ended by themselves
  std::vector<std::string> unended;  // nodes that had to be killed at the end
  std::vector<std::string> strays;   // processes that outlived all those that had started them
};

// All checks that the evidence allows, in the order of the promises.
[[nodiscard]] std::vector<Finding> Judge(const Evidence& evidence);

}  // namespace muster::chaos
