// What the driver has to do after Handle, in this order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "protocol/messages.h"

namespace muster::worker {

struct Effects {
  // Abort the communicators, present and half-made, wait until that has taken effect, and hand in
  // Aborted. At once, and before anything is sent.
  bool abort = false;
  // Give up the present connection; nothing of it is handed in any more.
  bool close = false;
  // Send these on the present connection, in order.
  std::vector<Message> sends;
  // Dial the coordinator; hand in Connected or Disconnected with this number.
  std::optional<std::int64_t> dial;
  // For the saver: manifests to write and directories to remove, each to be answered with a Report.
  std::vector<WriteManifest> manifests;
  std::vector<RemoveCheckpoint> removals;
  // For the saver too; not answered.
  std::vector<SweepCheckpoints> sweeps;
  // Something changed that the training thread may wait for.
  bool wake = false;
  // For the log: one line for each change of state.
  std::vector<std::string> notices;
};

}  // namespace muster::worker
