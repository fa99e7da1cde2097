#include "chaos/sim/checkers/restored_state.h"

#include <fmt/format.h>

#include <algorithm>

namespace muster::sim {

void RestoredState::OnRestored(const Member& member, Lineage lineage, Step step, std::int64_t lo,
                               std::int64_t hi, std::vector<Piece> pieces, const Chain& chain,
                               Verdict& verdict) {
  const std::string who =
      fmt::format("worker {} restores step {}", member.worker.value(), step.value());
  const auto expected = chain.StateAt(lineage, step);
  if (!expected) return verdict.Violate("S2", who + ": not a step of the chain");
  std::ranges::sort(pieces, {}, &Piece::lo);
  std::int64_t next = lo;
  for (const Piece& piece : pieces) {
    if (piece.lo != next) {
      return verdict.Violate("S5", fmt::format("{}: elements from {} on do not come once", who,
                                               std::min(piece.lo, next)));
    }
    next = piece.hi;
    if (piece.step != step) {
      return verdict.Violate("S5", fmt::format("{}: elements from {} on are of step {}", who,
                                               piece.lo, piece.step.value()));
    }
    if (piece.state != *expected) {
      return verdict.Violate(
          "S2", fmt::format("{}: elements from {} on are not the chain's", who, piece.lo));
    }
  }
  if (next != hi) {
    verdict.Violate("S5", fmt::format("{}: elements from {} on are missing", who, next));
  }
}

}  // namespace muster::sim
