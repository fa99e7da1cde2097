#include "coordinator/core/checkpoint_tracker.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "coordinator/core/durable_state.h"
#include "coordinator/core/retention.h"
#include "protocol/mutants.h"
#include "protocol/tiling.h"

namespace muster::coordinator {

namespace {

constexpr std::size_t kMaxGivenUp = 64;

std::string KeyText(const CheckpointKey& key) { return CheckpointDirectory(key); }

bool SameKey(const CheckpointKey& a, const CheckpointKey& b) {
  return Planted(Mutant::kKeyByStepAlone) ? a.step == b.step : a == b;
}

// Void, and so left out for good?
bool Voided(const JobRecord& record, const CheckpointKey& key) {
  return IsVoid(record, key) && !Planted(Mutant::kLateCommitAnyLineage);
}

}  // namespace

void CheckpointTracker::Put(const JobRecord& record, const CheckpointEntry& entry,
                            Effects* effects) {
  effects->persist.emplace_back(PutCheckpoint{record.job, entry});
}

CheckpointEntry* CheckpointTracker::FindEntry(const CheckpointKey& key) {
  const auto it = std::ranges::find_if(
      entries_, [&](const CheckpointEntry& entry) { return SameKey(entry.record.key, key); });
  return it == entries_.end() ? nullptr : &*it;
}

bool CheckpointTracker::GivenUp(const CheckpointKey& key) const {
  return std::ranges::any_of(given_up_,
                             [&](const CheckpointKey& old) { return SameKey(old, key); });
}

const CheckpointRecord* CheckpointTracker::ManifestDue() const {
  const auto it = std::ranges::find(entries_, CheckpointState::kComplete, &CheckpointEntry::state);
  return it == entries_.end() ? nullptr : &it->record;
}

std::vector<RemoveCheckpoint> CheckpointTracker::RemovalsDue(const JobRecord& record,
                                                             Effects* effects) {
  std::vector<RemoveCheckpoint> due;
  for (CheckpointEntry& entry : entries_) {
    if (entry.state == CheckpointState::kVoid && entry.manifest_digest == 0) {
      BeginRemoval(record, entry, effects);
    }
    if (entry.state != CheckpointState::kDeleting) continue;
    due.push_back({entry.record.key, entry.record.directory});
  }
  while (due.size() > kMaxRemovals) {
    std::erase_if(entries_, [&](const CheckpointEntry& e) { return e.record.key == due[0].key; });
    effects->persist.emplace_back(DropCheckpoint{record.job, due[0].key});
    due.erase(due.begin());
  }
  return due;
}

std::size_t CheckpointTracker::Footprint() const {
  std::size_t count = given_up_.size();
  for (const auto& [key, save] : saves_) count += 1 + save.files.size();
  for (const CheckpointEntry& entry : entries_) count += 1 + entry.record.files.size();
  return count;
}

void CheckpointTracker::Expect(const JobRecord& record, const CheckpointKey& key,
                               const GenerationRecord& writing, Instant deadline) {
  if (FindEntry(key) != nullptr || GivenUp(key) || Voided(record, key) || LeftBehind(key)) return;
  SaveOf(key, writing, deadline);
}

CheckpointTracker::Save& CheckpointTracker::SaveOf(const CheckpointKey& key,
                                                   const GenerationRecord& writing,
                                                   Instant deadline) {
  if (const auto it = saves_.find(key); it != saves_.end()) return it->second;
  Save& save = saves_[key];
  save.writing = writing;
  save.deadline = deadline;
  for (const MemberEntry& entry : writing.members) save.owing.insert(entry.member);
  return save;
}

CheckpointTracker::Progress CheckpointTracker::OnShardWritten(const JobRecord& record,
                                                              const GenerationRecord& writing,
                                                              const ShardWritten& shard,
                                                              Instant deadline, Effects* effects) {
  Progress progress;
  const std::string name = KeyText(shard.key);
  if (FindEntry(shard.key) != nullptr) return progress;  // a repeated report
  if (GivenUp(shard.key)) return progress;
  if (shard.lineage != writing.lineage || shard.world_size != writing.world_size() ||
      shard.key.generation != writing.generation || shard.file.rank < Rank(0) ||
      shard.file.rank >= Rank(writing.world_size())) {
    progress.problem = fmt::format("shard of {} refused: not of the generation that writes", name);
    return progress;
  }
  if (Voided(record, shard.key)) {
    progress.problem = fmt::format("shard of {} refused: a rollback made it void", name);
    return progress;
  }
  if (Overtaken(shard.key)) {
    progress.problem = fmt::format("shard of {} refused: a later checkpoint counts already", name);
    return progress;
  }
  if (LeftBehind(shard.key)) {
    progress.problem = fmt::format("shard of {} refused: what it left behind was swept", name);
    return progress;
  }
  if (saves_.size() >= kMaxSaves && !saves_.contains(shard.key)) {
    progress.problem = fmt::format("shard of {} refused: too many saves are under way", name);
    return progress;
  }
  Save& save = SaveOf(shard.key, writing, deadline);
  save.files[shard.file.rank] = shard.file;
  save.owing.erase(save.writing.members[static_cast<std::size_t>(shard.file.rank.value())].member);
  if (static_cast<std::int32_t>(save.files.size()) < writing.world_size()) return progress;
  return Complete(record, shard.key, effects);
}

// Not under way, and a later one counts: it was complete once, and its files may be removed by now.
// A worker that was out of touch since repeats its report all the same.
bool CheckpointTracker::Overtaken(const CheckpointKey& key) const {
  if (saves_.contains(key)) return false;
  return std::ranges::any_of(entries_, [&](const CheckpointEntry& entry) {
    const CheckpointKey& other = entry.record.key;
    const bool counted =
        entry.state == CheckpointState::kAnnounced || entry.state == CheckpointState::kDeleting;
    return counted && other.step > key.step && other.generation >= key.generation;
  });
}

bool CheckpointTracker::LeftBehind(const CheckpointKey& key) const {
  return std::pair(key.generation, key.step) < swept_ && !saves_.contains(key) &&
         !Planted(Mutant::kSweptStillCounts);
}

SweepCheckpoints CheckpointTracker::Sweep(Generation generation, Step step) {
  SweepCheckpoints sweep{generation, step, {}};
  const auto stale = [&](const CheckpointKey& key) {
    return std::pair(key.generation, key.step) < std::pair(generation, step);
  };
  for (const CheckpointEntry& entry : entries_) {
    if (stale(entry.record.key)) sweep.known.push_back(entry.record.key);
  }
  for (const auto& [key, save] : saves_) {
    if (stale(key) && !Planted(Mutant::kSweepOfLiveSaves)) sweep.known.push_back(key);
  }
  swept_ = std::max(swept_, std::pair(generation, step));
  return sweep;
}

CheckpointTracker::Progress CheckpointTracker::Complete(const JobRecord& record,
                                                        const CheckpointKey& key,
                                                        Effects* effects) {
  const Save& save = saves_.at(key);
  CheckpointEntry entry;
  entry.record.job = record.job.value();
  entry.record.key = key;
  entry.record.lineage = save.writing.lineage;
  entry.record.world_size = save.writing.world_size();
  entry.record.directory = KeyText(key);
  entry.record.tensors = record.spec.tensors;
  for (const auto& [rank, file] : save.files) {
    entry.record.files.push_back(file);
    if (__builtin_add_overflow(entry.record.bytes, file.bytes, &entry.record.bytes)) {
      return GiveUp(key, "its files cannot have so many bytes");
    }
  }
  if (const Status tiled = CheckTiling(record.spec.tensors, entry.record.files); !tiled.ok()) {
    return GiveUp(key, tiled.message());
  }
  const CheckpointKey completed = key;  // it may be inside of the save
  saves_.erase(completed);
  entries_.push_back(entry);
  Put(record, entry, effects);
  Progress progress;
  progress.completed = completed;
  if (Planted(Mutant::kRetentionAtCommit)) progress.remove = Retain(record, {}, effects);
  return progress;
}

// `key` by value: it may be the one inside of `saves_`.
CheckpointTracker::Progress CheckpointTracker::GiveUp(CheckpointKey key, std::string reason) {
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
  if (FindEntry(failure.key) != nullptr || GivenUp(failure.key)) return {};
  return GiveUp(failure.key, fmt::format("rank {} could not write its shard: {}",
                                         failure.rank.value(), failure.reason));
}

CheckpointTracker::Progress CheckpointTracker::OnManifestWritten(
    const JobRecord& record, const ManifestWritten& message, std::optional<CheckpointKey> in_use,
    Effects* effects) {
  Progress progress;
  CheckpointEntry* entry = FindEntry(message.key);
  if (entry == nullptr || entry->state != CheckpointState::kComplete) return progress;
  if (Voided(record, message.key) && !Planted(Mutant::kAnnounceVoid)) {
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
  for (const CheckpointKey& key : ChooseRemovals(record, entries_, in_use)) {
    CheckpointEntry& entry = *FindEntry(key);
    if (entry.state != CheckpointState::kDeleting) BeginRemoval(record, entry, effects);
    remove.push_back({key, entry.record.directory});
  }
  return remove;
}

void CheckpointTracker::BeginRemoval(const JobRecord& record, CheckpointEntry& entry,
                                     Effects* effects) {
  if (entry.state == CheckpointState::kVoid) entry.manifest_digest = 0;
  entry.state = CheckpointState::kDeleting;
  Put(record, entry, effects);
}

CheckpointTracker::Removal CheckpointTracker::OnRemoved(const JobRecord& record,
                                                        const CheckpointRemoved& message,
                                                        Effects* effects) {
  CheckpointEntry* entry = FindEntry(message.key);
  if (entry == nullptr) return Removal::kNotAsked;
  // One that is asked for again may have been unpinned before an earlier order was carried out.
  const bool may_be_gone = entry->state == CheckpointState::kDeleting || entry->pinned ||
                           Planted(Mutant::kKeyByStepAlone);
  if (message.pinned ? entry->state != CheckpointState::kDeleting : !may_be_gone) {
    return Removal::kNotAsked;
  }
  if (!message.pinned) {
    std::erase_if(entries_,
                  [&](const CheckpointEntry& e) { return SameKey(e.record.key, message.key); });
    effects->persist.emplace_back(DropCheckpoint{record.job, message.key});
    return Removal::kGone;
  }
  // Nothing of it was touched, so it is what it was before.
  const bool counts = entry->manifest_digest != 0 && !Voided(record, message.key);
  entry->state = counts ? CheckpointState::kAnnounced : CheckpointState::kVoid;
  const bool known = std::exchange(entry->pinned, true);
  Put(record, *entry, effects);
  return known ? Removal::kStillPinned : Removal::kPinned;
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
    given_up.push_back(GiveUp(key, "no shard in time from " + missing));
  }
  return given_up;
}

std::vector<CheckpointTracker::Progress> CheckpointTracker::GiveUpLost(
    const std::set<Member>& present) {
  std::vector<std::pair<CheckpointKey, std::string>> lost;
  for (const auto& [key, save] : saves_) {
    for (const MemberEntry& member : save.writing.members) {
      if (save.files.contains(member.rank) || present.contains(member.member)) continue;
      lost.emplace_back(key, fmt::format("rank {} (worker {}) went before its shard was written",
                                         member.rank.value(), member.member.worker.value()));
      break;
    }
  }
  std::vector<Progress> given_up;
  given_up.reserve(lost.size());
  for (auto& [key, reason] : lost) given_up.push_back(GiveUp(key, std::move(reason)));
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
    if (entry.state == CheckpointState::kVoid || !Voided(record, entry.record.key)) continue;
    if (entry.state == CheckpointState::kComplete && Planted(Mutant::kAnnounceVoid)) continue;
    if (entry.state == CheckpointState::kDeleting) {
      if (entry.manifest_digest == 0) continue;
      entry.manifest_digest = 0;  // it may turn out to be pinned, and does not count then either
    } else {
      entry.state = CheckpointState::kVoid;
    }
    Put(record, entry, effects);
  }
  std::vector<CheckpointKey> dead;
  for (const auto& [key, save] : saves_) {
    if (Voided(record, key)) dead.push_back(key);
  }
  for (const CheckpointKey& key : dead) {
    given_up.push_back(GiveUp(key, "a rollback made it void"));
  }
  return given_up;
}

void CheckpointTracker::Adopt(const JobRecord& record, const GenerationRecord& naming,
                              Effects* effects) {
  const Restore& restore = naming.restore;
  if (restore.source != RestoreSource::kCheckpoint || FindEntry(restore.checkpoint) != nullptr) {
    return;
  }
  CheckpointEntry entry;  // of no known world size or files: its manifest has them
  entry.record.job = record.job.value();
  entry.record.key = restore.checkpoint;
  entry.record.lineage = naming.lineage;
  entry.record.directory = restore.directory;
  entry.record.tensors = record.spec.tensors;
  entry.state = CheckpointState::kAnnounced;
  entry.manifest_digest = restore.manifest_digest;
  entries_.push_back(entry);
  Put(record, entry, effects);
}

void CheckpointTracker::TakeUp(const JobRecord& record, const std::vector<FoundCheckpoint>& found,
                               Effects* effects) {
  for (const FoundCheckpoint& one : found) {
    CheckpointEntry entry;  // of no known files: its manifest has them
    entry.record.job = record.job.value();
    entry.record.key = one.key;
    entry.record.lineage = one.lineage;
    entry.record.world_size = one.world_size;
    entry.record.directory = CheckpointDirectory(one.key);
    entry.record.tensors = record.spec.tensors;
    entry.record.bytes = one.bytes;
    entry.state = CheckpointState::kAnnounced;
    entry.manifest_digest = one.manifest_digest;
    entries_.push_back(entry);
    Put(record, entry, effects);
  }
}

bool CheckpointTracker::Strike(const JobRecord& record, const CheckpointKey& key, bool bad,
                               Effects* effects) {
  CheckpointEntry* entry = FindEntry(key);
  if (entry == nullptr || entry->strikes >= kDamagedStrikes) return false;
  entry->strikes = bad ? kDamagedStrikes : std::min(entry->strikes + 1, kDamagedStrikes - 1);
  if (!Planted(Mutant::kVolatileStrikes)) Put(record, *entry, effects);
  return bad || entry->strikes == kCheckpointStrikes;
}

bool CheckpointTracker::Pending(const CheckpointKey& key, const std::vector<Rank>& alive) const {
  const auto entry =
      std::ranges::find_if(entries_, [&](const CheckpointEntry& e) { return e.record.key == key; });
  if (entry != entries_.end()) return entry->state == CheckpointState::kComplete;
  const auto it = saves_.find(key);
  if (it == saves_.end()) return false;
  const std::set<Rank> living(alive.begin(), alive.end());
  return std::ranges::all_of(it->second.writing.members, [&](const MemberEntry& member) {
    return it->second.files.contains(member.rank) || living.contains(member.rank);
  });
}

CheckpointTracker::Fate CheckpointTracker::FateOf(const CheckpointKey& key) const {
  if (saves_.contains(key)) return Fate::kUnderWay;
  if (GivenUp(key)) return Fate::kGivenUp;
  for (const CheckpointEntry& entry : entries_) {
    if (entry.record.key != key) continue;
    if (entry.state == CheckpointState::kComplete) return Fate::kUnderWay;
    const bool announced =
        entry.state == CheckpointState::kAnnounced ||
        (entry.state == CheckpointState::kDeleting && entry.manifest_digest != 0);
    return announced ? Fate::kAnnounced : Fate::kGivenUp;
  }
  return Fate::kUnknown;
}

// Whoever took over a job whose store was lost may hear of an old save from the one worker alone
// that missed its announcement; the others report it no more, and a later one makes it worthless.
bool CheckpointTracker::Owes(const Member& member) const {
  return std::ranges::any_of(saves_, [&](const auto& pending) {
    const CheckpointKey& key = pending.first;
    const bool worthless = std::ranges::any_of(entries_, [&](const CheckpointEntry& entry) {
      const CheckpointKey& other = entry.record.key;
      return entry.state != CheckpointState::kVoid && other.step > key.step &&
             other.generation >= key.generation;
    });
    return !worthless && pending.second.owing.contains(member);
  });
}

}  // namespace muster::coordinator
