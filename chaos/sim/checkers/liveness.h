// L1, it comes back: when the faults have stopped, training goes on within a bound, to twenty new
// steps without a further rollback, or to the job's end.
#pragma once

#include <string>

#include "chaos/sim/checkers/chain.h"
#include "chaos/sim/checkers/verdict.h"
#include "protocol/time.h"

namespace muster::sim {

class Liveness {
 public:
  void OnPeace(Instant now) {
    peaceful_ = true;
    peace_ = now;
  }
  // A step has joined the chain.
  void OnStep(const Chain& chain);
  void OnEnd() { ended_ = true; }
  [[nodiscard]] bool satisfied() const { return peaceful_ && (ended_ || steps_ >= kSteps); }
  void AtDeadline(Instant now, const std::string& waiting_for, Verdict& verdict) const;

 private:
  static constexpr int kSteps = 20;
  bool peaceful_ = false;
  bool ended_ = false;
  Instant peace_;
  int steps_ = 0;  // since peace and the last rollback
  std::int64_t rollbacks_ = 0;
};

}  // namespace muster::sim
