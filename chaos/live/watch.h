// Looks at the processes of a run from outside: in the process table, which none of them can talk
// its way out of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "chaos/live/evidence.h"
#include "protocol/status.h"

namespace muster::chaos {

// One thread makes all calls.
class ProcessWatch {
 public:
  // Watches the processes that have `mark` ("NAME=value") in the environment they were started
  // with.
  // Keeps so many samples of each at most.
  explicit ProcessWatch(std::string mark, std::size_t most_samples = 2000);
  // Takes note of all that live now; `now_ns` is CLOCK_REALTIME. Costs some 0.1 ms a process.
  void Look(std::int64_t now_ns);
  // All lives that were ever seen, in the order in which they were. Long ones have their samples
  // thinned out.
  [[nodiscard]] std::vector<ProcessHistory> Histories() const;
  // Those that lived at the last look.
  [[nodiscard]] std::vector<ProcessHistory> Alive() const;

 private:
  struct Life {
    ProcessHistory history;
    std::int64_t keep_every = 1;  // one of so many samples is kept
    std::int64_t looks = 0;
  };
  using Key = std::pair<std::int64_t, std::uint64_t>;  // pid and start

  void Note(std::int64_t pid, std::int64_t now_ns);

  const std::string mark_;
  const std::size_t most_samples_;
  std::int64_t now_ns_ = 0;
  std::map<Key, Life> lives_;
};

// Size and lines of a log of musterd's, or of a launcher's (whose workers' own output does not
// count). Reads it in pieces.
[[nodiscard]] Result<LogFact> FactsOfLog(const std::string& path, const std::string& name);

// Has `muster checkpoint verify` read every byte of the checkpoints that the job counts on. Blocks.
[[nodiscard]] std::vector<CheckpointFact> VerifyCheckpoints(const std::string& muster,
                                                            const std::string& root,
                                                            const JobStatus& job);

}  // namespace muster::chaos
