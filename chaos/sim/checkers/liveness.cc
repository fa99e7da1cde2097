#include "chaos/sim/checkers/liveness.h"

#include <fmt/format.h>

namespace muster::sim {

void Liveness::OnStep(const Chain& chain) {
  if (!peaceful_) return;
  if (chain.rollbacks() != rollbacks_) {
    rollbacks_ = chain.rollbacks();
    steps_ = 0;
  }
  ++steps_;
}

void Liveness::AtDeadline(Instant now, const std::string& waiting_for, Verdict& verdict) const {
  if (satisfied()) return;
  verdict.Violate(
      "L1", fmt::format("{} steps in {:.0f} s after the last fault; waiting for: {}", steps_,
                        (now - peace_).ToSeconds(), waiting_for.empty() ? "nothing" : waiting_for));
}

}  // namespace muster::sim
