// `muster-chaos run` and `muster-chaos scenarios`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "chaos/live/console.h"
#include "chaos/live/engine.h"

namespace muster::chaos {

struct RunCommandOptions {
  std::string bin_directory;
  std::string scenario;               // a name or a path
  std::optional<std::uint64_t> seed;  // none: a fresh one
  std::string report;                 // directory for the report; empty: none is written
  std::string coordinator;            // a program instead of musterd
  std::string reference;              // directory of records of an undisturbed run, made if need be
  bool no_reference = false;          // S4 is not judged
  bool dry_run = false;               // show the schedule, start nothing
  bool keep = false;                  // leave logs and records behind
  bool json = false;                  // the report's JSON on the last line
  std::vector<std::string> program;   // empty: the language model among the examples
};

// Where the scenarios that ship lie: $MUSTER_SCENARIOS, the share folder beside the programs, or
// the tree.
[[nodiscard]] std::string ScenarioDirectory(const std::string& bin_directory);
// The program that is run when none is named, for so many workers at most.
[[nodiscard]] std::vector<std::string> DefaultProgram(const std::string& bin_directory,
                                                      std::int64_t workers);

// What came of a run: what was found out about it, and what the verdict is.
struct Judged {
  Evidence evidence;
  std::vector<Finding> findings;
  [[nodiscard]] bool ok() const;
};
// Runs the scenario and its reference, and judges it. Errors: nothing was judged.
[[nodiscard]] Result<Judged> RunAndJudge(RunOptions options, const RunCommandOptions& command,
                                         Console& console);

// Returns the exit code: 0 when all promises held, 1 when one did not or nothing could be judged, 2
// for a scenario that cannot be read, 130 when interrupted.
// With `judged` the run is put there, if it came to a verdict.
[[nodiscard]] int RunCommand(const RunCommandOptions& options,
                             std::optional<Judged>* judged = nullptr);
// Lists the scenarios that ship, with their summaries.
[[nodiscard]] int ScenariosCommand(const std::string& bin_directory);

}  // namespace muster::chaos
