// The promises S1 and S2, checked from what the simulated workers were told and hold, not from what
// the coordinator says: one chain of steps, without gap or repeat, the same for all.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "protocol/records.h"

namespace muster::sim {

class Ledger {
 public:
  // A worker's Commit() returned this outcome, and `state` is what its memory is after it (the
  // state before it, for a skip).
  void OnOutcome(const Member& member, Generation generation, Step step, Outcome outcome,
                 std::uint64_t state_before);
  // A durable record of the job: rollbacks cut the chain.
  void OnRecord(const JobRecord& record);
  // A worker holds `state` at `step` after restoring.
  void OnRestored(const Member& member, Step step, std::uint64_t state);

  [[nodiscard]] Step last() const;
  // The first violation; empty while there is none.
  [[nodiscard]] const std::string& violation() const { return violation_; }
  // The state at a step of the chain, if it is one.
  [[nodiscard]] std::optional<std::uint64_t> StateAt(Step step) const;
  void Violate(std::string what);

 private:
  struct Link {
    Generation generation;
    Outcome outcome = Outcome::kApply;
    std::uint64_t state = 0;
  };
  std::map<Step, Link> chain_;
  std::vector<Rollback> rollbacks_;
  std::string violation_;
};

// What a step makes of a state: it depends on the step and on what was there, as training does.
[[nodiscard]] std::uint64_t NextState(std::uint64_t state, Step step);

}  // namespace muster::sim
