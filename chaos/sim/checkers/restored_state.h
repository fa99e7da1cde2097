// S2 and S5 at a restore: what a worker takes for the state of a step is complete, all of one step,
// and the chain's.
#pragma once

#include <cstdint>
#include <vector>

#include "chaos/sim/checkers/chain.h"
#include "chaos/sim/checkers/verdict.h"
#include "chaos/sim/piece.h"

namespace muster::sim {

class RestoredState {
 public:
  // `pieces` is what a worker collected for elements [lo, hi), in any order.
  static void OnRestored(const Member& member, Lineage lineage, Step step, std::int64_t lo,
                         std::int64_t hi, std::vector<Piece> pieces, const Chain& chain,
                         Verdict& verdict);
};

}  // namespace muster::sim
