// Compares the flight rings of the ranks of a job: who has not entered which operation in which the
// others wait. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "protocol/ids.h"
#include "worker/collective/flight_file.h"

namespace muster::cli {

// When and where the rings were read. Times of processes of another machine are compared by the
// wall clock, those of this one by the monotonic clock.
struct OpsNow {
  std::int64_t monotonic_ns = 0;
  std::int64_t unix_ns = 0;
  std::uint64_t pid_space = 0;  // as in FlightIdentity
};

// One worker's ring.
struct OpsRow {
  std::string path;
  std::string worker;
  std::int64_t pid = 0;
  std::string host;
  Liveness liveness = Liveness::kUnknown;
  Generation generation;  // zero: in none yet
  Rank rank{-1};
  // Of the generation that is compared. Otherwise it is shown, and has no part in the verdict.
  bool current = false;
  std::optional<FlightEntry> last;    // in its generation; none: no operation yet
  std::optional<FlightEntry> shared;  // the last one that was no send or recv
  // Since the last one began while it runs, else since it was done; 0 without one.
  double age_ms = 0;
};

struct JobOps {
  std::string job;
  // The generation that began last, of the living if there are any.
  Generation generation;
  std::int32_t world_size = 0;
  std::vector<OpsRow> rows;  // the current ones by rank, then the others, the newest first
  // In plain words, the most important first; never empty.
  std::vector<std::string> verdict;
};

// By name of the job; `only`: of this job alone unless empty. Jobs of one name with coordinators of
// their own (workers that live, of several lineages) are told apart. Works on whatever rings say:
// times and numbers need not make sense.
[[nodiscard]] std::vector<JobOps> CompareOps(const std::vector<FoundFlight>& flights,
                                             const OpsNow& now, const std::string& only = {});

// "118 all_gather of 4.0 MiB", "3 send of 8 B to rank 1"
[[nodiscard]] std::string OperationText(const FlightEntry& entry);
// "alive", "dead", "?"
[[nodiscard]] std::string LivenessText(Liveness liveness);

}  // namespace muster::cli
