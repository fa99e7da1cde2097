// S1, rule 8, asking before acting: once its lease has run out, a worker has asked before Commit()
// returns an outcome; out of touch for `autonomy`, it returns none.
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
  // It dials, or learns that it could not reach the coordinator.
  void OnDial(Instant now) { asked_ = now; }
  void OnClosed(Instant now) {
    if (!welcomed_) asked_ = now;
    welcomed_ = false;
  }
  // An outcome is shown to the loop.
  void OnCommit(const std::string& who, Duration lease, Duration autonomy, Instant now,
                Verdict& verdict) const;

 private:
  bool welcomed_ = false;
  Instant hello_;
  Instant asked_;                          // anything, last
  Instant answered_;                       // when that was sent which the coordinator answered last
  std::map<std::int64_t, Instant> beats_;  // not acknowledged yet
};

}  // namespace muster::sim
