#include "chaos/sim/checkers/group_ids.h"

#include <fmt/format.h>

#include <functional>

namespace muster::sim {

namespace {

std::uint64_t NumberOf(const std::string& id) { return std::hash<std::string>()(id) | 1U; }

std::string NameOf(const GenerationRecord& record) {
  return fmt::format("generation {}", record.generation.value());
}

}  // namespace

void GroupIds::OnMinted(const GenerationRecord& record, const Member& member, const std::string& id,
                        Verdict& verdict) {
  if (record.members.front().member != member) {
    verdict.Violate("S1", fmt::format("worker {} mints the id of {}, whose rank 0 is worker {}",
                                      member.worker.value(), NameOf(record),
                                      record.members.front().member.worker.value()));
  }
  const Which which(record.lineage, record.generation);
  const auto [it, fresh] = minted_.emplace(NumberOf(id), which);
  if (!fresh && it->second != which) {
    verdict.Violate("S1", fmt::format("the id of generation {} is minted again for {}",
                                      it->second.second.value(), NameOf(record)));
  }
}

std::uint64_t GroupIds::OnUsed(const GenerationRecord& record, const Member& member,
                               const std::string& id, Verdict& verdict) {
  const Which which(record.lineage, record.generation);
  const std::uint64_t number = NumberOf(id);
  const auto minted = minted_.find(number);
  const std::string who =
      fmt::format("worker {} forms {} with ", member.worker.value(), NameOf(record));
  if (minted == minted_.end()) {
    verdict.Violate("S1", who + "an id that nobody has minted");
  } else if (minted->second != which) {
    verdict.Violate("S1",
                    fmt::format("{}the id of generation {}", who, minted->second.second.value()));
  }
  used_[which][member] = number;
  return number;
}

void GroupIds::OnStarted(const JobSpec& spec, const GenerationRecord& record,
                         Verdict& verdict) const {
  if (spec.backend != Backend::kNccl || record.world_size() == 1) return;
  const auto used = used_.find({record.lineage, record.generation});
  std::uint64_t first = 0;
  for (const MemberEntry& entry : record.members) {
    const bool any = used != used_.end() && used->second.contains(entry.member);
    const std::uint64_t number = any ? used->second.at(entry.member) : 0;
    if (entry.rank == Rank(0)) first = number;
    if (number != 0 && number == first) continue;
    verdict.Violate("S1", fmt::format("{} has started, but worker {} has {}", NameOf(record),
                                      entry.member.worker.value(),
                                      number == 0 ? "no id of it" : "another id than rank 0"));
  }
}

}  // namespace muster::sim
