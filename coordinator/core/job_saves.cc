// Checkpoints: whose shards are taken, who writes the manifest, what is told to whom.
#include <fmt/format.h>

#include <algorithm>

#include "coordinator/core/durable_state.h"
#include "coordinator/core/job.h"

namespace muster::coordinator {

const GenerationRecord* Job::WriterOf(const CheckpointKey& key) const {
  if (record_.started && record_.started->generation == key.generation) return &*record_.started;
  if (before_ && before_->generation == key.generation) return &*before_;
  return nullptr;
}

Rank Job::RankFor(const CheckpointKey& key, const Member& member) const {
  const GenerationRecord* writing = WriterOf(key);
  if (writing == nullptr) return Rank(-1);
  const Roster& roster =
      record_.started && writing == &*record_.started ? members_ : before_members_;
  const auto entry = roster.find(member);
  return entry == roster.end() ? Rank(-1) : entry->second;
}

void Job::OnShardWritten(const Worker& worker, const ShardWritten& shard, Instant now) {
  if (adopting_) return;  // which saves count is known once the generation is
  // A shard counts from the rank alone that had to write it.
  const Rank rank = RankFor(shard.key, worker.member);
  if (rank >= Rank(0) && rank == shard.file.rank) {
    Apply(checkpoints_.OnShardWritten(record_, *WriterOf(shard.key), shard,
                                      now + config_.checkpoint_timeout, effects_),
          now);
  } else {
    Publish(EventKind::kRefused, now,
            fmt::format("shard of {} refused: worker {} was not to write it",
                        CheckpointDirectory(shard.key), worker.member.worker.value()),
            worker.member);
  }
  // A report is repeated until its fate is known, and that may have been told while the worker was
  // not connected.
  switch (checkpoints_.FateOf(shard.key)) {
    case CheckpointTracker::Fate::kUnderWay: break;
    case CheckpointTracker::Fate::kAnnounced: Send(worker, CheckpointAnnounced{shard.key}); break;
    case CheckpointTracker::Fate::kGivenUp:
    case CheckpointTracker::Fate::kUnknown:
      Send(worker, CheckpointAborted{shard.key, "this save does not count any more"});
      break;
  }
}

void Job::OnCheckpointMessage(Worker& worker, const Message& message, Instant now) {
  std::optional<CheckpointKey> in_use;
  if (round_ && round_->assigned && round_->record.restore.source == RestoreSource::kCheckpoint) {
    in_use = round_->record.restore.checkpoint;
  }
  if (const auto* shard = std::get_if<ShardWritten>(&message)) {
    OnShardWritten(worker, *shard, now);
  } else if (const auto* failure = std::get_if<ShardFailed>(&message)) {
    if (RankFor(failure->key, worker.member) < Rank(0)) return;
    Apply(checkpoints_.OnShardFailed(*failure), now);
  } else if (const auto* manifest = std::get_if<ManifestWritten>(&message)) {
    Apply(checkpoints_.OnManifestWritten(record_, *manifest, in_use, effects_), now);
  } else if (const auto* removed = std::get_if<CheckpointRemoved>(&message)) {
    OnRemoved(*removed, now);
  }
}

void Job::OnRemoved(const CheckpointRemoved& removed, Instant now) {
  const std::string name = CheckpointDirectory(removed.key);
  switch (checkpoints_.OnRemoved(record_, removed, effects_)) {
    case CheckpointTracker::Removal::kGone:
      return Publish(EventKind::kCheckpointRemoved, now, fmt::format("{} is removed", name));
    case CheckpointTracker::Removal::kPinned:
      return Publish(EventKind::kCheckpointPinned, now,
                     fmt::format("{} is pinned: it stays until it is unpinned", name));
    case CheckpointTracker::Removal::kNotAsked:
    case CheckpointTracker::Removal::kStillPinned: return;
  }
}

void Job::Apply(const CheckpointTracker::Progress& progress, Instant now) {
  if (round_ && (progress.completed || progress.announced || progress.aborted)) {
    round_->stale = true;
  }
  if (progress.completed) {
    Publish(EventKind::kCheckpointComplete, now,
            fmt::format("{}: all shards are durable", CheckpointDirectory(*progress.completed)));
  }
  if (progress.announced) {
    Broadcast(CheckpointAnnounced{*progress.announced});
    Publish(EventKind::kCheckpointAnnounced, now,
            fmt::format("{} is announced", CheckpointDirectory(*progress.announced)));
    OrderSweep(progress.announced->generation, progress.announced->step);
  }
  if (progress.aborted) {
    Broadcast(*progress.aborted);
    Publish(EventKind::kCheckpointAborted, now,
            fmt::format("{} was given up: {}", CheckpointDirectory(progress.aborted->key),
                        progress.aborted->reason));
  }
  OrderRemovals(progress.remove);
  if (!progress.problem.empty()) Publish(EventKind::kRefused, now, progress.problem);
}

// Any live worker can write a manifest or delete: the files are on storage that all share. Members
// first, by name, so that a process that is only starting up is left alone.
const Job::Worker* Job::Helper() const {
  const Worker* helper = nullptr;
  for (const auto& [member, worker] : workers_) {
    if (!worker.connected || worker.suspicion || worker.leaving) continue;
    if (IsMember(member)) return &worker;
    if (helper == nullptr) helper = &worker;
  }
  return helper;
}

void Job::OrderRemovals(const std::vector<RemoveCheckpoint>& removals) {
  const Worker* helper = removals.empty() ? nullptr : Helper();
  if (helper == nullptr) return;
  for (const RemoveCheckpoint& remove : removals) Send(*helper, remove);
}

// Files of saves that died or were given up take up room until they are swept. Safe, because a
// shard that could still count is one of the started generation or of the one before it, and
// - at a start the order names what is older than both;
// - at an announcement it names what is before the announced one: in the same generation and older
//   ones such a save is under way and named in the order, or overtaken, or void.
// What comes too late all the same is refused (CheckpointTracker::Sweep).
void Job::OrderSweep(Generation generation, Step step) {
  const Worker* helper = record_.spec.checkpoint_directory.empty() ? nullptr : Helper();
  if (helper == nullptr) return;
  SweepCheckpoints sweep = checkpoints_.Sweep(generation, step);
  if (sweep.known.size() <= kMaxSweepKnown) Send(*helper, std::move(sweep));
}

// Sees to it that a complete checkpoint gets its manifest, whoever dies meanwhile.
void Job::CheckManifest(Instant now) {
  const CheckpointRecord* due = checkpoints_.ManifestDue();
  if (due == nullptr) {
    manifest_order_.reset();
    return;
  }
  const bool same = manifest_order_ && manifest_order_->key == due->key;
  if (same && now >= manifest_order_->until) {
    ManifestWritten late;
    late.key = due->key;
    late.code = Code::kDeadlineExceeded;
    late.reason = "no worker reported it in time";
    Apply(checkpoints_.OnManifestWritten(record_, late, std::nullopt, effects_), now);
    manifest_order_.reset();
    CheckManifest(now);  // the next one, if any: there is one less now
    return;
  }
  if (same) {
    const Worker* to = FindWorker(manifest_order_->to);
    if (to != nullptr && to->connected && !to->suspicion) return;
  }
  const Worker* helper = Helper();
  if (helper == nullptr) {
    manifest_order_.reset();  // the next worker that connects gets it, and all the time for it
    return;
  }
  const Instant until = same ? manifest_order_->until : now + config_.checkpoint_timeout;
  manifest_order_ = ManifestOrder{due->key, helper->member, until};
  Send(*helper, WriteManifest{*due});
}

// A save that the members agreed on and are, or will be, at the boundary for.
void Job::ExpectSave(const StepResolution& resolution, Instant now) {
  const bool at_boundary = resolution.reason == StepReason::kNothingOpen ||
                           resolution.reason == StepReason::kNotAllPrepared;
  if (!record_.started || !at_boundary || !resolution.wishes.checkpoint) return;
  checkpoints_.Expect(record_, {resolution.committed, record_.started->generation},
                      *record_.started, now + config_.checkpoint_timeout);
}

}  // namespace muster::coordinator
