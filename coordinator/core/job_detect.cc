// Evidence about workers, growth, and what follows from the passing of time.
#include <fmt/format.h>

#include <algorithm>

#include "coordinator/core/durable_state.h"
#include "coordinator/core/job.h"
#include "protocol/mutants.h"

namespace muster::coordinator {

namespace {
constexpr std::size_t kStepTimesKept = 32;
constexpr std::int64_t kStepsBeforeJudging = 20;
// A pair that failed is forgiven after this many committed steps.
constexpr std::int64_t kStepsToForgivePair = 10;
constexpr int kFailuresOfBadPair = 2;
constexpr std::size_t kFewCloses = 2;
}  // namespace

Timing Job::timing() const {
  return TimingOf(record_.spec,
                  record_.started ? record_.started->world_size() : record_.spec.max_workers);
}

bool Job::Counts(const Member& member) const {
  return (IsMember(member) && !Gone(member)) ||
         (round_ && round_->assigned && latest_members_.contains(member));
}

bool Job::LauncherSaysAlive(const Worker& worker) const {
  const auto there = attested_.find(worker.node);
  return there != attested_.end() && there->second.contains({worker.member.worker, worker.pid});
}

void Job::OnTick(Instant now) { Evaluate(now); }

// Everything that may follow from the last input or from the time. Each part is a cheap no-op when
// it has nothing to do.
void Job::Evaluate(Instant now) {
  if (record_.end && !Planted(Mutant::kEndIgnored)) return;
  if (adopting_) TryAdopt(now);
  CheckCooldowns(now);
  CheckSilence(now);
  CheckProgress(now);
  CheckMembers(now);
  CheckStopped(now);
  CheckHurry(now);
  CheckFirstFormation(now);
  CheckGrowth(now);
  for (const auto& progress : checkpoints_.OnTime(now)) Apply(progress, now);
  CheckManifest(now);
  FinishIfDone(now);
  AdvanceRound(now);
  DropUnneeded(now);
}

bool Job::Heard(Worker& worker, Instant now) {
  worker.last_heard = std::max(worker.last_heard, now);
  if (!worker.suspicion || worker.suspicion->sticky) return false;
  if (Planted(Mutant::kSuspicionNotWithdrawn)) return false;
  worker.suspicion.reset();
  Recount(worker);
  leases_.Watch(now + timing().lease, worker.member);
  if (round_ && round_->blamed.erase(worker.member) > 0) {
    std::erase_if(round_->incident.blamed,
                  [&](const Blame& blame) { return blame.member == worker.member; });
  }
  Publish(EventKind::kSuspicionWithdrawn, now,
          fmt::format("worker {} is heard again", worker.member.worker.value()), worker.member);
  return true;
}

void Job::Suspect(Worker& worker, Cause cause, std::string evidence, bool sticky, bool dead,
                  Instant now) {
  if (worker.suspicion && (worker.suspicion->dead || !dead)) return;  // nothing stronger
  const Instant since = worker.suspicion ? worker.suspicion->since : now;
  worker.suspicion = Suspicion{cause, evidence, since, sticky, dead};
  if (dead && adoption_.contains(worker.member)) adoption_dead_.insert(worker.member);
  Recount(worker);
  Publish(dead ? EventKind::kWorkerDead : EventKind::kWorkerSuspected, now,
          fmt::format("worker {}: {}", worker.member.worker.value(), evidence), worker.member);
  if (!round_) return;
  if (round_->blamed.erase(worker.member) > 0) {
    std::erase_if(round_->incident.blamed,
                  [&](const Blame& blame) { return blame.member == worker.member; });
  }
  if (IsMember(worker.member) || (round_->assigned && latest_members_.contains(worker.member))) {
    AddBlame(worker.member, cause, std::move(evidence));
    if (round_->incident.cause == Cause::kOperationFailed) round_->incident.cause = cause;
  }
  if (Planted(Mutant::kSettleRearmed)) round_->settle_until = now + config_.settle;
  // Proof needs no time to settle.
  if (dead && !round_->assigned) {
    round_->settle_until = std::min(round_->settle_until, now);
    round_->stale = true;
  }
}

// More than a person reads are only counted by the size of the worlds.
void Job::AddBlame(const Member& member, Cause cause, std::string evidence) {
  auto& blamed = round_->incident.blamed;
  if (blamed.size() >= kMaxBlamed || !round_->blamed.insert(member).second) return;
  blamed.push_back({member, cause, std::move(evidence)});
}

SilenceView Job::SilenceOf(const Worker& worker, Instant now) const {
  SilenceView view;
  view.now = now;
  view.connected = worker.connected;
  view.closed_at = worker.closed_at;
  view.last_heard = worker.last_heard;
  view.launcher_says_alive = LauncherSaysAlive(worker);
  view.timing = timing();
  const auto window_start = now + Duration::Nanos(-view.timing.lease.nanos());
  const auto closes = recent_closes_.end() - std::ranges::lower_bound(recent_closes_, window_start);
  view.mass_close = static_cast<std::size_t>(closes) > std::max(kFewCloses, workers_.size() / 10);
  return view;
}

void Job::CheckSilence(Instant now) {
  while (!recent_closes_.empty() && recent_closes_.front() + timing().lease < now) {
    recent_closes_.pop_front();
  }
  for (const Member& member : leases_.Due(now)) {
    Worker* worker = FindWorker(member);
    if (worker == nullptr || worker->suspicion) continue;
    const SilenceVerdict verdict = JudgeSilence(SilenceOf(*worker, now));
    if (!verdict.suspect) {
      leases_.Watch(verdict.look_again, member);
      continue;
    }
    const double silent = (now - worker->last_heard).ToSeconds();
    const std::string evidence =
        verdict.cause == Cause::kConnectionLost
            ? fmt::format("its session closed and it did not come back within {} ms",
                          timing().grace.millis())
            : fmt::format("silent for {:.2f} s, longer than the failure timeout of {} ms", silent,
                          timing().lease.millis());
    if (Counts(member)) {
      const bool final = Planted(Mutant::kFenceAtLease);
      Suspect(*worker, verdict.cause, evidence, final, final, now);
      continue;
    }
    Publish(EventKind::kWorkerDead, now,
            fmt::format("worker {} (waiting): {}", member.worker.value(), evidence), member);
    if (worker->connected) effects_->closes.push_back(worker->session);
    Forget(member);
  }
}

Duration Job::ProgressTimeout() const {
  if (steps_in_generation_ < kStepsBeforeJudging) return config_.first_step_timeout;
  Duration longest;
  for (const Duration step : step_times_) longest = std::max(longest, step);
  return std::max(config_.progress_timeout, longest * 5);
}

void Job::CheckProgress(Instant now) {
  if (round_ || !record_.started || !record_.latest_started || now < next_progress_check_) return;
  const Duration timeout = ProgressTimeout();
  next_progress_check_ = now + std::min(Duration::Seconds(1), config_.progress_timeout / 4);
  std::vector<ProgressView> views;
  for (const MemberEntry& entry : record_.started->members) {
    const Worker* worker = FindWorker(entry.member);
    if (worker == nullptr || worker->beat.generation != record_.started->generation) continue;
    views.push_back({entry.member, worker->beat.operations, worker->beat.waiting,
                     worker->beat.stage, now - worker->beat_changed, worker->phase_until > now});
  }
  for (const Straggler& straggler : FindStragglers(views, timeout)) {
    Worker& worker = *FindWorker(straggler.member);
    Suspect(worker, Cause::kNoProgress,
            fmt::format("has not entered operation {} in which others have waited for {:.1f} s{}",
                        straggler.missing_operation, straggler.behind.ToSeconds(),
                        worker.beat.phase.empty() ? "" : "; last phase: " + worker.beat.phase),
            true, false, now);
  }
}

// Workers that no generation needs any more, or never did: lost ones, so that they come afresh, and
// those that want to leave and owe no shard.
void Job::DropUnneeded(Instant now) {
  if (record_.end) return;
  std::vector<std::pair<Member, bool>> drop;
  for (const Member& member : tally_.droppable) {
    const Worker& worker = workers_.at(member);
    const bool leaves = worker.leaving && !worker.suspicion;
    if (leaves && adoption_.contains(member)) continue;  // it may turn out to be a member
    if (!leaves || !checkpoints_.Owes(member)) drop.emplace_back(member, leaves);
  }
  for (const auto& [member, leaves] : drop) Dismiss(member, leaves, now);
}

// The members agreed, in a vote, to re-form at this boundary. Each comes to it by itself; those
// that take long (an evaluation, a slow optimizer) are interrupted all the same, later.
void Job::CheckStopped(Instant now) {
  if (round_ || !record_.started || !record_.latest_started) return;
  if (tally_.stopped == 0) {
    stop_until_ = Instant::Never();  // also when the one that had stopped went on
    return;
  }
  if (stop_until_ == Instant::Never()) stop_until_ = now + timing().lease;
  if (tally_.stopped < record_.started->world_size() && now < stop_until_) return;
  BeginRound(MemberLeaves() ? Cause::kLeave : Cause::kGrowth, true, now);
}

// A member that is lost breaks the generation, running or forming.
void Job::CheckMembers(Instant now) {
  const GenerationRecord* broken = nullptr;
  if (round_ && round_->assigned) broken = &round_->record;
  if (!round_ && record_.started && record_.latest_started) broken = &*record_.started;
  if (broken == nullptr) return;
  if ((round_ ? tally_.sound_latest : tally_.sound) == broken->world_size()) return;
  bool lost = false;
  bool proven = true;
  Cause cause = Cause::kCoordinatorRestart;
  for (const MemberEntry& entry : broken->members) {
    const Worker* worker = FindWorker(entry.member);
    if (worker != nullptr && !worker->suspicion) continue;
    lost = true;
    proven = proven && (worker == nullptr || worker->suspicion->dead);
    if (worker != nullptr) cause = worker->suspicion->cause;
  }
  if (!lost) return;
  BeginRound(round_ ? Cause::kFormingFailed : cause, proven, now);
}

void Job::CheckFirstFormation(Instant now) {
  if (round_ || record_.started || adopting_ || record_.end) return;
  const std::int32_t able = tally_.here;
  if (able < record_.spec.min_workers) {
    quorum_since_.reset();
    return;
  }
  if (!quorum_since_) quorum_since_ = now;  // and never moved by later joins
  if (able < record_.spec.max_workers && now < *quorum_since_ + config_.join_window) return;
  BeginRound(Cause::kFirstFormation, true, now);
}

CooldownRules Job::cooldown_rules() const {
  return {config_.cooldown_failures, config_.cooldown, config_.max_cooldown,
          config_.cooldown_forgiveness};
}

// A worker goes for good: is that held against the place where it ran? Not when it never came back
// to a coordinator that had been away.
void Job::NoteLoss(const Worker& worker, Instant now) {
  if (!worker.took_part || worker.leaving || !worker.suspicion || worker.session == SessionId() ||
      !HeldAgainstSlot(worker.suspicion->cause, worker.suspicion->dead)) {
    return;
  }
  const Slot slot{worker.member.worker, worker.node};
  const auto cooling =
      cooldowns_.NoteFailure(slot, worker.pid, worker.suspicion->dead, cooldown_rules(), now);
  if (!cooling) return;
  SetCooling(slot, now);  // the next process may be there already
  Publish(EventKind::kCoolingDown, now,
          fmt::format("worker {} on node {} cools down for {:.1f} s: it failed {} times",
                      slot.worker.value(), slot.node.value(), (cooling->until - now).ToSeconds(),
                      cooling->failures),
          worker.member);
}

void Job::SetCooling(const Slot& slot, Instant now) {
  const auto cooling = cooldowns_.Of(slot, now);
  if (Planted(Mutant::kCooldownOfNodeMate) && cooling) {
    for (auto& [member, worker] : workers_) {
      if (worker.node == slot.node) worker.cooling = cooling;
      Recount(worker);
    }
  }
  for (auto it = workers_.lower_bound({slot.worker, Incarnation()});
       it != workers_.end() && it->first.worker == slot.worker; ++it) {
    if (it->second.node != slot.node || it->second.took_part) continue;
    it->second.cooling = cooling;
    Recount(it->second);
    if (cooling) next_cooldown_end_ = std::min(next_cooldown_end_, cooling->until);
  }
  if (round_) round_->stale = true;
}

void Job::CheckCooldowns(Instant now) {
  if (now < next_cooldown_end_) return;
  next_cooldown_end_ = Instant::Never();
  for (auto& [member, worker] : workers_) {
    if (worker.cooling && worker.cooling->until <= now) {
      worker.cooling.reset();
      Recount(worker);
    }
    if (worker.cooling) next_cooldown_end_ = std::min(next_cooldown_end_, worker.cooling->until);
  }
  if (round_) round_->stale = true;
}

bool Job::Wanted() const {
  if (MemberLeaves()) return true;
  const bool full = record_.started->world_size() >= record_.spec.max_workers;
  if (full && !Planted(Mutant::kGrowthLoops)) return false;
  return tally_.growers > 0;
}

Instant Job::WishDue() const {
  // A leave is granted at once, unless the last re-form had to keep the leaver.
  const bool at_once = MemberLeaves() && !leavers_kept_;
  return last_growth_ + (at_once ? Duration() : config_.growth_interval);
}

void Job::CheckGrowth(Instant now) {
  if (round_ || wished_ || record_.end || !record_.started || !record_.latest_started ||
      !Wanted() || now < WishDue()) {
    return;
  }
  wished_ = true;
  Wish wish{record_.started->generation, {}};
  wish.wishes.reform = true;
  wish.wishes.checkpoint = MemberLeaves() && !record_.spec.checkpoint_directory.empty();
  for (const MemberEntry& entry : record_.started->members) {
    if (const Worker* worker = FindWorker(entry.member)) Send(*worker, wish);
  }
}

void Job::NoteCommit(Step committed, Instant now) {
  const std::int64_t steps = committed.value() - committed_.value();
  if (steps_in_generation_ > 0) {
    step_times_.push_back((now - last_commit_at_) / steps);
    if (step_times_.size() > kStepTimesKept) step_times_.pop_front();
  }
  const bool first = steps_in_generation_ == 0;
  // After a restart the first report may be about many steps at once, of which no time is known.
  steps_in_generation_ += first ? 1 : steps;
  last_commit_at_ = now;
  committed_ = committed;
  if (steps_in_generation_ >= kStepsToForgivePair) bad_pairs_.clear();
  if (!first || !last_round_) return;
  Incident& incident = last_round_->incident;
  incident.first_step = now - started_at_;
  incident.complete = true;
  if (incident.number > 0) {
    for (Incident& shown : incidents_) {
      if (shown.number == incident.number) shown = incident;
    }
  }
  Publish(EventKind::kFirstStep, now,
          fmt::format("generation {} committed its first step, {}",
                      record_.started->generation.value(), committed.value()));
  effects_->events.back().incident = incident;
  last_round_.reset();
}

void Job::ReportLink(const Member& a, const Member& b, const GenerationRecord& record) {
  if (a == b || round_->link) return;
  round_->link = std::minmax(a, b);
  round_->linked.clear();
  for (const MemberEntry& entry : record.members) round_->linked.push_back(entry.member);
  round_->stale = true;
}

// All have answered. A failed link is the link's fault only when nobody in that generation was
// lost: otherwise whoever reported it may have met the end of a member, or of a peer that had met
// it.
void Job::JudgeLinks(Instant now) {
  if (!round_->link) return;
  const auto pair = *std::exchange(round_->link, std::nullopt);
  round_->stale = true;
  const bool all_well = std::ranges::all_of(round_->linked, [&](const Member& member) {
    const Worker* worker = FindWorker(member);
    return worker != nullptr && worker->connected && !worker->suspicion && !worker->leaving &&
           round_->ready.contains(member);
  });
  if (!all_well) return;
  // An incarnation that is gone does not come back.
  std::erase_if(bad_pairs_, [&](const auto& noted) {
    return FindWorker(noted.first.first) == nullptr || FindWorker(noted.first.second) == nullptr;
  });
  ++bad_pairs_[pair];
  std::vector<std::pair<Member, Member>> bad;
  for (const auto& [ends, failures] : bad_pairs_) {
    const Worker* first = FindWorker(ends.first);
    const Worker* second = FindWorker(ends.second);
    const bool both_live = first != nullptr && second != nullptr && !first->suspicion &&
                           !second->suspicion && first->connected && second->connected;
    if (failures >= kFailuresOfBadPair && both_live) bad.push_back(ends);
  }
  for (const Member& member : CoverBadPairs(bad)) {
    Suspect(*FindWorker(member), Cause::kOperationFailed,
            "its links failed again and again although both ends live", true, false, now);
  }
}

}  // namespace muster::coordinator
