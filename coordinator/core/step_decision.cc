#include "coordinator/core/step_decision.h"

#include <algorithm>
#include <cstddef>

#include "protocol/mutants.h"

namespace muster::coordinator {

namespace {

bool PreparedFor(const Ready& ready, Step step) {
  return ready.open && ready.open->step == step && ready.open->prepared;
}

void Merge(Wishes& into, const Wishes& more) {
  into.checkpoint = into.checkpoint || more.checkpoint;
  into.reform = into.reform || more.reform;
}

// Some know the outcome of `committed`, others voted for it and wait: tell these what it was.
StepResolution Known(Generation broken, Step committed, const std::vector<Ready>& survivors) {
  StepResolution result;
  result.committed = committed;
  result.reason = StepReason::kNothingOpen;
  for (const Ready& ready : survivors) {
    if (ready.committed == committed) result.wishes = ready.wishes;
    if (!PreparedFor(ready, committed)) continue;
    result.decision = {broken, committed, ready.open->vote, {}};
    result.reason = StepReason::kOutcomeKnown;
  }
  if (result.reason == StepReason::kOutcomeKnown && Planted(Mutant::kWishesOfSurvivorsOnly)) {
    result.wishes = {};
    for (const Ready& ready : survivors) {
      if (PreparedFor(ready, committed)) Merge(result.wishes, ready.open->wishes);
    }
  }
  // The wishes agreed by the whole generation, not those of the survivors' own votes.
  if (result.reason == StepReason::kOutcomeKnown) result.decision.wishes = result.wishes;
  return result;
}

// Are `prepared` of `survivors` enough to commit the open step? All of them are.
bool Enough(std::ptrdiff_t prepared, std::ptrdiff_t survivors) {
  if (Planted(Mutant::kNeverCommitOpen)) return false;
  if (Planted(Mutant::kCommitAnyPrepared)) return prepared > 0;
  if (Planted(Mutant::kCommitMajorityPrepared)) return 2 * prepared > survivors;
  return prepared == survivors;
}

}  // namespace

StepResolution ResolveOpenStep(Generation broken, const std::vector<Ready>& survivors,
                               const std::optional<StepDecision>& inherited) {
  StepResolution result;
  if (survivors.empty()) {
    result.reason = StepReason::kNoSurvivor;
    if (inherited) result.decision = *inherited;
    return result;
  }
  Step committed = std::ranges::max(survivors, {}, &Ready::committed).committed;
  if (Planted(Mutant::kLeastCommitted)) {
    committed = std::ranges::min(survivors, {}, &Ready::committed).committed;
  }
  if (inherited && inherited->generation == broken && inherited->outcome != Outcome::kNone) {
    result.decision = *inherited;
    result.wishes = inherited->wishes;
    result.reason = StepReason::kInherited;
    const bool commits = inherited->outcome != Outcome::kVoid;
    // An open step follows a committed one, even if nobody who saw that outcome is left.
    const Step known = commits ? inherited->step : Step(inherited->step.value() - 1);
    result.committed = std::max(committed, known);
    return result;
  }
  const Step open = committed.Next();
  const auto prepared = [&](const Ready& ready) { return PreparedFor(ready, open); };
  const auto opened = [&](const Ready& ready) { return ready.open && ready.open->step == open; };
  if (Enough(std::ranges::count_if(survivors, prepared), std::ssize(survivors))) {
    result.decision = {broken, open, std::ranges::find_if(survivors, prepared)->open->vote, {}};
    for (const Ready& ready : survivors) {
      if (prepared(ready)) Merge(result.decision.wishes, ready.open->wishes);
    }
    result.wishes = result.decision.wishes;
    result.committed = open;
    result.reason = StepReason::kAllPrepared;
    return result;
  }
  result = Known(broken, committed, survivors);
  if (Planted(Mutant::kAppliedNotPrepared) && result.reason == StepReason::kOutcomeKnown) {
    result.committed = Step(committed.value() - 1);
    result.decision.outcome = Outcome::kVoid;
    return result;
  }
  if (result.reason == StepReason::kNothingOpen && std::ranges::any_of(survivors, opened)) {
    result.decision = {broken, open, Outcome::kVoid, {}};
    result.reason = StepReason::kNotAllPrepared;
  }
  return result;
}

}  // namespace muster::coordinator
