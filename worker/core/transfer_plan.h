// Who sends which box of a sharded tensor to whom when a generation forms from live memory. Each
// rank works out its own part from the record; both ends of a transfer derive the same boxes in the
// same order, so nothing has to be agreed.
#pragma once

#include <vector>

#include "protocol/box.h"
#include "protocol/ids.h"
#include "protocol/records.h"
#include "protocol/status.h"

namespace muster::worker {

// What goes between this rank and `peer` (a rank of the new generation; can be this rank itself):
// the boxes one after the other, each row-major.
struct Transfer {
  Rank peer;
  std::vector<Box> boxes;  // in the order of the old boxes, then of the new ones; none is empty
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

// At most one outgoing and one incoming transfer per peer.
struct TransferPlan {
  std::vector<Transfer> outgoing;  // by peer
  std::vector<Transfer> incoming;  // by peer
};

// The transfers of `rank` for one sharded tensor. kDataLoss when a part that this rank needs has no
// live holder: then the record is wrong, as it should have named a checkpoint.
// REQUIRES: record.restore.source is kLive and tensor.sharded().
[[nodiscard]] Result<TransferPlan> PlanTransfers(const TensorSpec& tensor,
                                                 const GenerationRecord& record, Rank rank);

// For replicated tensors: the lowest rank that holds the state; -1 when nobody does. `all` is set
// when every member does, so that nothing needs to be sent.
struct Holders {
  Rank first{-1};
  bool all = true;
};
[[nodiscard]] Holders HoldersOf(const GenerationRecord& record);

}  // namespace muster::worker
