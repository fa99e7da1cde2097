// S6, the coordinator may die: whatever it told anyone is in its store before, so that a crash
// forgets nothing that was acted on; and no two workers are ever told different things about one
// generation.
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "chaos/sim/checkers/verdict.h"
#include "protocol/messages.h"

namespace muster::sim {

class DurableDecisions {
 public:
  // A message leaves the coordinator. `stored`: the durable record of its job, if any.
  void OnSend(const Message& message, const JobRecord* stored,
              const std::vector<CheckpointEntry>& checkpoints, Verdict& verdict);

  // All of its state, for those who compare states.
  template <class Visit>
  void VisitState(Visit&& visit) const {
    visit(told_);
  }

 private:
  void OnAssign(const GenerationRecord& record, Verdict& verdict);

  std::map<std::pair<Lineage, Generation>, GenerationRecord> told_;  // of recent generations
};

}  // namespace muster::sim
