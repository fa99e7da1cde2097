// Brings the state of a generation into place: from rank 0, from the memory of members, or from a
// checkpoint. What other members need is still in the held cut, and stays there until the
// generation has started.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "checkpoint/file_system.h"
#include "protocol/ids.h"
#include "protocol/records.h"
#include "protocol/status.h"
#include "worker/client/state_table.h"
#include "worker/collective/communicator.h"

namespace muster::worker {

struct RestoreReport {
  std::int64_t bytes = 0;  // received or read by this rank
  Status status;
  // The checkpoint turned out bad (kDataLoss, kNotFound): nobody should start from it again.
  bool bad_checkpoint = false;
  // It is whole, but holds other tensors than this job has: nobody can start from it.
  bool contradicts = false;
  // The error came of reading the checkpoint, and of nothing else.
  bool reading = false;
};

// A collective of all members of `record`: fills replicated tensors and the cut of the generation
// (StateTable::BeginCut is called here). Blocks. After an error the replicated tensors of ranks
// that do not hold the state, and of all ranks when it came from a checkpoint, hold anything.
[[nodiscard]] RestoreReport RestoreState(StateTable& table, Communicator& communicator,
                                         const GenerationRecord& record, checkpoint::FileSystem& fs,
                                         const std::string& checkpoint_root);

// Rebuilds every derived tensor from its source's held cut. A collective, blocks.
[[nodiscard]] Status GatherDerived(StateTable& table, Communicator& communicator);

// A collective whose answer is known: proves that all members have come and that sums are right.
[[nodiscard]] Status ProveCommunicator(Communicator& communicator);

}  // namespace muster::worker
