#include "coordinator/store/checkpoint_index.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

namespace muster::store {

Status JournalIndex::Put(const CheckpointEntry& entry) {
  const JobName job(entry.record.job);
  const Result<std::optional<CheckpointEntry>> known =
      journal_.FindCheckpoint(job, entry.record.key);
  if (!known.ok()) return known.status();
  if (known->has_value() && (*known)->record != entry.record) {
    return AlreadyExists(fmt::format(
        "job {} already has another checkpoint {}: records never change, write it under the next "
        "generation",
        job.value(), CheckpointDirectory(entry.record.key)));
  }
  return journal_.Write({PutCheckpoint{job, entry}});
}

Result<CheckpointEntry> JournalIndex::Get(const JobName& job, const CheckpointKey& key) const {
  Result<std::optional<CheckpointEntry>> found = journal_.FindCheckpoint(job, key);
  if (!found.ok()) return found.status();
  if (!found->has_value()) {
    return NotFound(fmt::format("job {} has no checkpoint {} in the index", job.value(),
                                CheckpointDirectory(key)));
  }
  return *std::move(found).value();
}

Result<std::vector<CheckpointEntry>> JournalIndex::List(const JobName& job) const {
  return journal_.CheckpointsOf(job);
}

Status JournalIndex::Remove(const JobName& job, const CheckpointKey& key) {
  return journal_.Write({DropCheckpoint{job, key}});
}

}  // namespace muster::store
