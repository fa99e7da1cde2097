// Verdicts on a finished run, as pure functions of what its workers recorded and of what the
// process table showed. Each names the promise it judges and carries its evidence in words; a
// violation names the step, the generation and the ranks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "chaos/live/records.h"
#include "chaos/live/status.h"

namespace muster::chaos {

// "Generation g went back to step r": as the coordinator reports it.
struct NamedRollback {
  std::int64_t generation = 0;
  std::int64_t step = 0;
};

// An incarnation that was declared dead in the record of `generation`.
struct Eviction {
  std::string worker;
  std::string incarnation;
  std::int64_t generation = 0;
};

// One life of a worker's process, seen in the process table before the first failure and at the
// end: the pid may be the same by chance, the start time not.
struct SurvivorFact {
  std::string worker;
  std::int64_t pid_before = 0;
  std::int64_t pid_after = 0;
  std::optional<std::uint64_t> ticks_before;
  std::optional<std::uint64_t> ticks_after;
};

struct RunFacts {
  std::vector<StepRecord> records = {};
  std::vector<NamedRollback> rollbacks = {};
  std::vector<Eviction> evictions = {};
  std::vector<SurvivorFact> survivors = {};
  std::int64_t steps = 0;  // of the spec
  std::int64_t epoch_samples = 0;
  std::int64_t global_batch = 0;
};

struct Finding {
  std::string name;  // "samples_exact": also the key in JSON
  bool ok = false;
  std::string evidence;      // one sentence; the first violations when not ok
  std::string promise = {};  // "S1", …, "L1"; empty: none of the promises by itself
  bool skipped = false;      // it could not be judged; the evidence says why
};

// Rollbacks and evictions by their events. A death is published in the generation that saw it, or
// in the one that is formed without it: the incarnation may have committed up to the former.
void AddNamed(const std::vector<EventStatus>& events, RunFacts* facts);
// Rollbacks by the incidents that they were part of, where no event told of them.
void AddNamed(const std::vector<IncidentStatus>& incidents, RunFacts* facts);

// Records that no rollback voids, by step and then generation.
using Standing = std::map<std::int64_t, std::map<std::int64_t, std::vector<const StepRecord*>>>;
// The pointers point into `facts`, which must outlive the result.
[[nodiscard]] Standing StandingOf(const RunFacts& facts);

// How many committed steps the rollbacks voided, counted once for each time they were taken.
[[nodiscard]] std::int64_t StepsRedone(const RunFacts& facts);

// S1: no two generations committed the same standing step, generations never go back along the
// chain, and no incarnation committed in or after the generation that declared it dead.
[[nodiscard]] Finding CheckOneGeneration(const RunFacts& facts);
// S2: the standing steps are 1, 2, … `steps`, each once; no process recorded one twice.
[[nodiscard]] Finding CheckChain(const RunFacts& facts);
// S2: all ranks that recorded a step agree on its outcome, loss, world size and epoch. A rank may
// be missing only in the last step of its generation, if it recorded none after it there: it died
// with its vote given.
[[nodiscard]] Finding CheckOutcomes(const RunFacts& facts);
// S3: along the chain the positions of each epoch are consumed in order, each exactly once; every
// step takes global_batch samples, or what is left of the epoch. The part of a rank that died with
// its vote given lies between those of its neighbours.
[[nodiscard]] Finding CheckSamples(const RunFacts& facts);
// All ranks ended with the same state (and `workers` of them did), and had the same reduced
// gradient in each step.
[[nodiscard]] Finding CheckWeights(const RunFacts& facts, std::size_t workers);
// S4: the final state, and the loss and the gradient of each step, are bitwise those of an
// undisturbed run.
[[nodiscard]] Finding CheckSameResult(const RunFacts& facts, const RunFacts& undisturbed);
// The survivors are the same processes as before.
[[nodiscard]] Finding CheckSurvivors(const RunFacts& facts);
// Training went on to learn: mean loss of the last tenth of the steps below that of the first.
[[nodiscard]] Finding CheckLoss(const RunFacts& facts);

// The digest of the state that the run ended with; empty when no worker reported one.
[[nodiscard]] std::string FinalDigestOf(const RunFacts& facts);
// Loss of each standing step, in order of steps.
[[nodiscard]] std::vector<double> LossesOf(const RunFacts& facts);

}  // namespace muster::chaos
