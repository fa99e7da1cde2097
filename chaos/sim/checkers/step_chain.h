// S2, atomic steps: the committed steps form a chain without gap or repeat, each with one outcome
// for all members; only a recorded rollback takes a step back.
#pragma once

#include <map>
#include <set>

#include "chaos/sim/checkers/chain.h"
#include "chaos/sim/checkers/verdict.h"

namespace muster::sim {

class StepChain {
 public:
  // Before the step joins the chain.
  void OnCommit(const Commit& commit, const Chain& chain, Verdict& verdict) const;
  // With the store went decisions that nobody was told of.
  void OnStoreLost() { decided_.clear(); }
  // All votes on a step came in somewhere, with these wishes.
  void OnAgreed(const Commit& vote, Wishes wishes);
  // A member holds the reduced gradient of a step, and may vote on it.
  void OnPrepared(const Commit& vote);
  // A durable record, after the chain has taken it.
  void OnRecord(const JobRecord& record, const Chain& chain, Verdict& verdict);

  // All of its state, for those who compare states.
  template <class Visit>
  void VisitState(Visit&& visit) const {
    visit(prepared_, known_, lineage_, closed_by_, closed_at_, decided_, agreed_);
  }

 private:
  struct Key {
    Lineage lineage;
    Generation generation;
    Step step;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  void OnDecision(const Key& key, const JobRecord& record, Verdict& verdict);

  std::map<Key, Outcome> decided_;  // by records
  struct Agreed {
    Wishes wishes;
    std::set<Member> known_to;
  };
  std::map<Key, Agreed> agreed_;              // by votes; recent ones
  std::map<Key, std::set<Member>> prepared_;  // recent ones
  // The newest record: older generations have no step above `closed_at_`.
  Lineage lineage_;
  Lineage known_;
  Generation closed_by_;
  Step closed_at_;
};

}  // namespace muster::sim
