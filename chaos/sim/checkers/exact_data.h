// S3, exact data: each step's gradient is the sum over all micro-batches of its batch, each once,
// whatever the world size; and along the chain the batches follow each other without gap.
#pragma once

#include <map>
#include <vector>

#include "chaos/sim/action.h"
#include "chaos/sim/checkers/chain.h"
#include "chaos/sim/checkers/verdict.h"
#include "protocol/box.h"
#include "worker/core/micro_batch_plan.h"

namespace muster::sim {

class ExactData {
 public:
  explicit ExactData(JobSpec spec) : spec_(std::move(spec)) {}
  // The reduction of a step completed on some rank, over these parts of it.
  void OnReduced(const OpKey& key, std::vector<Range> parts, Verdict& verdict);
  // A step that joins the chain.
  void OnCommit(const Commit& commit, const Chain& chain, Verdict& verdict) const;

  // All of its state, for those who compare states.
  template <class Visit>
  void VisitState(Visit&& visit) const {
    visit(exact_);
  }

 private:
  JobSpec spec_;
  std::map<OpKey, bool> exact_;  // of recent reductions
};

}  // namespace muster::sim
