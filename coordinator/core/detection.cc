#include "coordinator/core/detection.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "protocol/mutants.h"

namespace muster::coordinator {

SilenceVerdict JudgeSilence(const SilenceView& view) {
  const Instant lease_end = view.last_heard + view.timing.lease;
  SilenceVerdict verdict;
  Instant end = lease_end;
  if (!view.connected && !view.launcher_says_alive && !view.mass_close) {
    verdict.cause = Cause::kConnectionLost;
    end = std::min(lease_end, view.closed_at + view.timing.grace);
  }
  verdict.suspect = view.now >= end;
  verdict.look_again = end;
  return verdict;
}

std::vector<Straggler> FindStragglers(const std::vector<ProgressView>& members, Duration timeout) {
  std::uint64_t newest = 0;
  Duration waited;
  for (const ProgressView& member : members) {
    if (!member.waiting) continue;
    if (member.operations > newest || (member.operations == newest && member.unchanged > waited)) {
      newest = member.operations;
      waited = member.unchanged;
    }
  }
  std::vector<Straggler> stragglers;
  if (newest == 0 || waited < timeout) return stragglers;
  for (const ProgressView& member : members) {
    const bool late =
        Planted(Mutant::kAccuseWaitingRank) ? member.waiting : member.operations < newest;
    if (!late || member.phase_in_force) continue;
    stragglers.push_back({member.member, newest, waited});
  }
  return stragglers;
}

std::vector<Member> CoverBadPairs(std::vector<std::pair<Member, Member>> pairs) {
  std::vector<Member> cover;
  while (!pairs.empty()) {
    std::map<Member, int> degree;
    for (const auto& [a, b] : pairs) {
      ++degree[a];
      ++degree[b];
    }
    const auto worst = std::ranges::max_element(degree, [](const auto& a, const auto& b) {
      return std::tie(a.second, a.first) < std::tie(b.second, b.first);
    });
    const Member member = worst->first;
    cover.push_back(member);
    std::erase_if(pairs, [&](const auto& p) { return p.first == member || p.second == member; });
  }
  return cover;
}

}  // namespace muster::coordinator
