// The way of a checkpoint's commit through the coordinator, without its server: all shard reports
// into the tracker, what that makes durable into a journal.
#pragma once

#include <cstdint>
#include <string>

#include "protocol/status.h"

namespace muster::bench {

struct CommitCost {
  double shards_ms = 0;           // all reports but the last
  double commit_ms = 0;           // from the last report until the commit is durable
  double announce_ms = 0;         // from the manifest's report until that is durable
  std::int64_t commit_bytes = 0;  // written to the log of the database
  std::int64_t announce_bytes = 0;
};

// Of the second save of a job with so many ranks and tensors: the layout is known by then. The
// database is made in `directory`, which is empty or does not exist. Blocks.
[[nodiscard]] Result<CommitCost> MeasureCommit(const std::string& directory, std::int32_t ranks,
                                               std::int32_t tensors);

}  // namespace muster::bench
