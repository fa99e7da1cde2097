// Small searches that together meet what the protocol's decisions are there for: what the explorer
// is shown to find planted bugs with.
#pragma once

#include <string>
#include <vector>

#include "chaos/sim/explore.h"

namespace muster::sim {

struct SmallSearch {
  std::string name;
  ExploreOptions options;
};
// Cheap ones first. None of them finds anything in the cores as they are.
[[nodiscard]] std::vector<SmallSearch> SmallSearches();

}  // namespace muster::sim
