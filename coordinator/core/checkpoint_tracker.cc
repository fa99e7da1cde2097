#include "coordinator/core/checkpoint_tracker.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/core/durable_state.h"

namespace muster::coordinator {

namespace {

// Ok when the stored boxes of all ranks tile every tensor exactly once.
Status CheckTiling(const std::vector<TensorSpec>& tensors, std::int32_t world_size) {
  for (const TensorSpec& tensor : tensors) {
    std::vector<Box> boxes;
    boxes.reserve(static_cast<std::size_t>(world_size));
    for (std::int32_t r = 0; r < world_size; ++r) {
      boxes.push_back(StoredBoxOf(tensor, r, world_size));
    }
    if (Status tiled = TilesExactly(tensor.shape, std::move(boxes)); !tiled.ok()) {
      return DataLoss(fmt::format("tensor {}: {}", tensor.name, tiled.message()));
    }
  }
  return {};
}

constexpr std::size_t kMaxGivenUp = 64;

std::string KeyText(const CheckpointKey& key) { return CheckpointDirectory(key); }

}  // namespace

void CheckpointTracker::Put(const JobRecord& record, const CheckpointEntry& entry,
                            Effects* effects) {
  effects->persist.emplace_back(PutCheckpoint{record.job, entry});
}

CheckpointEntry* CheckpointTracker::FindEntry(const CheckpointKey& key) {
  const auto it = std::ranges::find_if(
      entries_, [&](const CheckpointEntry& entry) { return entry.record.key == key; });
  return it == entries_.end() ? nullptr : &*it;
}

bool CheckpointTracker::manifest_pending() const {
  return std::ranges::any_of(entries_, [](const CheckpointEntry& entry) {
    return entry.state == CheckpointState::kComplete;
  });
}

CheckpointTracker::Progress CheckpointTracker::OnShardWritten(const JobRecord& record,
                                                              const GenerationRecord& writing,
                                                              const ShardWritten& shard,
                                                              Instant deadline, Effects* effects) {
  Progress progress;
  const std::string name = KeyText(shard.key);
  if (FindEntry(shard.key) != nullptr) return progress;  // a repeated report
  if (std::ranges::find(given_up_, shard.key) != given_up_.end()) return progress;
  if (shard.lineage != record.lineage || shard.world_size != writing.world_size() ||
      shard.key.generation != writing.generation) {
    progress.problem = fmt::format("shard of {} refused: not of the generation that writes", name);
    return progress;
  }
  if (IsVoid(record, shard.key)) {
    progress.problem = fmt::format("shard of {} refused: a rollback made it void", name);
    return progress;
  }
  Save& save = saves_[shard.key];
  if (save.files.empty()) {
    save.writing = writing;
    save.deadline = deadline;
  }
  save.files[shard.file.rank] = shard.file;
  if (static_cast<std::int32_t>(save.files.size()) < writing.world_size()) return progress;
  return Complete(record, shard.key, effects);
}

CheckpointTracker::Progress CheckpointTracker::Complete(const JobRecord& record,
                                                        const CheckpointKey& key,
                                                        Effects* effects) {
  const Save save = std::move(saves_.at(key));
  if (const Status tiled = CheckTiling(record.spec.tensors, save.writing.world_size());
      !tiled.ok()) {
    return GiveUp(key, tiled.message());
  }
  CheckpointEntry entry;
  entry.record.job = record.job.value();
  entry.record.key = key;
  entry.record.lineage = record.lineage;
  entry.record.world_size = save.writing.world_size();
  entry.record.directory = KeyText(key);
  entry.record.tensors = record.spec.tensors;
  for (const auto& [rank, file] : save.files) {
    entry.record.files.push_back(file);
    entry.record.bytes += file.bytes;
  }
  saves_.erase(key);
  entries_.push_back(entry);
  Put(record, entry, effects);
  Progress progress;
  progress.write_manifest = entry.record;
  return progress;
}

CheckpointTracker::Progress CheckpointTracker::GiveUp(const CheckpointKey& key,
                                                      std::string reason) {
  Progress progress;
  saves_.erase(key);
  given_up_.push_back(key);
  if (given_up_.size() > kMaxGivenUp) given_up_.erase(given_up_.begin());
  ++aborted_;
  progress.aborted = CheckpointAborted{key, std::move(reason)};
  return progress;
}

CheckpointTracker::Progress CheckpointTracker::OnShardFailed(const ShardFailed& failure) {
  // The save may not be known yet: the failing rank can be the first to report.
  if (FindEntry(failure.key) != nullptr) return {};
  if (std::ranges::find(given_up_, failure.key) != given_up_.end()) return {};
  return GiveUp(failure.key, fmt::format("rank {} could not write its shard: {}",
                                         failure.rank.value(), failure.reason));
}

CheckpointTracker::Progress CheckpointTracker::OnManifestWritten(
    const JobRecord& record, const ManifestWritten& message, std::optional<CheckpointKey> in_use,
    Effects* effects) {
  Progress progress;
  CheckpointEntry* entry = FindEntry(message.key);
  if (entry == nullptr || entry->state != CheckpointState::kComplete) return progress;
  if (IsVoid(record, message.key)) {
    entry->state = CheckpointState::kVoid;
    Put(record, *entry, effects);
    progress.problem = fmt::format("{} is void: a rollback went below it", KeyText(message.key));
    return progress;
  }
  if (message.code != Code::kOk) {
    std::erase_if(entries_, [&](const CheckpointEntry& e) { return e.record.key == message.key; });
    effects->persist.emplace_back(DropCheckpoint{record.job, message.key});
    return GiveUp(message.key, "its manifest could not be written: " + message.reason);
  }
  entry->state = CheckpointState::kAnnounced;
  entry->manifest_digest = message.digest;
  Put(record, *entry, effects);
  progress.announced = message.key;
  progress.remove = Retain(record, in_use, effects);
  return progress;
}

std::vector<RemoveCheckpoint> CheckpointTracker::Retain(const JobRecord& record,
                                                        std::optional<CheckpointKey> in_use,
                                                        Effects* effects) {
  std::vector<RemoveCheckpoint> remove;
  std::int32_t kept = 0;
  for (auto it = entries_.rbegin(); it != entries_.rend(); ++it) {
    const CheckpointKey& key = it->record.key;
    const bool counts = it->state == CheckpointState::kAnnounced &&
                        it->strikes < kCheckpointStrikes && !IsVoid(record, key);
    if (counts && kept++ < record.spec.checkpoint_keep) continue;
    if (it->state == CheckpointState::kComplete || (in_use && *in_use == key)) continue;
    if (it->state != CheckpointState::kDeleting) {
      it->state = CheckpointState::kDeleting;
      Put(record, *it, effects);
    }
    remove.push_back({key, it->record.directory});
  }
  return remove;
}

CheckpointTracker::Progress CheckpointTracker::OnRemoved(const JobRecord& record,
                                                         const CheckpointRemoved& message,
                                                         Effects* effects) {
  const auto removed = std::erase_if(entries_, [&](const CheckpointEntry& entry) {
    return entry.record.key == message.key && entry.state == CheckpointState::kDeleting;
  });
  if (removed > 0) effects->persist.emplace_back(DropCheckpoint{record.job, message.key});
  return {};
}

std::vector<CheckpointTracker::Progress> CheckpointTracker::OnTime(Instant now) {
  std::vector<Progress> given_up;
  for (auto it = saves_.begin(); it != saves_.end();) {
    const auto& [key, save] = *it++;
    if (now < save.deadline) continue;
    std::string missing;
    for (const MemberEntry& member : save.writing.members) {
      if (save.files.contains(member.rank)) continue;
      missing += fmt::format("{}rank {} (worker {})", missing.empty() ? "" : ", ",
                             member.rank.value(), member.member.worker.value());
    }
    given_up.push_back(GiveUp(CheckpointKey(key), "no shard in time from " + missing));
  }
  return given_up;
}

Instant CheckpointTracker::NextDeadline() const {
  Instant next = Instant::Never();
  for (const auto& [key, save] : saves_) next = std::min(next, save.deadline);
  return next;
}

std::vector<CheckpointTracker::Progress> CheckpointTracker::MarkVoid(const JobRecord& record,
                                                                     Effects* effects) {
  std::vector<Progress> given_up;
  for (CheckpointEntry& entry : entries_) {
    if (entry.state == CheckpointState::kVoid || entry.state == CheckpointState::kDeleting ||
        !IsVoid(record, entry.record.key)) {
      continue;
    }
    entry.state = CheckpointState::kVoid;
    Put(record, entry, effects);
  }
  std::vector<CheckpointKey> dead;
  for (const auto& [key, save] : saves_) {
    if (IsVoid(record, key)) dead.push_back(key);
  }
  for (const CheckpointKey& key : dead) {
    given_up.push_back(GiveUp(key, "a rollback made it void"));
  }
  return given_up;
}

bool CheckpointTracker::Strike(const JobRecord& record, const CheckpointKey& key, bool bad,
                               Effects* effects) {
  CheckpointEntry* entry = FindEntry(key);
  if (entry == nullptr) return false;
  entry->strikes = bad ? kCheckpointStrikes : entry->strikes + 1;
  Put(record, *entry, effects);
  return entry->strikes >= kCheckpointStrikes;
}

CheckpointTracker::Progress CheckpointTracker::Unfinished() const {
  Progress progress;
  for (const CheckpointEntry& entry : entries_) {
    if (entry.state == CheckpointState::kComplete) progress.write_manifest = entry.record;
    if (entry.state == CheckpointState::kDeleting) {
      progress.remove.push_back({entry.record.key, entry.record.directory});
    }
  }
  return progress;
}

bool CheckpointTracker::Pending(const CheckpointKey& key, const std::vector<Rank>& alive) const {
  const auto entry =
      std::ranges::find_if(entries_, [&](const CheckpointEntry& e) { return e.record.key == key; });
  if (entry != entries_.end()) return entry->state == CheckpointState::kComplete;
  const auto it = saves_.find(key);
  if (it == saves_.end()) return false;
  return std::ranges::all_of(it->second.writing.members, [&](const MemberEntry& member) {
    return it->second.files.contains(member.rank) ||
           std::ranges::find(alive, member.rank) != alive.end();
  });
}

}  // namespace muster::coordinator
