// The subcommand `explore` of muster-sim.
#pragma once

#include <CLI/CLI.hpp>

#include "chaos/sim/explore.h"

namespace muster::sim {

struct ExploreCommand {
  ExploreOptions options = ExploreOptions::Small(2);
  double seconds = 0;  // 0: until it is complete
  bool warm = false;
};

// Adds its options; the values are there after parsing.
void AddExplore(CLI::App& app, ExploreCommand* command);
// The exit code.
[[nodiscard]] int RunExplore(ExploreCommand command);

}  // namespace muster::sim
