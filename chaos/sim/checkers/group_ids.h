// S1, one generation: over NCCL the members of a generation meet by one id that its own rank 0 has
// minted, and no id ever serves two generations; with a stale one, members of different generations
// could find each other, or a member wait for nobody.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "chaos/sim/checkers/verdict.h"
#include "protocol/records.h"

namespace muster::sim {

class GroupIds {
 public:
  // `member` has minted `id` for this generation.
  void OnMinted(const GenerationRecord& record, const Member& member, const std::string& id,
                Verdict& verdict);
  // `member` forms this generation with `id`. Returns a number that stands for the id, never zero.
  std::uint64_t OnUsed(const GenerationRecord& record, const Member& member, const std::string& id,
                       Verdict& verdict);
  // The generation has started, durably.
  void OnStarted(const JobSpec& spec, const GenerationRecord& record, Verdict& verdict) const;

  // All of its state, for those who compare states.
  template <class Visit>
  void VisitState(Visit&& visit) const {
    visit(minted_, used_);
  }

 private:
  using Which = std::pair<Lineage, Generation>;
  std::map<std::uint64_t, Which> minted_;                  // by the number of the id
  std::map<Which, std::map<Member, std::uint64_t>> used_;  // that each member came with
};

}  // namespace muster::sim
