// Forming the next generation: interrupt, collect the answers, decide.
#include <fmt/format.h>

#include <algorithm>

#include "coordinator/core/durable_state.h"
#include "coordinator/core/job.h"
#include "protocol/mutants.h"

namespace muster::coordinator {

namespace {

// What a generation's record inherits when an earlier try over the same broken generation did not
// start.
bool SameBroken(const GenerationRecord& latest, const std::optional<GenerationRecord>& started) {
  return started && latest.previous == started->generation;
}

}  // namespace

// Also of a try that was made before, or of a generation that started and never committed a step:
// what is told of is the way to the next step.
Incident Job::IncidentOf(Cause cause, Instant now) {
  if (round_) return std::move(round_->incident);
  if (last_round_ && last_round_->incident.number > 0) {
    std::erase_if(incidents_, [&](const Incident& shown) {
      return shown.number == last_round_->incident.number;
    });
    return std::move(last_round_->incident);
  }
  Incident incident;
  incident.cause = cause;
  incident.noticed = now;
  incident.from = record_.started ? record_.started->generation : Generation();
  incident.world_before = record_.started ? record_.started->world_size() : 0;
  if (cause != Cause::kFirstFormation) incident.number = ++incident_count_;
  return incident;
}

void Job::BeginRound(Cause cause, bool conclusive, Instant now, const std::string& detail) {
  if (record_.end && !Planted(Mutant::kEndIgnored)) return;
  Round next;
  next.number = NextGeneration(record_);
  next.cause = cause;
  next.begun = next.first_begun = now;
  next.deadline = now + config_.forming_timeout;
  next.autonomy_until = now + config_.autonomy + timing().lease;
  if (Planted(Mutant::kCoordinatorTimerFirst)) next.autonomy_until = now + config_.autonomy / 2;
  if (round_) {
    next.first_begun = round_->first_begun;
    next.autonomy_until = round_->autonomy_until;
    next.forced = round_->forced;
    next.attempt = round_->attempt + (round_->assigned ? 1 : 0);
    if (!round_->assigned) {
      next.link = round_->link;
      next.linked = round_->linked;
    }
  } else if (last_round_) {
    next.attempt = last_round_->attempt + 1;
  }
  if (Planted(Mutant::kGroupIdKept)) {
    const std::optional<Round>& before = round_ ? round_ : last_round_;
    if (before) next.group_id = before->group_id;
    if (next.group_id) next.group_id->generation = next.number;
  }
  // What fails again and again is given more and more time.
  const Duration settle = config_.settle * (std::int64_t{1} << std::min(next.attempt - 1, 6));
  next.settle_until = conclusive ? now : now + settle;
  next.incident = IncidentOf(cause, now);
  next.incident.attempts = std::max(next.incident.attempts, next.attempt);
  for (const Blame& blame : next.incident.blamed) next.blamed.insert(blame.member);
  for (const auto& [member, worker] : workers_) {
    if (!worker.suspicion || !Counts(member) || next.incident.blamed.size() >= kMaxBlamed ||
        !next.blamed.insert(member).second) {
      continue;
    }
    next.incident.blamed.push_back({member, worker.suspicion->cause, worker.suspicion->evidence});
  }
  round_ = std::move(next);
  last_round_.reset();
  wished_ = false;
  stop_until_ = Instant::Never();
  if (round_->attempt > config_.max_forming_attempts) {
    EndJob(EndKind::kFailed,
           fmt::format("gave up after {} attempts to form a generation that commits a step; the "
                       "last one failed: {}",
                       config_.max_forming_attempts, detail.empty() ? CauseText(cause) : detail)
               .substr(0, kMaxReasonBytes),
           now);
    return;
  }
  Persist();
  for (auto& [member, worker] : workers_) {
    if (worker.connected) Ask(worker, now);
  }
  RecountAll();
  Publish(EventKind::kForming, now,
          fmt::format("forming generation {}: {}", round_->number.value(), CauseText(cause)));
}

void Job::Ask(Worker& worker, Instant now) {
  worker.asked = now;
  Send(worker, Interrupt{round_->number, round_->cause, std::string(CauseText(round_->cause))});
}

std::vector<QuorumMember> Job::QuorumMembers(Instant now) const {
  std::vector<QuorumMember> members;
  for (const auto& [member, worker] : workers_) {
    QuorumMember entry;
    entry.member = member;
    entry.survivor = IsMember(member) && !Gone(member);
    entry.able = worker.able && !worker.drained;
    entry.leaving = worker.leaving;
    entry.silent = std::max(Duration(), now - worker.last_heard);
    if (worker.suspicion) {
      entry.standing = worker.suspicion->dead ? Standing::kDead : Standing::kSuspect;
    } else if (!worker.connected) {
      entry.standing = Standing::kUnseen;
    } else {
      entry.standing = round_->ready.contains(member) ? Standing::kAnswered : Standing::kPending;
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
    if (worker == workers_.end() || worker->second.suspicion || ready == round_->ready.end() ||
        Gone(entry.member)) {
      continue;
    }
    if (ready->second.generation == record_.started->generation) answers.push_back(ready->second);
  }
  if (Planted(Mutant::kJoinerCountsAsSurvivor)) {
    for (const auto& [member, ready] : round_->ready) {
      if (!IsMember(member)) answers.push_back(ready);
    }
  }
  return answers;
}

std::optional<StepDecision> Job::Inherited() const {
  if (!record_.latest || record_.latest_started || !SameBroken(*record_.latest, record_.started)) {
    return std::nullopt;
  }
  if (Planted(Mutant::kForgetDecision)) return std::nullopt;
  if (Planted(Mutant::kOnlyCommitsFinal) && record_.latest->decision.outcome == Outcome::kVoid) {
    return std::nullopt;
  }
  return record_.latest->decision;
}

// Ranks of the broken generation whose memory is, or will be, the state at the decided step. One
// that is prepared, or in the middle of applying, is a source too.
std::vector<Rank> Job::Holders(const StepResolution& resolution, bool leavers) const {
  std::vector<Rank> holders;
  if (!record_.started) return holders;
  for (const MemberEntry& entry : record_.started->members) {
    const auto worker = workers_.find(entry.member);
    const auto ready = round_->ready.find(entry.member);
    if (worker == workers_.end() || worker->second.suspicion || ready == round_->ready.end() ||
        Gone(entry.member) || (worker->second.leaving && !leavers)) {
      continue;
    }
    const Ready& answer = ready->second;
    if (!answer.holds_state || answer.generation != record_.started->generation) continue;
    const bool there = answer.committed == resolution.committed;
    if (Planted(Mutant::kCleanBoundarySourcesOnly) && answer.open) continue;
    const bool prepared = answer.open && answer.open->prepared &&
                          answer.open->step == resolution.committed &&
                          answer.committed.Next() == resolution.committed;
    if (there || prepared) holders.push_back(entry.rank);
  }
  return holders;
}

RestoreDecision Job::PlanRestoreOf(const StepResolution& resolution, bool leavers) const {
  RestoreView view;
  view.committed = std::max(resolution.committed, SurvivorAnswers().empty() ? committed_ : Step());
  view.broken = record_.started ? &*record_.started : nullptr;
  view.holders = Holders(resolution, leavers);
  view.tensors = &record_.spec.tensors;
  view.checkpoints = &checkpoints_.entries();
  view.record = &record_;
  return PlanRestore(view);
}

HoldersView Job::HoldersViewOf(const std::vector<QuorumMember>& members,
                               const StepResolution& resolution, const RestoreDecision& restore,
                               Instant now) const {
  HoldersView view;
  view.now = now;
  view.first = !record_.started;
  view.holder_answers = !Holders(resolution, true).empty();
  view.rollback = restore.rollback && restore.steps_redone > 0;
  view.members = &members;
  view.autonomy_until = round_->autonomy_until;
  // As long as redoing the steps would take, and never longer than the bound.
  Duration step;
  for (const Duration d : step_times_) step = std::max(step, d);
  const std::int64_t most = step > Duration() ? config_.max_patience.nanos() / step.nanos() : 0;
  const Duration patience = step * std::min(restore.steps_redone, most + 1);
  view.patience_until = round_->first_begun + std::min(config_.max_patience, patience);
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

std::vector<Candidate> Job::Candidates(const StepResolution& resolution, bool leavers) const {
  const std::vector<Rank> holders = Holders(resolution, leavers);  // by rank
  std::vector<Candidate> candidates;
  std::vector<std::pair<Instant, Candidate>> cooling;
  for (const auto& [member, worker] : workers_) {
    if (!worker.connected || worker.suspicion || !worker.able || worker.drained ||
        !round_->ready.contains(member) || Gone(member) ||
        (worker.leaving && !(leavers && IsMember(member)))) {
      continue;
    }
    Candidate candidate{member, worker.node, worker.address, Rank(-1), false, worker.order};
    if (const auto was = members_.find(member); was != members_.end()) {
      candidate.previous_rank = was->second;
      candidate.holds_state = std::ranges::binary_search(holders, was->second);
    }
    if (worker.cooling) {
      cooling.emplace_back(worker.cooling->until, std::move(candidate));
    } else {
      candidates.push_back(std::move(candidate));
    }
  }
  // With too few others those that cool down are taken all the same, the soonest over first.
  std::ranges::sort(cooling, {}, [](const auto& c) { return std::pair(c.first, c.second.order); });
  for (auto& [until, candidate] : cooling) {
    if (std::ssize(candidates) >= record_.spec.min_workers) break;
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

bool Job::WaitStands(Instant now) const {
  if (!round_->wait) return false;
  const Wait& wait = *round_->wait;
  // For these it is enough to count; each of the many answers of a round comes this way.
  if (tally_.unseen > 0) return wait.reason == WaitReason::kReturn;
  if (!tally_.owing.empty()) return wait.reason == WaitReason::kAnswers;
  if (wait.reason == WaitReason::kReturn || wait.reason == WaitReason::kAnswers) return false;
  const bool too_few = tally_.usable < LeastUsable(record_.spec.min_workers);
  const bool fits =
      wait.reason == WaitReason::kSettle || too_few == (wait.reason == WaitReason::kMinWorkers);
  return fits && !round_->stale && !MemberLeaves() && now < wait.until;
}

void Job::AdvanceRound(Instant now) {
  if (!round_) return;
  if (round_->assigned) {
    CheckFormed(now);
    if (round_) CheckFormDeadline(now);
    return;
  }
  CheckAnswerDeadline(now);
  round_->looked = now;
  if (WaitStands(now)) return;
  round_->stale = false;
  const std::vector<QuorumMember> members = QuorumMembers(now);
  const StepResolution resolution = ResolveOpenStep(
      record_.started ? record_.started->generation : Generation(), SurvivorAnswers(), Inherited());
  auto wait = AwaitAnswers({now, round_->settle_until, record_.spec.min_workers, &members});
  const bool too_few = wait && wait->reason == WaitReason::kMinWorkers;
  if (!wait || too_few) ExpectSave(resolution, now);
  if (wait) {
    SetWait(std::move(wait), now);
    if (too_few) ReleaseUnable(resolution, now);
    return;
  }
  if (round_->link) {
    JudgeLinks(now);
    return AdvanceRound(now);  // somebody may be out now
  }
  TakeUpFound(now);
  RestoreDecision restore = PlanRestoreOf(resolution, false);
  const HoldersView view = HoldersViewOf(members, resolution, restore, now);
  // Those that want to leave stay for one more generation when going without them would undo steps
  // (the only copy, or a shard that could not be saved), and can leave at its first boundary.
  bool leavers = false;
  if (view.rollback && !view.save_pending && MemberLeaves()) {
    const RestoreDecision with = PlanRestoreOf(resolution, true);
    const auto chosen = ChooseMembers(Candidates(resolution, true), record_.spec.max_workers);
    // With none to hand over to, staying would help nobody.
    const bool handed_over = std::ranges::any_of(
        chosen, [&](const Candidate& c) { return !workers_.at(c.member).leaving; });
    leavers = !with.rollback && handed_over;
    if (leavers) restore = with;
  }
  if (!leavers) {
    if (auto holders_wait = AwaitHolders(view)) {
      SetWait(std::move(holders_wait), now);
      return;
    }
  }
  SetWait(std::nullopt, now);
  Decide(resolution, restore, leavers, now);
}

// It may not have aborted yet, and vote: so it is not left out, but drops its state when it hears
// this.
void Job::AskToComeAfresh(Worker& worker, Instant now) {
  if (!worker.connected) return;
  Send(worker, Refused{Code::kFenced, "found unable to go on, and needed: come afresh"});
  effects_->closes.push_back(worker.session);
  by_session_.erase(worker.session);
  worker.connected = false;
  worker.closed_at = now;
  Recount(worker);
}

// With too few left to go on, those that want to leave need not stay for the others to come; and
// members that were found unable to go on come afresh, so that they can count again.
void Job::ReleaseUnable(const StepResolution& resolution, Instant now) {
  std::vector<Member> release;
  for (auto& [member, worker] : workers_) {
    const bool answered = round_->ready.contains(member);
    const bool leaves = worker.leaving && !worker.suspicion && answered;
    const bool unable = worker.suspicion && worker.suspicion->sticky && !worker.suspicion->dead;
    if (!IsMember(member) || Gone(member) || (!leaves && !unable)) continue;
    if (unable && !answered) {
      AskToComeAfresh(worker, now);
    } else if (!leaves || !checkpoints_.Owes(member)) {
      release.push_back(member);
    }
  }
  if (release.empty()) return;
  committed_ = std::max(committed_, resolution.committed);
  for (const Member& member : release) AddGone(member);
  Persist();  // DropUnneeded tells them
}

// Evicts those that owe an answer for too long, each from the time when it was asked.
void Job::CheckAnswerDeadline(Instant now) {
  std::set<Member> late;
  for (const auto& [asked, member] : tally_.owing) {
    if (now < asked + config_.forming_timeout) break;
    late.insert(member);
  }
  for (const Member& member : late) {
    Suspect(
        workers_.at(member), Cause::kFormingFailed,
        fmt::format("did not answer the interrupt within {} ms", config_.forming_timeout.millis()),
        true, false, now);
  }
  round_->deadline = tally_.owing.empty() ? Instant::Never()
                                          : tally_.owing.begin()->first + config_.forming_timeout;
}

}  // namespace muster::coordinator
