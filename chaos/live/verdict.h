// The checks of a verdict that look at more than the workers' records. All are pure; Judge() in
// evidence.h makes them all.
#pragma once

#include <cstdint>
#include <vector>

#include "chaos/live/evidence.h"

namespace muster::chaos {

// S4: each step that both runs took has bitwise the same loss and gradient.
[[nodiscard]] Finding CheckSameSteps(const RunFacts& facts, const RunFacts& reference);
// S5: all checkpoints that the coordinator counts on load, but for those that the lab damaged; and
// at least one does, if any counts.
[[nodiscard]] Finding CheckCheckpointsLoad(const Evidence& evidence);
// S6: while musterd alone was away, steps went on; its return harmed nobody and took nothing back.
[[nodiscard]] Finding CheckCoordinatorRestart(const Evidence& evidence);
// L1: from the last thing that was done to the run, the next step came within the bound, each time.
[[nodiscard]] Finding CheckResumes(const Evidence& evidence);
// The workers that nobody hit are the same processes as at the start.
[[nodiscard]] Finding CheckSameProcesses(const Evidence& evidence);
// No process outlived those that had started it.
[[nodiscard]] Finding CheckNoOrphans(const Evidence& evidence);
// Descriptors, threads and memory of processes that went through several re-forms did not grow.
[[nodiscard]] Finding CheckNoLeaks(const Evidence& evidence);
// Muster's own logs tell of changes, not of time.
[[nodiscard]] Finding CheckQuietLogs(const Evidence& evidence);
// All that was planned was done.
[[nodiscard]] Finding CheckFaultsMade(const Evidence& evidence);
// What the scenario expects beside the promises.
[[nodiscard]] Finding CheckBounds(const Evidence& evidence);
// The run came to its end by itself.
[[nodiscard]] Finding CheckEnded(const Evidence& evidence);

// First commit of each standing step by any rank, ascending.
[[nodiscard]] std::vector<std::int64_t> CommitTimes(const RunFacts& facts);
// From the end of each injection (its begin, if it does not hold up the run) to the next commit of
// a standing step, in ms; -1: there was none. In the order of the injections.
[[nodiscard]] std::vector<double> RecoveryMillis(const Evidence& evidence);

}  // namespace muster::chaos
