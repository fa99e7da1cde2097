// Runs a program under a scenario, breaks what the schedule says, and gathers the evidence.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "chaos/live/console.h"
#include "chaos/live/evidence.h"
#include "chaos/live/sandbox.h"
#include "protocol/status.h"

namespace muster::chaos {

struct RunOptions {
  Scenario scenario;
  std::uint64_t seed = 1;
  // With its arguments; "{run}" in them stands for the directory of the run.
  std::vector<std::string> program;
  std::string bin_directory;        // where musterd and muster lie
  std::string coordinator_program;  // instead of musterd; empty: that one
  std::string parent;               // of the run directory; empty: $TMPDIR or /tmp
  bool keep = false;                // leave the run directory behind
  std::string record_copy;          // RunReference: a directory that the records are copied to
  Sandbox sandbox;
};

// Runs the program, undisturbed and on one node's network, until it has taken `steps` steps or has
// ended. Blocks. The facts of that run, for comparison.
[[nodiscard]] Result<RunFacts> RunReference(const RunOptions& options, std::int64_t steps,
                                            Console& console);

// Runs the scenario to its end. Blocks. An error is one of the lab's or of the input: nothing was
// judged. What goes wrong in the run itself stands in the evidence.
[[nodiscard]] Result<Evidence> RunScenario(const RunOptions& options, Console& console);

}  // namespace muster::chaos
