// S1, one generation: at most one generation of a job can commit steps, and an incarnation that was
// left out for good makes no step that counts.
#pragma once

#include <set>
#include <vector>

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
    visit(fenced_, lineage_, decided_);
  }

  // A record that decides who the members of a new generation are. `all`: what the members of the
  // generation before it, and of it, have said and may still do.
  struct Standing {
    Member member;
    bool may_train = false;  // alive, and not out of touch for so long that it stops by itself
    bool reported = false;   // to the coordinator that decides, since that started
    Generation ready_for;    // its last answer to an interrupt that arrived
  };
  void OnDecision(const JobRecord& record, const std::vector<Standing>& all, bool adopts,
                  bool waited, Verdict& verdict);

 private:
  std::set<Member> fenced_;  // every incarnation that a durable record left out
  Lineage lineage_;
  Generation decided_;
};

}  // namespace muster::sim
