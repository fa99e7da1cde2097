// `muster status --ops`: reads the flight rings of a directory and says who waits for whom. Asks no
// coordinator.
#pragma once

#include <string>
#include <vector>

#include "worker/cli/ops_compare.h"

namespace muster::cli {

struct OpsOptions {
  std::string directory;  // empty: DefaultFlightDirectory()
  std::string job;        // empty: all
  bool json = false;
  bool repeat = false;  // again each second
};

// The screen: for each job the rings in a table, and the verdict. Pure.
[[nodiscard]] std::string RenderOps(const std::vector<JobOps>& jobs,
                                    const std::vector<std::string>& unreadable);
// The same as one JSON object, for programs. Pure.
[[nodiscard]] std::string OpsJson(const std::vector<JobOps>& jobs,
                                  const std::vector<std::string>& unreadable);

// Prints to stdout and returns what the process should exit with: 0, or 1 after one line on stderr.
// With `repeat` it goes on until a signal ends the process.
[[nodiscard]] int RunOps(const OpsOptions& options);

}  // namespace muster::cli
