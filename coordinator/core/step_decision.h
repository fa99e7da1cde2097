// How the step that was open when a generation broke is resolved: committed or abandoned, for all.
//
// A member votes only once it holds the fully reduced gradient, and an outcome needs all votes. So
// if every survivor is prepared for step k, k may have been seen as committed and is committed; if
// one is not, nobody can have seen an outcome and all abandon it. The outcome itself is a function
// of the reduced gradient, so any one vote tells it.
#pragma once

#include <optional>
#include <vector>

#include "protocol/messages.h"

namespace muster::coordinator {

enum class StepReason {
  kNothingOpen,     // all survivors stand at the same boundary
  kOutcomeKnown,    // one of them knows that the step was committed
  kAllPrepared,     // all have voted: committed
  kNotAllPrepared,  // one has not: abandoned
  kInherited,       // decided in a record that never started
  kNoSurvivor,
};

struct StepResolution {
  StepDecision decision;  // outcome kNone when nothing was open
  Step committed;         // the last committed step after the decision
  Wishes wishes;          // agreed in the vote of `committed`, when it is known
  StepReason reason = StepReason::kNothingOpen;
};

// `broken` is the last started generation; `survivors` are the answers of its members alone (a
// joiner has no say). `inherited` is the decision of a later record that did not start, if any: it
// is final.
[[nodiscard]] StepResolution ResolveOpenStep(Generation broken, const std::vector<Ready>& survivors,
                                             const std::optional<StepDecision>& inherited);

}  // namespace muster::coordinator
