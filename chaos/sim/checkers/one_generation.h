// S1, one generation: at most one generation of a job can commit steps, and an incarnation that was
// left out for good makes no step that counts.
#pragma once

#include <set>

#include "chaos/sim/checkers/chain.h"
#include "chaos/sim/checkers/verdict.h"

namespace muster::sim {

class OneGeneration {
 public:
  void OnRecord(const JobRecord& record, Verdict& verdict);
  // Before the step joins the chain.
  void OnCommit(const Commit& commit, const Chain& chain, Verdict& verdict) const;

  // With the store went what it had left out and told nobody of.
  void OnStoreLost() { fenced_.clear(); }
  // All of its state, for those who compare states.
  template <class Visit>
  void VisitState(Visit&& visit) const {
    visit(fenced_);
  }

 private:
  std::set<Member> fenced_;  // every incarnation that a durable record left out
};

}  // namespace muster::sim
