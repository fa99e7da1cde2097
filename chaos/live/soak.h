// `muster-chaos soak`: one scenario after another with fresh seeds, for as long as is wished.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "protocol/time.h"

namespace muster::chaos {

struct SoakOptions {
  std::string bin_directory;
  std::string own_program;  // this executable: each run is a process of its own
  Duration length;
  std::optional<std::uint64_t> seed;   // of the order and of the seeds; none: a fresh one
  std::string directory;               // for reports of failures, and the list of their seeds
  std::vector<std::string> scenarios;  // only these; empty: all that ship
  bool json = false;                   // the summary as one object on the last line
  std::vector<std::string> program;    // as for `run`
};

// What a run's report says of it. Pure.
struct SoakTally {
  std::int64_t runs = 0;
  std::int64_t failed = 0;
  std::int64_t steps = 0;
  std::int64_t reforms = 0;
  std::map<std::string, std::int64_t> faults;  // made, by kind
};
// Adds a run by its report.json; false when the text is no such report.
[[nodiscard]] bool AddReport(const std::string& report, SoakTally* tally);

// Begins no run after `length`; ends the one that runs then. Each failing seed is appended to
// `failures.txt` in the directory, as the command that repeats it, beside its report. Returns 0
// when all runs held, 1 when one did not, 130 when interrupted.
[[nodiscard]] int RunSoak(const SoakOptions& options);

}  // namespace muster::chaos
