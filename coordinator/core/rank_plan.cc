#include "coordinator/core/rank_plan.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

namespace muster::coordinator {

std::vector<Candidate> ChooseMembers(std::vector<Candidate> candidates, std::int32_t max_workers) {
  std::ranges::sort(candidates, [](const Candidate& a, const Candidate& b) {
    return std::tuple(!a.holds_state, a.holds_state ? a.previous_rank : Rank(0), a.order,
                      a.member) <
           std::tuple(!b.holds_state, b.holds_state ? b.previous_rank : Rank(0), b.order, b.member);
  });
  if (candidates.size() > static_cast<std::size_t>(max_workers)) {
    candidates.resize(static_cast<std::size_t>(max_workers));
  }
  return candidates;
}

std::vector<MemberEntry> PlanRanks(const std::vector<Candidate>& chosen) {
  const std::size_t world = chosen.size();
  std::vector<std::optional<Candidate>> slots(world);
  std::vector<Candidate> others;
  for (const Candidate& candidate : chosen) {
    const auto rank = static_cast<std::size_t>(candidate.previous_rank.value());
    if (candidate.previous_rank.value() >= 0 && rank < world && !slots[rank]) {
      slots[rank] = candidate;
    } else {
      others.push_back(candidate);
    }
  }
  for (std::size_t rank = 0; rank < world; ++rank) {
    if (slots[rank]) continue;
    auto pick = others.begin();
    if (rank > 0) {
      const auto near = std::ranges::find(others, slots[rank - 1]->node, &Candidate::node);
      if (near != others.end()) pick = near;
    }
    slots[rank] = *pick;
    others.erase(pick);
  }
  std::vector<MemberEntry> members;
  members.reserve(world);
  for (std::size_t rank = 0; rank < world; ++rank) {
    const Candidate& c = *slots[rank];
    members.push_back({c.member, Rank(static_cast<std::int32_t>(rank)), c.node, c.address,
                       c.holds_state ? c.previous_rank : Rank(-1)});
  }
  return members;
}

}  // namespace muster::coordinator
