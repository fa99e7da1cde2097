// What workers and launchers say once their session is admitted.
#include <fmt/format.h>

#include <algorithm>

#include "coordinator/core/durable_state.h"
#include "coordinator/core/job.h"
#include "protocol/mutants.h"

namespace muster::coordinator {

void Job::OnMessage(SessionId session, const Message& message, Instant now) {
  // That a worker exits now is no news.
  if (record_.end && !Planted(Mutant::kEndIgnored)) return;
  Worker* worker = BySession(session);
  if (worker == nullptr) {
    const auto it = launchers_.find(session);
    if (it == launchers_.end()) return;
    if (const auto* attest = std::get_if<Attest>(&message)) OnAttest(*attest, it->second, now);
    Evaluate(now);
    return;
  }
  const bool withdrawn = Heard(*worker, now);
  if (withdrawn && round_ && !round_->assigned && !round_->ready.contains(worker->member)) {
    Ask(*worker, now);
    Recount(*worker);
  }
  if (adopting_) NoteWhileAdopting(*worker, message);
  if (const auto* beat = std::get_if<Heartbeat>(&message)) {
    On(*worker, *beat, now);
    return;  // most messages are these: what they change is looked at where it changes
  }
  if (std::holds_alternative<Able>(message)) worker->able = true;
  if (const auto* ready = std::get_if<Ready>(&message)) On(*worker, *ready, now);
  if (const auto* group = std::get_if<GroupId>(&message)) On(*worker, *group, now);
  if (const auto* formed = std::get_if<Formed>(&message)) On(*worker, *formed, now);
  if (const auto* failed = std::get_if<FormFailed>(&message)) On(*worker, *failed, now);
  if (const auto* failed = std::get_if<OperationFailed>(&message)) On(*worker, *failed, now);
  if (const auto* stopped = std::get_if<Stopped>(&message)) On(*worker, *stopped, now);
  if (const auto* leave = std::get_if<Leave>(&message)) On(*worker, *leave, now);
  if (const auto* done = std::get_if<Finished>(&message)) On(*worker, *done, now);
  Recount(*worker);
  OnCheckpointMessage(*worker, message, now);
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
  if (!record_.started || beat.generation != record_.started->generation || round_ ||
      !IsMember(worker.member)) {
    return;
  }
  if (beat.committed >= committed_) loss_ = beat.loss;
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
  if (!round_ && record_.started && IsMember(worker.member) &&
      ready.forming > record_.started->generation && !Planted(Mutant::kRestartKeepsGeneration)) {
    // An answer to a coordinator that is no more: this member has given up its generation.
    RaiseHighest(record_, ready.forming);
    BeginRound(Cause::kCoordinatorRestart, true, now);
    return;
  }
  if (!round_ || round_->assigned) return;
  if (ready.forming != round_->number && !Planted(Mutant::kStaleReadyAccepted)) return;
  const bool ours = ready.lineage == record_.lineage ||
                    (record_.started && ready.lineage == record_.started->lineage);
  if (ready.generation.value() != 0 && !ours) {
    Suspect(worker, Cause::kConnectionLost, "it holds the state of another lineage", true, true,
            now);
    return;
  }
  round_->ready[worker.member] = ready;
  round_->stale = round_->stale || IsMember(worker.member);
}

// A rank 0 that has reconnected says it again; members that were away get it when they are back.
void Job::On(Worker& worker, const GroupId& group, Instant) {
  if (!round_ || !round_->assigned || group.generation != round_->number) return;
  const auto minter = latest_members_.find(worker.member);
  if (minter == latest_members_.end() || minter->second != Rank(0)) return;
  if (round_->group_id && !Planted(Mutant::kGroupIdKept)) return;
  if (!round_->group_id) round_->group_id = group;
  for (const MemberEntry& entry : round_->record.members) {
    if (const Worker* member = FindWorker(entry.member)) SendGroupId(*member);
  }
}

// To a member that has been assigned to the generation, and did not mint it.
void Job::SendGroupId(const Worker& worker) {
  const auto member = latest_members_.find(worker.member);
  if (!round_->group_id || member == latest_members_.end() || member->second == Rank(0)) return;
  Send(worker, *round_->group_id);
}

void Job::On(Worker& worker, const Formed& formed, Instant) {
  if (!round_ || !round_->assigned || formed.generation != round_->number ||
      !latest_members_.contains(worker.member)) {
    return;
  }
  if (round_->formed.insert_or_assign(worker.member, formed).second) ++round_->members_formed;
}

void Job::On(Worker& worker, const FormFailed& failed, Instant now) {
  if (!round_) return;
  if (!round_->assigned) return OnLateFormFailed(worker, failed, now);
  if (failed.generation != round_->number) return;
  const Restore& restore = round_->record.restore;
  const std::string detail =
      fmt::format("worker {} could not form generation {}: {}", worker.member.worker.value(),
                  failed.generation.value(), failed.reason);
  // A peer or a device that failed while a checkpoint was read says nothing about the checkpoint.
  const bool of_checkpoint =
      restore.source == RestoreSource::kCheckpoint && failed.peer.value() < 0 && failed.reading;
  if (of_checkpoint && failed.contradicts) return EndJob(EndKind::kFailed, failed.reason, now);
  if (of_checkpoint) StrikeOut(worker, failed, restore, now);
  Publish(EventKind::kForming, now, detail, worker.member);
  BeginRound(Cause::kFormingFailed, false, now, detail);
  if (!round_) return;  // one attempt too many: the job has ended
  const GenerationRecord& broken = *record_.latest;
  if (failed.peer.value() >= 0 && failed.peer.value() < broken.world_size()) {
    const auto index = static_cast<std::size_t>(failed.peer.value());
    ReportLink(worker.member, broken.members[index].member, broken);
  }
}

// Another member has reported before, perhaps just that it lost this one: the damage that this one
// tells of is the reason all the same, and no link is to blame.
void Job::OnLateFormFailed(const Worker& worker, const FormFailed& failed, Instant now) {
  const auto& latest = record_.latest;
  if (failed.peer.value() >= 0 || !latest || record_.latest_started ||
      failed.generation != latest->generation) {
    return;
  }
  round_->link.reset();
  const Restore& restore = latest->restore;
  if (restore.source == RestoreSource::kCheckpoint && failed.contradicts) {
    return EndJob(EndKind::kFailed, failed.reason, now);
  }
  if (restore.source == RestoreSource::kCheckpoint && failed.bad_checkpoint == restore.checkpoint) {
    StrikeOut(worker, failed, restore, now);
    round_->stale = true;
  }
}

void Job::StrikeOut(const Worker& worker, const FormFailed& failed, const Restore& restore,
                    Instant now) {
  const bool bad = failed.bad_checkpoint == restore.checkpoint;
  if (checkpoints_.Strike(record_, restore.checkpoint, bad, effects_)) {
    Publish(EventKind::kCheckpointVoid, now,
            bad ? fmt::format("{} is struck out: {}", restore.directory, failed.reason)
                : fmt::format("{} is in quarantine, {} starts from it failed: {}",
                              restore.directory, kCheckpointStrikes, failed.reason),
            worker.member);
  }
}

void Job::On(Worker& worker, const OperationFailed& failed, Instant now) {
  if (!record_.started || !record_.latest_started ||
      failed.generation != record_.started->generation || !IsMember(worker.member)) {
    return;
  }
  Member blamed = worker.member;
  const std::string evidence =
      fmt::format("worker {} reports: {}", worker.member.worker.value(), failed.reason);
  if (!round_) BeginRound(Cause::kOperationFailed, false, now, evidence);
  if (!round_) return;  // one attempt too many: the job has ended
  if (failed.peer.value() >= 0 && failed.peer.value() < record_.started->world_size()) {
    const auto index = static_cast<std::size_t>(failed.peer.value());
    blamed = record_.started->members[index].member;
    Worker* peer = FindWorker(blamed);
    ReportLink(worker.member, blamed, *record_.started);
    if (blamed != worker.member) round_->accused.insert(blamed);
    // Its session closed as well as its data connection: two witnesses, no grace needed.
    if (peer != nullptr && peer != &worker && !peer->connected && now >= peer->closed_at &&
        !LauncherSaysAlive(*peer)) {
      Suspect(*peer, Cause::kConnectionLost, "its session closed, and " + evidence, false, false,
              now);
    }
  }
  AddBlame(blamed, Cause::kOperationFailed, evidence);
}

void Job::On(Worker& worker, const Stopped& stopped, Instant now) {
  if (round_ || !record_.started || stopped.generation != record_.started->generation ||
      !IsMember(worker.member)) {
    return;
  }
  worker.stopped = true;
  if (stopped.step > committed_) NoteCommit(stopped.step, now);
}

void Job::On(Worker& worker, const Finished& done, Instant now) {
  if (!record_.started || done.generation != record_.started->generation ||
      !IsMember(worker.member)) {
    return;
  }
  worker.finished = true;
  if (!round_ && done.step > committed_) NoteCommit(done.step, now);
}

void Job::OnAttest(const Attest& attest, const NodeName& node, Instant now) {
  if (attest.alive) {
    if (attested_count_ >= kMaxSessions) return;
    if (attested_[node].emplace(attest.worker, attest.pid).second) ++attested_count_;
    return;
  }
  if (const auto there = attested_.find(node); there != attested_.end()) {
    attested_count_ -= there->second.erase({attest.worker, attest.pid});
  }
  const auto here = by_node_.find(node);
  if (here == by_node_.end()) return;
  for (const Member& member : here->second) {
    Worker& worker = workers_.at(member);
    const bool it = member.worker == attest.worker && worker.pid == attest.pid;
    if (!it && !Planted(Mutant::kEvictNodeMate)) continue;
    const std::string evidence = fmt::format("launcher of node {} saw pid {} end: {}", node.value(),
                                             attest.pid, attest.detail);
    Suspect(worker, Cause::kProcessDied, evidence, true, true, now);
  }
}

void Job::FinishIfDone(Instant now) {
  if (record_.end || !record_.started || (round_ && round_->assigned)) return;
  const bool finished = !round_ && tally_.finished == record_.started->world_size();
  const bool called = tally_.finish_called == record_.started->world_size();
  if (!finished && !called) return;
  // The last checkpoint is part of the result: its outcome is known before anyone leaves.
  if (finished && record_.spec.checkpoint_every > 0 && steps_in_generation_ > 0 &&
      committed_.value() == record_.spec.steps) {
    checkpoints_.Expect(record_, {committed_, record_.started->generation}, *record_.started,
                        now + config_.checkpoint_timeout);
  }
  if (checkpoints_.AnyPending()) return;
  EndJob(EndKind::kFinished, finished ? "all steps are committed" : "all workers have finished",
         now);
}

}  // namespace muster::coordinator
