#include "chaos/sim/ledger.h"

#include <fmt/format.h>

#include "protocol/prng.h"

namespace muster::sim {

std::uint64_t NextState(std::uint64_t state, Step step) {
  return Mix64(state ^ Mix64(static_cast<std::uint64_t>(step.value())));
}

void Ledger::Violate(std::string what) {
  if (violation_.empty()) violation_ = std::move(what);
}

Step Ledger::last() const { return chain_.empty() ? Step() : chain_.rbegin()->first; }

std::optional<std::uint64_t> Ledger::StateAt(Step step) const {
  if (step == Step()) return 0;
  const auto it = chain_.find(step);
  if (it == chain_.end()) return std::nullopt;
  return it->second.state;
}

void Ledger::OnOutcome(const Member& member, Generation generation, Step step, Outcome outcome,
                       std::uint64_t state_before) {
  // Void, known or not: a worker that no one can reach may still show it, but it counts for
  // nothing.
  for (const Rollback& rollback : rollbacks_) {
    if (generation < rollback.generation && step > rollback.step) return;
  }
  const std::string who = fmt::format("worker {} in generation {}, step {}", member.worker.value(),
                                      generation.value(), step.value());
  const auto before = StateAt(Step(step.value() - 1));
  if (!before) return Violate(who + ": committed with a gap below it");
  if (*before != state_before)
    return Violate(who + ": committed on another state than the chain's");
  const std::uint64_t after =
      outcome == Outcome::kApply ? NextState(state_before, step) : state_before;
  const Generation newest = chain_.empty() ? Generation() : chain_.rbegin()->second.generation;
  const auto [it, fresh] = chain_.try_emplace(step, Link{generation, outcome, after});
  if (fresh) {
    if (generation < newest) Violate(who + ": committed above a step of a newer generation");
    return;
  }
  if (it->second.outcome != outcome) Violate(who + ": another outcome than its peers");
  if (it->second.generation != generation) Violate(who + ": taken in two generations");
}

void Ledger::OnRecord(const JobRecord& record) {
  if (record.rollbacks.empty()) return;
  const Rollback& rollback = record.rollbacks.back();
  if (!rollbacks_.empty() && rollback.generation <= rollbacks_.back().generation) return;
  rollbacks_.push_back(rollback);
  chain_.erase(chain_.upper_bound(rollback.step), chain_.end());
}

void Ledger::OnRestored(const Member& member, Step step, std::uint64_t state) {
  const auto expected = StateAt(step);
  if (!expected || *expected != state) {
    Violate(fmt::format("worker {} holds another state at step {} than the chain",
                        member.worker.value(), step.value()));
  }
}

}  // namespace muster::sim
