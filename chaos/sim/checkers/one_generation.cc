#include "chaos/sim/checkers/one_generation.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/core/durable_state.h"

namespace muster::sim {

void OneGeneration::OnRecord(const JobRecord& record, Verdict& verdict) {
  fenced_.insert(record.gone.begin(), record.gone.end());
  if (!record.latest) return;
  for (const MemberEntry& entry : record.latest->members) {
    if (!fenced_.contains(entry.member)) continue;
    // A forced record lists those that it leaves out.
    if (std::ranges::find(record.gone, entry.member) != record.gone.end()) continue;
    verdict.Violate("S1",
                    fmt::format("an incarnation of worker {} that was left out is a member "
                                "of generation {}",
                                entry.member.worker.value(), record.latest->generation.value()));
  }
}

void OneGeneration::OnDecision(const JobRecord& record, const std::vector<Standing>& all,
                               bool adopts, bool waited, Verdict& verdict) {
  if (!record.latest) return;
  const bool same = record.lineage == lineage_;
  const bool fresh = record.latest->generation > decided_ || !same;
  lineage_ = record.lineage;
  decided_ = record.latest->generation;
  if (!fresh) return;
  const std::string name = fmt::format("generation {}", record.latest->generation.value());
  bool anyone = false;  // of the generation before
  std::size_t training = 0;
  for (const Standing& one : all) {
    const bool before = record.started && coordinator::Find(*record.started, one.member);
    const bool stays = coordinator::Find(*record.latest, one.member) != nullptr;
    anyone = anyone || (before && stays);
    // One that has answered has stopped, and perhaps leaves.
    const bool aborted = record.started && one.ready_for > record.started->generation;
    if (before && one.may_train && !aborted) ++training;
    if (adopts && before && one.may_train && !one.reported && !waited) {
      verdict.Violate("S6", fmt::format("{} was adopted before worker {} had reported", name,
                                        one.member.worker.value()));
    }
    if (!adopts && same && stays && one.ready_for != record.latest->generation) {
      verdict.Violate("S1", fmt::format("{} counts on worker {}, which has not answered for it",
                                        name, one.member.worker.value()));
    }
  }
  if (!adopts && !anyone && record.started && training == record.started->members.size()) {
    verdict.Violate("S1", fmt::format("{} has no member of generation {}, all of whom may still be "
                                      "training",
                                      name, record.started->generation.value()));
  }
}

void OneGeneration::OnCommit(const Commit& commit, const Chain& chain, Verdict& verdict) const {
  if (chain.Voided(commit.lineage, commit.generation, commit.step)) return;
  const std::string who =
      fmt::format("worker {} in generation {}, step {}", commit.member.worker.value(),
                  commit.generation.value(), commit.step.value());
  if (chain.At(commit.lineage, commit.step) != nullptr) return;
  if (commit.generation < chain.newest(commit.lineage)) {
    verdict.Violate("S1", fmt::format("{}: committed, but generation {} has committed steps", who,
                                      chain.newest(commit.lineage).value()));
  }
  if (fenced_.contains(commit.member)) {
    verdict.Violate("S1", who + ": this incarnation was left out, and makes a new step");
  }
}

}  // namespace muster::sim
