// The state from the files of a checkpoint, wherever it lies.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/file_system.h"
#include "protocol/records.h"
#include "protocol/status.h"
#include "worker/client/state_table.h"

namespace muster::worker {

struct LoadOutcome {
  Status status;
  // As in RestoreReport. A device that failed meanwhile says nothing about the checkpoint.
  bool bad_checkpoint = false;
  bool contradicts = false;
  bool reading = false;
};

// Fills the replicated tensors and the cut being formed from the checkpoint that `restore` names.
// What lies on a device comes there by way of a bounded amount of pinned memory. Adds to `*bytes`
// what was read. `first_rank` looks for what one rank's look is enough for. Blocks.
[[nodiscard]] LoadOutcome LoadState(StateTable& table, const Restore& restore,
                                    checkpoint::FileSystem& fs, const std::string& root,
                                    bool first_rank, std::int64_t* bytes);

}  // namespace muster::worker
