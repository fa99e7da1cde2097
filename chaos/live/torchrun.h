// The peer that recovery is compared with: PyTorch's elastic launcher, as packaged by Debian.
#pragma once

#include <string>
#include <vector>

#include "protocol/status.h"

namespace muster::chaos {

// How its launcher is set: with its defaults, or so that it reacts as fast as it can.
enum class TorchrunMode { kDefault, kTuned };

// Runs a model of the size of char_lm's under four torchrun agents on this machine, kills one agent
// and its worker `kills` times (tests/bench/torchrun_peer.py does it), and returns the times from
// kill to the last survivor's next step, in ms. kNotFound says how to install python3-torch when it
// is missing. Blocks for minutes.
[[nodiscard]] Result<std::vector<double>> MeasureTorchrunKills(TorchrunMode mode, int kills);

}  // namespace muster::chaos
