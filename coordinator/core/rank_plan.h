// Which workers become members of the next generation, and with which ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/records.h"

namespace muster::coordinator {

struct Candidate {
  Member member;
  NodeName node;
  std::string address;
  Rank previous_rank{-1};  // in the last started generation; -1: was not in it
  bool holds_state = false;
  std::int64_t order = 0;  // of arrival: earlier ones are preferred
};

// At most `max_workers` of them: those that hold state first (by rank), then the earliest.
[[nodiscard]] std::vector<Candidate> ChooseMembers(std::vector<Candidate> candidates,
                                                   std::int32_t max_workers);

// A survivor whose rank still fits keeps it; the others fill the holes, workers of the node of the
// hole's lower neighbour first, so that neighbours in a ring stay close. The result is by rank.
// `previous_rank` of an entry is set only for those that hold state.
[[nodiscard]] std::vector<MemberEntry> PlanRanks(const std::vector<Candidate>& chosen);

}  // namespace muster::coordinator
