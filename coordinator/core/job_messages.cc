// What workers and launchers say once their session is admitted.
#include <fmt/format.h>

#include <algorithm>

#include "coordinator/core/durable_state.h"
#include "coordinator/core/job.h"

namespace muster::coordinator {

void Job::OnMessage(SessionId session, const Message& message, Instant now) {
  if (const auto it = launchers_.find(session); it != launchers_.end()) {
    if (const auto* attest = std::get_if<Attest>(&message)) OnAttest(*attest, it->second, now);
    Evaluate(now);
    return;
  }
  Worker* worker = BySession(session);
  if (worker == nullptr || record_.end) return;
  Heard(*worker, now);
  if (const auto* beat = std::get_if<Heartbeat>(&message)) {
    On(*worker, *beat, now);
    return;  // most messages are these: what they change is looked at where it changes
  }
  if (std::holds_alternative<Able>(message)) worker->able = true;
  if (const auto* ready = std::get_if<Ready>(&message)) On(*worker, *ready, now);
  if (const auto* formed = std::get_if<Formed>(&message)) On(*worker, *formed, now);
  if (const auto* failed = std::get_if<FormFailed>(&message)) On(*worker, *failed, now);
  if (const auto* failed = std::get_if<OperationFailed>(&message)) On(*worker, *failed, now);
  if (const auto* stopped = std::get_if<Stopped>(&message)) On(*worker, *stopped, now);
  if (const auto* leave = std::get_if<Leave>(&message)) On(*worker, *leave, now);
  if (const auto* done = std::get_if<Finished>(&message)) {
    worker->finished = record_.started && done->generation == record_.started->generation;
    if (worker->finished) committed_ = std::max(committed_, done->step);
  }
  worker = BySession(session);  // a worker that left is gone by now
  if (worker != nullptr) OnCheckpointMessage(*worker, message, now);
  Evaluate(now);
}

void Job::On(Worker& worker, const Heartbeat& beat, Instant now) {
  Send(worker, Ack{beat.sequence, timing().heartbeat_interval});
  const bool changed = beat.generation != worker.beat.generation ||
                       beat.operations != worker.beat.operations ||
                       beat.stage != worker.beat.stage || beat.waiting != worker.beat.waiting;
  if (changed) worker.beat_changed = now;
  worker.phase_until = beat.phase.empty() ? now : now + beat.phase_left;
  worker.beat = beat;
  if (!record_.started || beat.generation != record_.started->generation || round_) return;
  loss_ = beat.loss;
  if (beat.skips >= config_.max_consecutive_skips) {
    EndJob(EndKind::kFailed,
           fmt::format("{} steps in a row had a gradient that is not finite (the last: {}): look "
                       "at the data and the loss scale",
                       beat.skips, beat.committed.value()),
           now);
    return;
  }
  if (beat.committed > committed_) NoteCommit(beat.committed, now);
}

void Job::On(Worker& worker, const Ready& ready, Instant now) {
  if (!round_ || round_->assigned || ready.forming != round_->number) return;
  if (ready.generation.value() != 0 && ready.lineage != record_.lineage) {
    Suspect(worker, Cause::kConnectionLost, "it holds the state of another lineage", true, true,
            now);
    return;
  }
  round_->ready[worker.member] = ready;
}

void Job::On(Worker& worker, const Formed& formed, Instant) {
  if (!round_ || !round_->assigned || formed.generation != round_->number) return;
  round_->formed[worker.member] = formed;
}

void Job::On(Worker& worker, const FormFailed& failed, Instant now) {
  if (!round_ || !round_->assigned || failed.generation != round_->number) return;
  const Restore& restore = round_->record.restore;
  std::string detail =
      fmt::format("worker {} could not form generation {}: {}", worker.member.worker.value(),
                  failed.generation.value(), failed.reason);
  if (restore.source == RestoreSource::kCheckpoint && failed.peer.value() < 0) {
    const bool bad = failed.bad_checkpoint == restore.checkpoint;
    if (checkpoints_.Strike(record_, restore.checkpoint, bad, effects_)) {
      Publish(EventKind::kCheckpointVoid, now,
              fmt::format("{} is struck out: {}", restore.directory, failed.reason), worker.member);
    }
  }
  if (failed.peer.value() >= 0 && failed.peer.value() < round_->record.world_size()) {
    const auto index = static_cast<std::size_t>(failed.peer.value());
    NoteBadPair(worker.member, round_->record.members[index].member, now);
  }
  Publish(EventKind::kForming, now, std::move(detail), worker.member);
  BeginRound(Cause::kFormingFailed, false, now);
}

void Job::On(Worker& worker, const OperationFailed& failed, Instant now) {
  if (!record_.started || !record_.latest_started ||
      failed.generation != record_.started->generation) {
    return;
  }
  Blame blame{worker.member, Cause::kOperationFailed,
              fmt::format("worker {} reports: {}", worker.member.worker.value(), failed.reason)};
  if (failed.peer.value() >= 0 && failed.peer.value() < record_.started->world_size()) {
    const auto index = static_cast<std::size_t>(failed.peer.value());
    blame.member = record_.started->members[index].member;
    Worker* peer = FindWorker(blame.member);
    NoteBadPair(worker.member, blame.member, now);
    // Its session closed as well as its data connection: two witnesses, no grace needed.
    if (peer != nullptr && !peer->connected && now >= peer->closed_at && !peer->suspicion &&
        !LauncherSaysAlive(*peer)) {
      Suspect(*peer, Cause::kConnectionLost, "its session closed, and " + blame.evidence, false,
              false, now);
    }
  }
  if (!round_) BeginRound(Cause::kOperationFailed, false, now);
  auto& blamed = round_->incident.blamed;
  if (std::ranges::find(blamed, blame.member, &Blame::member) == blamed.end()) {
    blamed.push_back(std::move(blame));
  }
}

void Job::On(Worker& worker, const Stopped& stopped, Instant now) {
  if (round_ || !record_.started || stopped.generation != record_.started->generation) return;
  committed_ = std::max(committed_, stopped.step);
  const bool leave = std::ranges::any_of(
      workers_, [&](const auto& entry) { return entry.second.leaving && IsMember(entry.first); });
  BeginRound(leave ? Cause::kLeave : Cause::kGrowth, true, now);
  (void)worker;
}

void Job::On(Worker& worker, const Leave& leave, Instant now) {
  if (!worker.leaving) {
    Publish(EventKind::kWorkerLeft, now,
            fmt::format("worker {} asks to leave: {}", worker.member.worker.value(), leave.reason),
            worker.member);
  }
  worker.leaving = true;
  worker.finish_called = worker.finish_called || leave.finish;
  const bool in_round = round_ && round_->assigned && Find(round_->record, worker.member);
  if (IsMember(worker.member) || in_round) {
    wished_ = false;
    return;
  }
  Send(worker, Ended{{EndKind::kFinished, committed_, "left before it became a member"}, true});
  by_session_.erase(worker.session);
  workers_.erase(worker.member);
}

void Job::OnCheckpointMessage(Worker& worker, const Message& message, Instant now) {
  std::optional<CheckpointKey> in_use;
  if (round_ && round_->assigned && round_->record.restore.source == RestoreSource::kCheckpoint) {
    in_use = round_->record.restore.checkpoint;
  }
  if (const auto* shard = std::get_if<ShardWritten>(&message)) {
    if (!record_.started || !IsMember(worker.member)) return;
    Apply(checkpoints_.OnShardWritten(record_, *record_.started, *shard,
                                      now + config_.checkpoint_timeout, effects_),
          now);
  } else if (const auto* failure = std::get_if<ShardFailed>(&message)) {
    if (IsMember(worker.member)) Apply(checkpoints_.OnShardFailed(*failure), now);
  } else if (const auto* manifest = std::get_if<ManifestWritten>(&message)) {
    Apply(checkpoints_.OnManifestWritten(record_, *manifest, in_use, effects_), now);
  } else if (const auto* removed = std::get_if<CheckpointRemoved>(&message)) {
    Apply(checkpoints_.OnRemoved(record_, *removed, effects_), now);
  }
}

void Job::Apply(const CheckpointTracker::Progress& progress, Instant now) {
  // Any live worker can write the manifest or delete: the files are on storage that all share.
  const auto helper = std::ranges::find_if(workers_, [](const auto& entry) {
    return entry.second.connected && !entry.second.suspicion;
  });
  if (progress.write_manifest) {
    Publish(
        EventKind::kCheckpointComplete, now,
        fmt::format("{}: all {} shards are durable ({} bytes)", progress.write_manifest->directory,
                    progress.write_manifest->files.size(), progress.write_manifest->bytes));
    if (helper != workers_.end()) {
      Send(helper->second, WriteManifest{*progress.write_manifest});
    }
  }
  if (progress.announced) {
    Broadcast(CheckpointAnnounced{*progress.announced});
    Publish(EventKind::kCheckpointAnnounced, now,
            fmt::format("{} is announced", CheckpointDirectory(*progress.announced)));
  }
  if (progress.aborted) {
    Broadcast(*progress.aborted);
    Publish(EventKind::kCheckpointAborted, now,
            fmt::format("{} was given up: {}", CheckpointDirectory(progress.aborted->key),
                        progress.aborted->reason));
  }
  for (const RemoveCheckpoint& remove : progress.remove) {
    if (helper != workers_.end()) Send(helper->second, remove);
    Publish(EventKind::kCheckpointRemoved, now, fmt::format("{} is removed", remove.directory));
  }
  if (!progress.problem.empty()) Publish(EventKind::kRefused, now, progress.problem);
}

void Job::OnAttest(const Attest& attest, const NodeName& node, Instant now) {
  const std::pair key{attest.worker, attest.pid};
  if (attest.alive) {
    attested_[key] = {node, true};
    return;
  }
  attested_.erase(key);
  for (auto& [member, worker] : workers_) {
    if (member.worker != attest.worker || worker.pid != attest.pid || worker.node != node) continue;
    const std::string evidence = fmt::format("launcher of node {} saw pid {} end: {}", node.value(),
                                             attest.pid, attest.detail);
    Suspect(worker, Cause::kProcessDied, evidence, true, true, now);
    return;
  }
}

void Job::FinishIfDone(Instant now) {
  if (record_.end || round_ || !record_.started || !record_.latest_started) return;
  bool finished = true;
  bool called = true;
  for (const MemberEntry& entry : record_.started->members) {
    const Worker* worker = FindWorker(entry.member);
    finished = finished && worker != nullptr && worker->finished;
    called = called && worker != nullptr && worker->finish_called;
  }
  // The last checkpoint is part of the result: its outcome is known before anyone leaves.
  if ((!finished && !called) || checkpoints_.AnyPending()) return;
  EndJob(EndKind::kFinished, fmt::format("finished at step {}", committed_.value()), now);
}

}  // namespace muster::coordinator
