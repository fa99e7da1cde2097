#include "chaos/sim/checkers/chain.h"

#include <algorithm>

#include "protocol/prng.h"

namespace muster::sim {

std::uint64_t NextState(std::uint64_t state, Step step) {
  return Mix64(state ^ Mix64(static_cast<std::uint64_t>(step.value())));
}

std::optional<std::uint64_t> Chain::StateAt(Step step) const {
  if (step == Step()) return 0;
  const Link* link = At(step);
  if (link == nullptr) return std::nullopt;
  return link->state;
}

const Chain::Link* Chain::At(Step step) const {
  const auto it = links_.find(step);
  return it == links_.end() ? nullptr : &it->second;
}

Generation Chain::newest() const {
  return links_.empty() ? Generation() : links_.rbegin()->second.generation;
}

bool Chain::Add(Generation generation, Step step, Outcome outcome, std::uint64_t before) {
  const std::uint64_t after = outcome == Outcome::kApply ? NextState(before, step) : before;
  return links_.try_emplace(step, Link{generation, outcome, after}).second;
}

bool Chain::Voided(Lineage lineage, Generation generation, Step step) const {
  const auto at = std::ranges::find(lineages_, lineage);
  const bool given_up = at != lineages_.end() && at + 1 != lineages_.end();
  return std::ranges::any_of(rollbacks_,
                             [&](const Rollback& rollback) {
                               return generation < rollback.generation && step > rollback.step;
                             }) ||
         (given_up && At(step) == nullptr);
}

void Chain::OnRecord(const JobRecord& record) {
  if (lineages_.empty() || lineages_.back() != record.lineage) {
    // A job that begins afresh after its store was lost, with nobody left who knew it.
    const bool afresh = !lineages_.empty() && !record.latest && !record.started;
    if (afresh) {
      links_.clear();
      rollbacks_.clear();
    }
    lineages_.push_back(record.lineage);
  }
  for (const Rollback& rollback : record.rollbacks) {
    if (std::ranges::find(rollbacks_, rollback) != rollbacks_.end()) continue;
    rollbacks_.push_back(rollback);
    ++rollbacks_seen_;
    // Steps of its own and later generations stand; a record is never older than they are.
    std::erase_if(links_, [&](const auto& entry) {
      return entry.first > rollback.step && entry.second.generation < rollback.generation;
    });
  }
  if (record.latest) {
    const StepDecision& decision = record.latest->decision;
    const bool committed =
        decision.outcome == Outcome::kApply || decision.outcome == Outcome::kSkip;
    const auto before = StateAt(Step(decision.step.value() - 1));
    if (committed && before && !Voided(record.lineage, decision.generation, decision.step)) {
      Add(decision.generation, decision.step, decision.outcome, *before);
    }
  }
  record_ = record;
}

}  // namespace muster::sim
