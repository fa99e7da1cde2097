// `muster drain` and `muster adopt`: commands of an operator to the coordinator.
#pragma once

#include <string>

#include "protocol/time.h"
#include "worker/cli/query.h"

namespace muster::cli {

struct DrainOptions {
  QueryOptions query;  // coordinator, token, job
  std::string node;    // one of node and worker at least
  std::string worker;
  Duration within;  // zero: at the next step boundary, however long that takes
  bool undo = false;
  bool wait = false;
  Duration timeout = Duration::Seconds(600);  // of waiting
};

// Asks the coordinator to let the place go, or to welcome it again. With `wait` it returns when no
// worker of the place is a member any more; a line of progress on stderr says who still is. Returns
// the exit code: 0, or 1 after one line on stderr.
[[nodiscard]] int RunDrain(const DrainOptions& options);

// Asks the coordinator not to wait any longer for members that are out of sight.
[[nodiscard]] int RunAdopt(const QueryOptions& options, bool yes);

}  // namespace muster::cli
