// Forming the next generation: interrupt, collect the answers, decide, assign, start.
#include <fmt/format.h>

#include <algorithm>

#include "coordinator/core/durable_state.h"
#include "coordinator/core/job.h"

namespace muster::coordinator {

namespace {

// What a generation's record inherits when an earlier try over the same broken generation did not
// start.
bool SameBroken(const GenerationRecord& latest, const std::optional<GenerationRecord>& started) {
  return started && latest.previous == started->generation;
}

}  // namespace

void Job::BeginRound(Cause cause, bool conclusive, Instant now) {
  Round next;
  next.number = NextGeneration(record_);
  next.cause = cause;
  next.begun = now;
  next.first_begun = now;
  next.settle_until = conclusive ? now : now + config_.settle;
  next.deadline = now + config_.forming_timeout;
  if (round_) {
    next.first_begun = round_->first_begun;
    next.attempt = round_->attempt + 1;
    next.incident = std::move(round_->incident);
  } else {
    next.incident.cause = cause;
    next.incident.noticed = now;
    next.incident.from = record_.started ? record_.started->generation : Generation();
    next.incident.world_before = record_.started ? record_.started->world_size() : 0;
    if (cause != Cause::kFirstFormation) next.incident.number = ++incident_count_;
  }
  next.incident.attempts = next.attempt;
  for (const auto& [member, worker] : workers_) {
    const auto& blamed = next.incident.blamed;
    const bool named = std::ranges::find(blamed, member, &Blame::member) != blamed.end();
    if (!worker.suspicion || named || !IsMember(member)) continue;
    next.incident.blamed.push_back({member, worker.suspicion->cause, worker.suspicion->evidence});
  }
  round_ = std::move(next);
  last_round_.reset();
  wished_ = false;
  if (round_->attempt > config_.max_forming_attempts) {
    EndJob(EndKind::kFailed,
           fmt::format("gave up after {} attempts to form a generation; the last one failed: {}",
                       config_.max_forming_attempts, CauseText(cause)),
           now);
    return;
  }
  Persist();
  Broadcast(Interrupt{round_->number, cause, std::string(CauseText(cause))});
  Publish(EventKind::kForming, now,
          fmt::format("forming generation {}: {}", round_->number.value(), CauseText(cause)));
}

std::vector<QuorumMember> Job::QuorumMembers(Instant now) const {
  std::vector<QuorumMember> members;
  for (const auto& [member, worker] : workers_) {
    QuorumMember entry;
    entry.member = member;
    entry.survivor = IsMember(member) && !IsGone(record_, member);
    entry.able = worker.able;
    entry.leaving = worker.leaving;
    entry.silent = std::max(Duration(), now - worker.last_heard);
    if (worker.suspicion) {
      entry.standing = worker.suspicion->dead ? Standing::kDead : Standing::kSuspect;
    } else if (round_->ready.contains(member)) {
      entry.standing = Standing::kAnswered;
    } else {
      entry.standing = worker.connected ? Standing::kPending : Standing::kUnseen;
    }
    members.push_back(std::move(entry));
  }
  if (!record_.started) return members;
  for (const MemberEntry& entry : record_.started->members) {
    if (workers_.contains(entry.member)) continue;
    QuorumMember dead;  // left out for good by an earlier record
    dead.member = entry.member;
    dead.survivor = true;
    dead.standing = Standing::kDead;
    members.push_back(std::move(dead));
  }
  return members;
}

std::vector<Ready> Job::SurvivorAnswers() const {
  std::vector<Ready> answers;
  if (!record_.started) return answers;
  for (const MemberEntry& entry : record_.started->members) {
    const auto worker = workers_.find(entry.member);
    const auto ready = round_->ready.find(entry.member);
    if (worker == workers_.end() || worker->second.suspicion || ready == round_->ready.end()) {
      continue;
    }
    if (ready->second.generation == record_.started->generation) answers.push_back(ready->second);
  }
  return answers;
}

std::optional<StepDecision> Job::Inherited() const {
  if (!record_.latest || record_.latest_started || !SameBroken(*record_.latest, record_.started)) {
    return std::nullopt;
  }
  return record_.latest->decision;
}

// Ranks of the broken generation whose memory is, or will be, the state at the decided step. One
// that is prepared, or in the middle of applying, is a source too.
std::vector<Rank> Job::Holders(const StepResolution& resolution) const {
  std::vector<Rank> holders;
  if (!record_.started) return holders;
  for (const MemberEntry& entry : record_.started->members) {
    const auto worker = workers_.find(entry.member);
    const auto ready = round_->ready.find(entry.member);
    if (worker == workers_.end() || worker->second.suspicion || ready == round_->ready.end()) {
      continue;
    }
    const Ready& answer = ready->second;
    if (!answer.holds_state || answer.generation != record_.started->generation) continue;
    const bool there = answer.committed == resolution.committed;
    const bool prepared = answer.open && answer.open->prepared &&
                          answer.open->step == resolution.committed &&
                          answer.committed.Next() == resolution.committed;
    if (there || prepared) holders.push_back(entry.rank);
  }
  return holders;
}

HoldersView Job::HoldersViewOf(const std::vector<QuorumMember>& members,
                               const StepResolution& resolution, const RestoreDecision& restore,
                               Instant now) const {
  HoldersView view;
  view.now = now;
  view.first = !record_.started;
  view.rollback = restore.rollback && restore.restore.step < resolution.committed;
  view.members = &members;
  view.autonomy_until = round_->first_begun + config_.autonomy + timing().lease;
  // As long as redoing the steps would take, and never longer than the bound.
  Duration step;
  for (const Duration d : step_times_) step = std::max(step, d);
  const Duration redo = step * restore.steps_redone;
  view.patience_until = round_->first_begun + std::min(config_.max_patience, redo);
  view.save_until = round_->first_begun + config_.checkpoint_timeout;
  if (!record_.started) return view;
  std::vector<Rank> alive;
  for (const MemberEntry& entry : record_.started->members) {
    const auto worker = workers_.find(entry.member);
    if (worker != workers_.end() && worker->second.connected && !worker->second.suspicion) {
      alive.push_back(entry.rank);
    }
  }
  view.save_pending =
      checkpoints_.Pending({resolution.committed, record_.started->generation}, alive);
  return view;
}

std::vector<Candidate> Job::Candidates(const StepResolution& resolution) const {
  const std::vector<Rank> holders = Holders(resolution);
  std::vector<Candidate> candidates;
  for (const auto& [member, worker] : workers_) {
    if (worker.suspicion || !worker.able || worker.leaving || !round_->ready.contains(member)) {
      continue;
    }
    Candidate candidate{member, worker.node, worker.address, Rank(-1), false, worker.order};
    if (record_.started) {
      if (const MemberEntry* entry = Find(*record_.started, member)) {
        candidate.previous_rank = entry->rank;
        candidate.holds_state = std::ranges::find(holders, entry->rank) != holders.end();
      }
    }
    candidates.push_back(std::move(candidate));
  }
  return candidates;
}

void Job::SetWait(std::optional<Wait> wait, Instant now) {
  const bool news = wait && wait->reason != WaitReason::kSettle &&
                    (!round_->wait || round_->wait->reason != wait->reason);
  round_->wait = std::move(wait);
  if (news && round_->wait->reason != WaitReason::kAnswers) {
    Publish(EventKind::kWaiting, now, ToText(*round_->wait, now));
  }
}

void Job::AdvanceRound(Instant now) {
  if (!round_) return;
  if (round_->assigned) {
    CheckFormed(now);
    if (round_) CheckFormDeadline(now);
    return;
  }
  CheckAnswerDeadline(now);
  const std::vector<QuorumMember> members = QuorumMembers(now);
  AnswersView answers{now, round_->settle_until, record_.spec.min_workers, &members};
  const StepResolution resolution = ResolveOpenStep(
      record_.started ? record_.started->generation : Generation(), SurvivorAnswers(), Inherited());
  if (auto wait = AwaitAnswers(answers)) {
    const bool too_few = wait->reason == WaitReason::kMinWorkers;
    SetWait(std::move(wait), now);
    if (too_few) ReleaseLeavers(resolution, now);
    return;
  }
  RestoreView view;
  view.committed = std::max(resolution.committed, SurvivorAnswers().empty() ? committed_ : Step());
  view.broken = record_.started ? &*record_.started : nullptr;
  view.holders = Holders(resolution);
  view.tensors = &record_.spec.tensors;
  view.checkpoints = &checkpoints_.entries();
  view.record = &record_;
  RestoreDecision restore = PlanRestore(view);
  if (auto wait = AwaitHolders(HoldersViewOf(members, resolution, restore, now))) {
    SetWait(std::move(wait), now);
    return;
  }
  SetWait(std::nullopt, now);
  Decide(resolution, restore, now);
}

// With too few left to go on, those that want to leave need not stay for the others to come.
void Job::ReleaseLeavers(const StepResolution& resolution, Instant now) {
  if (record_.started &&
      checkpoints_.Pending({resolution.committed, record_.started->generation}, {})) {
    return;
  }
  std::vector<Member> leavers;
  for (const auto& [member, worker] : workers_) {
    if (worker.leaving && round_->ready.contains(member)) leavers.push_back(member);
  }
  if (leavers.empty()) return;
  committed_ = std::max(committed_, resolution.committed);
  for (const Member& member : leavers) record_.gone.push_back(member);
  Persist();
  for (const Member& member : leavers) Dismiss(member, true, now);
}

// Takes a worker off the job: it left as planned, or it is fenced.
void Job::Dismiss(const Member& member, bool left, Instant now) {
  const auto it = workers_.find(member);
  if (it == workers_.end()) return;
  if (it->second.connected) {
    if (left) {
      Send(it->second, Ended{{EndKind::kFinished, committed_, "left as asked"}, true});
    } else {
      Send(it->second, Refused{Code::kFenced, "the job goes on without this incarnation"});
      effects_->closes.push_back(it->second.session);
    }
    by_session_.erase(it->second.session);
  }
  Publish(left ? EventKind::kWorkerLeft : EventKind::kWorkerDead, now,
          fmt::format("worker {} {}", member.worker.value(),
                      left ? "has left" : "is out: the record goes on without it"),
          member);
  workers_.erase(it);
}

void Job::Decide(const StepResolution& resolution, const RestoreDecision& restore, Instant now) {
  GenerationRecord record;
  record.generation = round_->number;
  record.lineage = record_.lineage;
  record.previous = record_.started ? record_.started->generation : Generation();
  record.members = PlanRanks(ChooseMembers(Candidates(resolution), record_.spec.max_workers));
  record.decision = resolution.decision;
  record.restore = restore.restore;
  if (restore.restore.source != RestoreSource::kLive) {
    for (MemberEntry& entry : record.members) entry.previous_rank = Rank(-1);
  }
  committed_ = restore.restore.step;
  if (restore.rollback) {
    AddRollback(record_, record.generation, restore.restore.step);
    Publish(EventKind::kRolledBack, now,
            fmt::format("back to step {}; {} steps are taken again", restore.restore.step.value(),
                        restore.steps_redone));
  }
  std::vector<Member> out;
  std::vector<Member> leaving;
  if (record_.started) {
    for (const MemberEntry& entry : record_.started->members) {
      if (Find(record, entry.member) || IsGone(record_, entry.member)) continue;
      const Worker* worker = FindWorker(entry.member);
      const bool leaves = worker != nullptr && worker->leaving && !worker->suspicion;
      (leaves ? leaving : out).push_back(entry.member);
      record_.gone.push_back(entry.member);
    }
  }
  record_.latest = record;
  record_.latest_started = false;
  Persist();
  for (const auto& progress : checkpoints_.MarkVoid(record_, effects_)) Apply(progress, now);
  round_->assigned = true;
  round_->record = record;
  round_->restore = restore;
  round_->answered = now;
  round_->deadline = now + std::max(config_.forming_timeout, ProgressTimeout());
  for (const MemberEntry& entry : record.members) {
    if (const Worker* worker = FindWorker(entry.member)) Send(*worker, Assign{record});
  }
  for (const Member& member : leaving) Dismiss(member, true, now);
  for (const Member& member : out) Dismiss(member, false, now);
  NoteDecision(now);
}

void Job::NoteDecision(Instant now) {
  Incident& incident = round_->incident;
  double abort_ms = 0;
  for (const auto& [member, ready] : round_->ready) abort_ms = std::max(abort_ms, ready.abort_ms);
  incident.abort = Duration::Nanos(static_cast<std::int64_t>(abort_ms * 1e6));
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

void Job::CheckAnswerDeadline(Instant now) {
  if (now < round_->deadline) return;
  for (auto& [member, worker] : workers_) {
    if (!worker.connected || worker.suspicion || round_->ready.contains(member)) continue;
    Suspect(
        worker, Cause::kFormingFailed,
        fmt::format("did not answer the interrupt within {} ms", config_.forming_timeout.millis()),
        true, false, now);
  }
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
  const bool all = std::ranges::all_of(round_->record.members, [&](const MemberEntry& entry) {
    return round_->formed.contains(entry.member);
  });
  if (all) StartGeneration(now);
}

void Job::StartGeneration(Instant now) {
  Incident& incident = round_->incident;
  double restore_ms = 0;
  for (const auto& [member, formed] : round_->formed) {
    restore_ms = std::max(restore_ms, formed.restore_ms);
  }
  incident.restore = Duration::Nanos(static_cast<std::int64_t>(restore_ms * 1e6));
  incident.form = std::max(Duration(), now - round_->answered - incident.restore);
  record_.started = record_.latest;
  record_.latest_started = true;
  record_.gone.clear();
  Persist();
  const Start start{round_->number};
  for (const MemberEntry& entry : record_.started->members) {
    Worker& worker = *FindWorker(entry.member);
    worker.finished = false;
    worker.beat = Heartbeat{};
    worker.beat_changed = now;
    Send(worker, start);
  }
  started_at_ = now;
  last_growth_ = now;
  last_commit_at_ = now;
  next_progress_check_ = now;
  steps_in_generation_ = 0;
  ++reforms_;
  if (incident.number > 0) {
    incidents_.push_back(incident);
    if (incidents_.size() > kMaxIncidents) incidents_.pop_front();
  }
  last_round_ = std::move(round_);
  round_.reset();
  Publish(EventKind::kStarted, now,
          fmt::format("generation {} trains with {} workers from step {}",
                      record_.started->generation.value(), record_.started->world_size(),
                      committed_.value()));
  effects_->events.back().incident = last_round_->incident;
  Apply(checkpoints_.Unfinished(), now);
}

}  // namespace muster::coordinator
