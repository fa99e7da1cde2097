// From a scenario and a seed to what will be done: all that is left to chance is drawn here, so
// that the same seed gives the same schedule. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "chaos/live/scenario.h"

namespace muster::chaos {

struct PlannedFault {
  int number = 0;  // 1, 2, … in the order of the schedule
  FaultKind kind = FaultKind::kKill;
  Trigger::Kind when = Trigger::Kind::kAfter;  // never kEvery: it is drawn out into kAt
  Duration time;                               // kAfter, kAt
  std::int64_t step = 0;                       // kStep
  std::string phase;                           // kDuring
  std::vector<std::string> nodes;  // that are hit, "a", "b", …; empty: none in particular
  bool named = false;              // by the scenario; otherwise another may be hit in its place
  std::int64_t local_rank = 0;     // the worker on the node
  std::int64_t rank = -1;          // >= 0: whichever worker has this rank then
  Duration hold;
  std::int64_t amount = 0;
  std::vector<std::string> peers;  // kCut, kReset: from whom; nodes, or "musterd"
  std::string direction = "both";
  std::uint64_t dice = 0;  // for what only the moment shows: which file, which byte
};

// A fault that is not made on this machine, and why.
struct LeftOut {
  FaultKind kind = FaultKind::kKill;
  std::string reason;
};

struct Schedule {
  std::vector<PlannedFault> faults;  // in the order in which they are to begin
  std::vector<LeftOut> left_out;
};

// "a", "b", …, "z", "n27", …
[[nodiscard]] std::string NodeName(std::int64_t index);
[[nodiscard]] Schedule Draw(const Scenario& scenario, std::uint64_t seed, const Powers& powers);
// One line: "3. kill: a worker is killed (SIGKILL), on node b, 12.40 s after the beginning".
[[nodiscard]] std::string Describe(const PlannedFault& fault);

}  // namespace muster::chaos
