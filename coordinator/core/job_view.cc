// What is shown of a job, and when it wants to be looked at again.
#include <fmt/format.h>

#include <algorithm>

#include "coordinator/core/durable_state.h"
#include "coordinator/core/job.h"
#include "protocol/mutants.h"

namespace muster::coordinator {

namespace {

std::string NoteOn(const CheckpointEntry& entry) {
  std::string note;
  if (entry.strikes >= kDamagedStrikes) {
    note = "struck out";
  } else if (entry.strikes > 0) {
    note = fmt::format("{}{} start{} from it failed",
                       entry.strikes >= kCheckpointStrikes ? "in quarantine: " : "", entry.strikes,
                       entry.strikes == 1 ? "" : "s");
  }
  if (entry.pinned) note += note.empty() ? "pinned" : ", pinned";
  return note;
}

}  // namespace

Instant Job::NextDeadline() const {
  if (record_.end && !Planted(Mutant::kEndIgnored)) return Instant::Never();
  Instant next = std::min(leases_.Next(), checkpoints_.NextDeadline());
  if (manifest_order_) next = std::min(next, manifest_order_->until);
  if (adopting_) next = std::min(next, adopt_until_);
  next = std::min(next, next_cooldown_end_);
  if (round_) {
    next = std::min(next, round_->deadline);
    if (round_->wait) next = std::min(next, round_->wait->until);
    return next;
  }
  if (!record_.started && quorum_since_) {
    next = std::min(next, *quorum_since_ + config_.join_window);
  }
  if (record_.started && record_.latest_started) {
    next = std::min({next, next_progress_check_, stop_until_, next_hurry_});
    if (!wished_ && Wanted()) next = std::min(next, WishDue());
  }
  return next;
}

std::size_t Job::Footprint() const {
  const auto of = [](const std::optional<GenerationRecord>& r) {
    return r ? r->members.size() : 0;
  };
  const auto round = [](const std::optional<Round>& r) {
    return r ? r->accused.size() + r->linked.size() + r->ready.size() + r->record.members.size() +
                   r->formed.size() + r->incident.blamed.size() + r->blamed.size()
             : 0;
  };
  std::size_t count = of(record_.latest) + of(record_.started) + of(before_);
  count += record_.rollbacks.size() + record_.gone.size() + record_.drained.size();
  count += checkpoints_.Footprint() + members_.size() + workers_.size() + by_session_.size();
  count +=
      launchers_.size() + attested_.size() + attested_count_ + leases_.size() + cooldowns_.size();
  count += recent_closes_.size() + found_.size() + adoption_.size() + adoption_dead_.size() +
           step_times_.size() + bad_pairs_.size();
  count += latest_members_.size() + before_members_.size() + gone_.size() + by_node_.size();
  count += tally_.owing.size() + tally_.droppable.size();
  count += round(round_) + round(last_round_);
  for (const Incident& incident : incidents_) count += 1 + incident.blamed.size();
  return count;
}

JobView Job::Describe(Instant now) const {
  JobView view;
  view.job = record_.job;
  view.spec = record_.spec;
  view.lineage = record_.lineage;
  view.committed = committed_;
  view.loss = loss_;
  view.incidents = incidents_;
  view.reforms = reforms_;
  view.saves_aborted = checkpoints_.aborted();
  view.end = record_.end;
  if (record_.started) {
    view.generation = record_.started->generation;
    view.world_size = record_.started->world_size();
  }
  DescribePhase(view, now);
  DescribeWorkers(view, now);
  const auto& entries = checkpoints_.entries();
  for (auto it = entries.rbegin(); it != entries.rend(); ++it) {
    view.checkpoints.push_back({it->record.key, it->state, it->record.bytes, it->record.world_size,
                                it->record.directory, NoteOn(*it)});
  }
  return view;
}

// The wait of the round as of when it was last looked at. That was not looked for since only counts
// have changed.
Wait Job::PresentWait() const {
  Wait wait = *round_->wait;
  if (wait.reason == WaitReason::kReturn || wait.reason == WaitReason::kAnswers ||
      wait.reason == WaitReason::kMinWorkers) {
    const std::vector<QuorumMember> members = QuorumMembers(round_->looked);
    auto present =
        AwaitAnswers({round_->looked, round_->settle_until, record_.spec.min_workers, &members});
    if (present && present->reason == wait.reason) return std::move(*present);
  }
  for (QuorumMember& member : wait.whom) {
    if (const auto it = workers_.find(member.member); it != workers_.end()) {
      member.silent = std::max(Duration(), round_->looked - it->second.last_heard);
    }
  }
  return wait;
}

void Job::DescribePhase(JobView& view, Instant now) const {
  if (record_.end) {
    view.phase = JobPhase::kEnded;
  } else if (round_) {
    view.phase = JobPhase::kForming;
    view.generation = round_->number;
    if (round_->wait) {
      view.waiting_for = ToText(PresentWait(), now);
    } else if (round_->assigned) {
      view.waiting_for = WaitingToForm(now);
    }
  } else if (record_.started) {
    view.phase = JobPhase::kRunning;
    const auto away = std::ranges::count_if(record_.started->members, [&](const MemberEntry& e) {
      const auto it = workers_.find(e.member);
      return it == workers_.end() || !it->second.connected;
    });
    if (away > 0) {
      view.waiting_for = fmt::format("waiting for {} of {} members to reconnect", away,
                                     record_.started->world_size());
    }
  } else {
    view.phase = JobPhase::kWaiting;
    const auto able = std::ranges::count_if(workers_, [](const auto& entry) {
      return entry.second.connected && entry.second.able && !entry.second.drained;
    });
    view.waiting_for = fmt::format("waiting for workers: {} of at least {} (at most {}) are here",
                                   able, record_.spec.min_workers, record_.spec.max_workers);
    if (adopting_) view.waiting_for = "waiting for all members of the running generation to report";
  }
}

std::string Job::WaitingToForm(Instant now) const {
  std::string names;
  int missing = 0;
  for (const MemberEntry& entry : round_->record.members) {
    if (round_->formed.contains(entry.member)) continue;
    const auto it = workers_.find(entry.member);
    const bool forming = it != workers_.end() && it->second.beat.stage == Stage::kForming;
    const double silent =
        it == workers_.end() ? 0 : std::max(0.0, (now - it->second.last_heard).ToSeconds());
    if (++missing > 4) continue;
    names += fmt::format("{}worker {} ({}, last heard {:.1f} s ago)", names.empty() ? "" : ", ",
                         entry.member.worker.value(),
                         forming ? "forming" : "still in its last step", silent);
  }
  return fmt::format("waiting for {} of {} to form generation {}: {}", missing,
                     round_->record.world_size(), round_->number.value(), names);
}

void Job::DescribeWorkers(JobView& view, Instant now) const {
  const GenerationRecord* record = record_.started ? &*record_.started : nullptr;
  if (round_ && round_->assigned) record = &round_->record;
  for (const auto& [member, worker] : workers_) {
    WorkerView shown;
    shown.member = member;
    shown.node = worker.node;
    shown.pid = worker.pid;
    shown.address = worker.address;
    shown.connected = worker.connected;
    shown.state = worker.suspicion ? "suspect" : "alive";
    shown.last_heard = std::max(Duration(), now - worker.last_heard);
    shown.committed = worker.beat.committed;
    shown.stage = worker.beat.stage;
    shown.phase = worker.beat.phase;
    const MemberEntry* entry = record == nullptr ? nullptr : Find(*record, member);
    if (entry != nullptr) shown.rank = entry->rank;
    const bool full = record != nullptr && record->world_size() >= record_.spec.max_workers;
    shown.role = entry != nullptr ? "member"
                 : !worker.able   ? "starting"
                 : worker.drained ? "drained"
                 : worker.cooling ? "cooling"
                 : full           ? "spare"
                                  : "waiting";
    if (worker.cooling) {
      shown.note = fmt::format("cools down for {:.1f} s more: it failed {} times",
                               std::max(0.0, (worker.cooling->until - now).ToSeconds()),
                               worker.cooling->failures);
    }
    if (worker.drained) shown.note = "an operator has drained its place";
    view.workers.push_back(std::move(shown));
  }
  std::ranges::stable_sort(view.workers, [](const WorkerView& a, const WorkerView& b) {
    const auto key = [](const WorkerView& w) {
      return std::pair(w.rank.value() < 0, w.rank.value());
    };
    return key(a) < key(b);
  });
}

}  // namespace muster::coordinator
