// The index of checkpoints that is kept in the journal.
#pragma once

#include <vector>

#include "checkpoint/index.h"
#include "coordinator/store/journal.h"

namespace muster::store {

// Every change is one synced write. Confined to the thread that uses the journal.
class JournalIndex : public checkpoint::CheckpointIndex {
 public:
  // `journal` must outlive the index.
  explicit JournalIndex(Journal* journal) : journal_(*journal) {}

  [[nodiscard]] Status Put(const CheckpointEntry& entry) override;
  [[nodiscard]] Result<CheckpointEntry> Get(const JobName& job,
                                            const CheckpointKey& key) const override;
  [[nodiscard]] Result<std::vector<CheckpointEntry>> List(const JobName& job) const override;
  [[nodiscard]] Status Remove(const JobName& job, const CheckpointKey& key) override;

 private:
  Journal& journal_;
};

}  // namespace muster::store
