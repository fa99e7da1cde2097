// `muster-chaos drill`: the rehearsal before a long run, on the user's own loop.
#pragma once

#include <cstdint>
#include <string>

#include "chaos/live/evidence.h"
#include "chaos/live/run_command.h"
#include "protocol/time.h"

namespace muster::chaos {

// What failures and checkpoints cost, from what the drill has measured.
struct DrillCost {
  double step_ms = 0;      // median of the undisturbed run
  double recovery_ms = 0;  // from a death to the next step, the worst of those seen
  // A checkpoint holds up the loop for so long: what a step with one takes beyond the median.
  double checkpoint_ms = 0;
  bool goes_back = false;             // a death takes the job back to a checkpoint
  std::int64_t checkpoint_every = 0;  // steps, of the job
  // Part of the time that is lost at the rate of failures that was named, with the job's interval
  // and with the suggested one.
  double lost_now = 0;
  double lost_best = 0;
  std::int64_t best_every = 0;  // steps; 0: no interval follows from the measurement
};
// The interval that loses the least time is the square root of 2 × cost of a checkpoint × mean time
// between failures (Young 1974). Pure.
[[nodiscard]] DrillCost CostOf(const Evidence& evidence, Duration mtbf);

// Runs the scenario "drill" with its undisturbed reference, judges it, and says go or no-go, and
// what failures will cost when one comes every `mtbf`. Exit code as for RunCommand.
[[nodiscard]] int DrillCommand(const RunCommandOptions& options, Duration mtbf);

}  // namespace muster::chaos
