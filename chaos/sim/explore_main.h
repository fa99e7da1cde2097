// `muster-sim explore`: searches a small job and says what it found.
#pragma once

namespace muster::sim {

// The arguments from the subcommand's name on; the exit code.
[[nodiscard]] int RunExplore(int argc, char** argv);

}  // namespace muster::sim
