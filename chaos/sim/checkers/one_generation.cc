#include "chaos/sim/checkers/one_generation.h"

#include <fmt/format.h>

#include <algorithm>

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
