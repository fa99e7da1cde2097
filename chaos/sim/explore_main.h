// `muster-sim explore`: searches a small job and says what it found.
#pragma once

#include "chaos/sim/explore.h"

namespace CLI {
class App;
}

namespace muster::sim {

struct ExploreCommand {
  ExploreOptions options = ExploreOptions::Small(2);
  double seconds = 0;  // 0: until it is complete
  bool warm = false;

  void AddOptions(CLI::App& app);
  // The exit code.
  [[nodiscard]] int Run();
};

}  // namespace muster::sim
