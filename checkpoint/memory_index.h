// The index of checkpoints in memory: for tests, simulation, and tools that rebuild it from
// manifests.
#pragma once

#include <map>
#include <vector>

#include "checkpoint/index.h"

namespace muster::checkpoint {

// Not durable. Confined to one thread.
class MemoryIndex : public CheckpointIndex {
 public:
  Status Put(const CheckpointEntry& entry) override;
  [[nodiscard]] Result<CheckpointEntry> Get(const JobName& job,
                                            const CheckpointKey& key) const override;
  [[nodiscard]] Result<std::vector<CheckpointEntry>> List(const JobName& job) const override;
  Status Remove(const JobName& job, const CheckpointKey& key) override;

 private:
  // Per job in commit order; a job has few, so that a search from the front is enough.
  std::map<JobName, std::vector<CheckpointEntry>> entries_;
};

}  // namespace muster::checkpoint
