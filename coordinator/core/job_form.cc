// From the decision to the start: assign, form, restore, start.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "coordinator/core/durable_state.h"
#include "coordinator/core/job.h"
#include "protocol/mutants.h"

namespace muster::coordinator {

namespace {

// What a worker measured, in milliseconds; nonsense becomes the nearest sense.
Duration FromMillis(double ms) {
  constexpr double kMost = 1e9;
  if (!(ms > 0)) return {};
  return Duration::Nanos(static_cast<std::int64_t>(std::min(ms, kMost) * 1e6));
}

}  // namespace

// Takes a worker off the job: it left as planned, or it is fenced.
void Job::Dismiss(const Member& member, bool left, Instant now) {
  const auto it = workers_.find(member);
  if (it == workers_.end()) return;
  if (it->second.connected) {
    if (left) {
      Send(it->second, Ended{{EndKind::kFinished, committed_, "left as asked"}, true});
    } else if (!Planted(Mutant::kEvictedNotFenced)) {
      Send(it->second, Refused{Code::kFenced, "the job goes on without this incarnation"});
      effects_->closes.push_back(it->second.session);
    }
  }
  if (!left) NoteLoss(it->second, now);
  const bool told = !left && it->second.suspicion && it->second.suspicion->dead;
  if (!told) {
    Publish(left ? EventKind::kWorkerLeft : EventKind::kWorkerDead, now,
            fmt::format("worker {} {}", member.worker.value(),
                        left ? "has left" : "is out: the job goes on without it"),
            member);
  }
  Forget(member);
}

void Job::Decide(const StepResolution& resolution, const RestoreDecision& restore, bool leavers,
                 Instant now) {
  GenerationRecord record;
  record.generation = round_->number;
  record.previous = record_.started ? record_.started->generation : Generation();
  record.members =
      PlanRanks(ChooseMembers(Candidates(resolution, leavers), record_.spec.max_workers));
  record.decision = resolution.decision;
  record.restore = restore.restore;
  if (restore.restore.source != RestoreSource::kLive) {
    for (MemberEntry& entry : record.members) entry.previous_rank = Rank(-1);
  }
  // Those that an operator gave up may train on for a while: nothing of theirs is to be taken for
  // the job's.
  if (round_->forced && GivesUpUnseen(record)) record_.lineage = FreshLineage();
  record.lineage = record_.lineage;
  committed_ = restore.restore.step;
  if (restore.rollback) {
    AddRollback(record_, record.generation, restore.restore.step);
    // With no survivor to ask, nobody knows how far the dead had come since they were last heard.
    const bool unknown = resolution.reason == StepReason::kNoSurvivor;
    if (unknown || restore.steps_redone > 0) {
      Publish(EventKind::kRolledBack, now,
              fmt::format("back to step {}; {}", restore.restore.step.value(),
                          unknown ? "whatever was committed above it is void"
                                  : fmt::format("{} steps are taken again", restore.steps_redone)));
    }
  }
  leavers_kept_ = leavers;
  SetLatest(record, false);
  std::set<Member> left_out;
  for (const auto& [member, rank] : members_) {
    if (!latest_members_.contains(member) && !Gone(member)) left_out.insert(member);
  }
  std::vector<Member> out;
  for (const Member& member : left_out) {
    AddGone(member);
    const Worker* worker = FindWorker(member);
    // Those that leave as planned are told by DropUnneeded, once their last shard is written.
    if (worker == nullptr || !worker->leaving || worker->suspicion) out.push_back(member);
  }
  if (!Planted(Mutant::kAssignBeforeDurable)) Persist();
  for (const auto& progress : checkpoints_.MarkVoid(record_, effects_)) Apply(progress, now);
  round_->assigned = true;
  round_->record = record;
  round_->restore = restore;
  round_->answered = now;
  round_->deadline = now + std::max(config_.forming_timeout, ProgressTimeout());
  const Assign assign{std::move(record)};
  for (const MemberEntry& entry : assign.record->members) {
    Worker* worker = FindWorker(entry.member);
    if (worker == nullptr) continue;
    worker->took_part = true;
    worker->cooling.reset();
    Send(*worker, assign);
  }
  RecountAll();
  for (const Member& member : out) Dismiss(member, false, now);
  NoteDecision(now);
}

// Does `next` go on without a member that nobody knows to be dead?
bool Job::GivesUpUnseen(const GenerationRecord& next) const {
  const Roster roster = RosterOf(next);
  return std::ranges::any_of(members_, [&](const auto& entry) {
    const Member& member = entry.first;
    const auto it = workers_.find(member);
    const bool dead = it == workers_.end() || (it->second.suspicion && it->second.suspicion->dead);
    return !dead && !roster.contains(member) && !Gone(member) && !it->second.leaving;
  });
}

void Job::NoteDecision(Instant now) {
  Incident& incident = round_->incident;
  incident.abort = Duration();
  for (const auto& [member, ready] : round_->ready) {
    incident.abort = std::max(incident.abort, FromMillis(ready.abort_ms));
  }
  incident.ready = std::max(Duration(), now - round_->begun - incident.abort);
  incident.to = round_->number;
  incident.world_after = round_->record.world_size();
  incident.restored_from = round_->record.restore.source;
  incident.restored_step = round_->record.restore.step;
  incident.steps_redone += round_->restore.steps_redone;
  Publish(EventKind::kAssigned, now,
          fmt::format("generation {} assigned to {} workers at step {}", round_->number.value(),
                      round_->record.world_size(), round_->record.restore.step.value()));
}

void Job::CheckFormDeadline(Instant now) {
  if (now < round_->deadline) return;
  bool named = false;
  for (const MemberEntry& entry : round_->record.members) {
    Worker* worker = FindWorker(entry.member);
    if (worker == nullptr || round_->formed.contains(entry.member)) continue;
    // Those that wait in forming wait for the one that has not come to it.
    if (worker->beat.stage == Stage::kForming) continue;
    named = true;
    Suspect(*worker, Cause::kNoProgress, "did not come to the forming of the generation in time",
            true, false, now);
  }
  if (!named) BeginRound(Cause::kFormingFailed, false, now);
  if (named) CheckMembers(now);
}

void Job::CheckFormed(Instant now) {
  if (round_->members_formed == round_->record.world_size()) StartGeneration(now);
}

void Job::StartGeneration(Instant now) {
  Incident& incident = round_->incident;
  incident.restore = Duration();
  for (const auto& [member, formed] : round_->formed) {
    incident.restore = std::max(incident.restore, FromMillis(formed.restore_ms));
  }
  incident.form = std::max(Duration(), now - round_->answered - incident.restore);
  before_ = record_.started;
  before_members_ = members_;
  if (before_) DropMootRollbacks(record_, before_->generation);
  SetStarted(record_.latest, now);
  record_.latest_started = true;
  record_.gone.clear();
  Persist();
  const Start start{round_->number};
  for (const MemberEntry& entry : record_.started->members) {
    Worker& worker = *FindWorker(entry.member);
    worker.finished = worker.stopped = false;
    worker.beat = Heartbeat{};
    worker.beat.committed = committed_;
    worker.beat_changed = now;
    Send(worker, start);
  }
  ++reforms_;
  if (incident.number > 0) {
    incidents_.push_back(incident);
    if (incidents_.size() > kMaxIncidents) incidents_.pop_front();
  }
  last_round_ = std::move(round_);
  if (!Planted(Mutant::kGroupIdKept)) last_round_->group_id.reset();
  round_.reset();
  RecountAll();
  Publish(EventKind::kStarted, now,
          fmt::format("generation {} trains with {} workers from step {}",
                      record_.started->generation.value(), record_.started->world_size(),
                      committed_.value()));
  effects_->events.back().incident = last_round_->incident;
  std::set<Member> present;
  for (const auto& [member, worker] : workers_) present.insert(member);
  for (const auto& progress : checkpoints_.GiveUpLost(present)) Apply(progress, now);
  OrderRemovals(checkpoints_.RemovalsDue(record_, effects_));
  const bool any = Planted(Mutant::kSweptStillCounts);
  const GenerationRecord& oldest = before_ && !any ? *before_ : *record_.started;
  OrderSweep(oldest.generation, Step());
}

}  // namespace muster::coordinator
