#include "coordinator/core/rank_plan.h"

#include <algorithm>
#include <deque>
#include <map>
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

namespace {

// Hands out candidates in their order, those of a wanted node before their turn.
class Queue {
 public:
  explicit Queue(const std::vector<Candidate>& candidates) : taken_(candidates.size()) {
    for (std::size_t i = 0; i < candidates.size(); ++i) by_node_[candidates[i].node].push_back(i);
  }
  // The first one of `node` (null: of any), otherwise the first one. REQUIRES: some are left
  std::size_t Pop(const NodeName* node) {
    std::size_t pick = 0;
    auto near = node == nullptr ? by_node_.end() : by_node_.find(*node);
    if (near != by_node_.end()) DropTaken(near->second);
    if (near != by_node_.end() && !near->second.empty()) {
      pick = near->second.front();
    } else {
      while (taken_[first_]) ++first_;
      pick = first_;
    }
    taken_[pick] = true;
    return pick;
  }

 private:
  void DropTaken(std::deque<std::size_t>& queue) const {
    while (!queue.empty() && taken_[queue.front()]) queue.pop_front();
  }

  std::vector<bool> taken_;
  std::size_t first_ = 0;
  std::map<NodeName, std::deque<std::size_t>> by_node_;
};

}  // namespace

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
  Queue queue(others);
  for (std::size_t rank = 0; rank < world; ++rank) {
    if (slots[rank]) continue;
    slots[rank] = others[queue.Pop(rank > 0 ? &slots[rank - 1]->node : nullptr)];
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
