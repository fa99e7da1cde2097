// S1, rule 8: out of touch with the coordinator for `autonomy`, a worker shows its loop no outcome.
// Its time counts from when that was sent which the coordinator answered last.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "chaos/sim/checkers/verdict.h"
#include "protocol/time.h"

namespace muster::sim {

// What one worker sent, and what of it was answered, by the clock of the world.
class Contact {
 public:
  void OnHello(Instant now);
  void OnWelcome();
  void OnBeat(std::int64_t sequence, Instant now);
  void OnAck(std::int64_t sequence);
  // May it still show outcomes?
  [[nodiscard]] bool MayAct(Duration autonomy, Instant now) const {
    return now - answered_ < autonomy - autonomy / 100;
  }
  // An outcome is shown to the loop.
  void OnCommit(const std::string& who, Duration lease, Duration autonomy, bool connected,
                Instant now, Verdict& verdict) const;

  // All of its state, for those who compare states.
  template <class Visit>
  void VisitState(Visit&& visit) const {
    visit(asked_, hello_, answered_);
  }

 private:
  Instant hello_;
  Instant asked_;                          // anything, last
  Instant answered_;                       // when that was sent which the coordinator answered last
  std::map<std::int64_t, Instant> beats_;  // not acknowledged yet
};

}  // namespace muster::sim
