#include "chaos/sim/checkers/step_chain.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/core/durable_state.h"

namespace muster::sim {

void StepChain::OnCommit(const Commit& commit, const Chain& chain, Verdict& verdict) const {
  if (chain.Voided(commit.lineage, commit.generation, commit.step)) return;
  const std::string who =
      fmt::format("worker {} in generation {}, step {}", commit.member.worker.value(),
                  commit.generation.value(), commit.step.value());
  const auto before = chain.StateAt(commit.lineage, Step(commit.step.value() - 1));
  if (!before) return verdict.Violate("S2", who + ": committed with a gap below it");
  if (*before != commit.before) {
    return verdict.Violate("S2", who + ": committed on another state than the chain's");
  }
  const bool closed = commit.lineage == lineage_ && commit.generation < closed_by_;
  if (closed && commit.step > closed_at_) {
    verdict.Violate("S2", fmt::format("{}: committed, but generation {} goes on from step {}", who,
                                      closed_by_.value(), closed_at_.value()));
  }
  const auto decided = decided_.find({commit.lineage, commit.generation, commit.step});
  if (decided != decided_.end() && decided->second == Outcome::kVoid) {
    verdict.Violate("S2", who + ": committed, but a record has abandoned it");
  }
  const Chain::Link* link = chain.At(commit.lineage, commit.step);
  if (link == nullptr) return;
  if (link->outcome != commit.outcome) {
    verdict.Violate("S2", who + ": another outcome than its peers");
  }
  if (link->generation != commit.generation) {
    verdict.Violate("S2", who + ": taken in two generations");
  }
}

void StepChain::OnAgreed(const Commit& vote, Wishes wishes) {
  constexpr std::size_t kVotesKept = 64;
  Agreed& agreed = agreed_[{vote.lineage, vote.generation, vote.step}];
  agreed.wishes = wishes;
  agreed.known_to.insert(vote.member);
  if (agreed_.size() > kVotesKept) agreed_.erase(agreed_.begin());
}

void StepChain::OnPrepared(const Commit& vote) {
  constexpr std::size_t kStepsKept = 64;
  prepared_[{vote.lineage, vote.generation, vote.step}].insert(vote.member);
  if (prepared_.size() > kStepsKept) prepared_.erase(prepared_.begin());
}

void StepChain::OnDecision(const Key& key, const JobRecord& record, Verdict& verdict) {
  const StepDecision& decision = record.latest->decision;
  if (decision.outcome == Outcome::kNone) return;
  const std::string what =
      fmt::format("step {} of generation {}", decision.step.value(), decision.generation.value());
  const auto [it, fresh] = decided_.try_emplace(key, decision.outcome);
  if (!fresh && it->second != decision.outcome) {
    verdict.Violate("S2", what + " was decided twice, and differently");
  }
  const auto agreed = agreed_.find(key);
  if (decision.outcome != Outcome::kVoid && agreed != agreed_.end() &&
      agreed->second.wishes != decision.wishes &&
      std::ranges::any_of(record.latest->members, [&](const MemberEntry& entry) {
        return agreed->second.known_to.contains(entry.member);
      })) {
    verdict.Violate("S2", what + " is committed with other wishes than its members agreed on");
  }
  const auto prepared = prepared_.find(key);
  // An adopted record may tell of a generation before the one that it started.
  if (record.started->generation != decision.generation) return;
  if (decision.outcome == Outcome::kVoid || !fresh || prepared == prepared_.end()) return;
  for (const MemberEntry& entry : record.started->members) {
    if (coordinator::Find(*record.latest, entry.member) == nullptr ||
        prepared->second.contains(entry.member))
      continue;
    verdict.Violate("S2", fmt::format("{} is committed, but its survivor {} has no gradient of it",
                                      what, entry.member.worker.value()));
  }
}

void StepChain::OnRecord(const JobRecord& record, const Chain& chain, Verdict& verdict) {
  if (!record.latest) {
    closed_by_ = Generation();
    return;
  }
  const GenerationRecord& latest = *record.latest;
  if (latest.generation == closed_by_ && record.lineage == lineage_) return;
  lineage_ = record.lineage;
  const StepDecision& decision = latest.decision;
  // The step was opened in the lineage of the generation that broke.
  const Lineage of = record.started ? record.started->lineage : record.lineage;
  if (record.started) OnDecision({of, decision.generation, decision.step}, record, verdict);
  const bool forced = known_ != Lineage() && known_ != record.lineage && record.started &&
                      record.started->lineage != record.lineage;
  known_ = record.lineage;
  if (forced &&
      (record.rollbacks.empty() || record.rollbacks.back().generation < latest.generation)) {
    verdict.Violate("S2", fmt::format("generation {} was forced out, and no rollback says what is "
                                      "void",
                                      record.started->generation.value()));
  }
  const Step at = latest.restore.step;
  closed_by_ = latest.generation;
  closed_at_ = at;
  if (chain.newest(lineage_) < latest.generation && chain.last() > at) {
    verdict.Violate("S2", fmt::format("generation {} goes on from step {}, but step {} was "
                                      "committed and no rollback voids it",
                                      latest.generation.value(), at.value(), chain.last().value()));
  }
}

}  // namespace muster::sim
