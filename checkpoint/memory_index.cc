#include "checkpoint/memory_index.h"

#include <fmt/format.h>

#include <algorithm>

namespace muster::checkpoint {
namespace {

Status NotIndexed(const JobName& job, const CheckpointKey& key) {
  return NotFound(fmt::format("job {} has no checkpoint of step {}, generation {} in the index",
                              job.value(), key.step.value(), key.generation.value()));
}

}  // namespace

Status MemoryIndex::Put(const CheckpointEntry& entry) {
  std::vector<CheckpointEntry>& entries = entries_[JobName(entry.record.job)];
  const auto it = std::find_if(entries.begin(), entries.end(), [&](const CheckpointEntry& e) {
    return e.record.key == entry.record.key;
  });
  if (it == entries.end()) {
    entries.push_back(entry);
    return {};
  }
  if (it->record != entry.record) {
    return AlreadyExists(fmt::format(
        "job {} already has another checkpoint under step {}, generation {}: records never change",
        entry.record.job, entry.record.key.step.value(), entry.record.key.generation.value()));
  }
  *it = entry;
  return {};
}

Result<CheckpointEntry> MemoryIndex::Get(const JobName& job, const CheckpointKey& key) const {
  const auto of_job = entries_.find(job);
  if (of_job == entries_.end()) return NotIndexed(job, key);
  for (const CheckpointEntry& entry : of_job->second) {
    if (entry.record.key == key) return entry;
  }
  return NotIndexed(job, key);
}

Result<std::vector<CheckpointEntry>> MemoryIndex::List(const JobName& job) const {
  const auto of_job = entries_.find(job);
  if (of_job == entries_.end()) return std::vector<CheckpointEntry>();
  return of_job->second;
}

Status MemoryIndex::Remove(const JobName& job, const CheckpointKey& key) {
  const auto of_job = entries_.find(job);
  if (of_job == entries_.end()) return {};
  std::erase_if(of_job->second,
                [&](const CheckpointEntry& entry) { return entry.record.key == key; });
  if (of_job->second.empty()) entries_.erase(of_job);
  return {};
}

}  // namespace muster::checkpoint
