#include "coordinator/core/job.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/core/durable_state.h"
#include "protocol/mutants.h"

namespace muster::coordinator {

Job::Job(const Config& config, StoredJob stored, bool adopting, Prng* prng, Effects* effects,
         Instant now)
    : config_(config),
      prng_(prng),
      effects_(effects),
      record_(std::move(stored.record)),
      checkpoints_(std::move(stored.checkpoints)),
      adopting_(adopting),
      committed_(record_.committed) {
  if (adopting) StartAdopting(now);
  if (record_.end && !Planted(Mutant::kEndIgnored)) return;
  if (record_.latest) latest_members_ = RosterOf(*record_.latest);
  SetStarted(record_.started, now);
  AwaitMembers(now);
  if (record_.started && !record_.latest_started) {
    BeginRound(Cause::kCoordinatorRestart, false, now);
  }
}

void Job::SetStarted(std::optional<GenerationRecord> record, Instant now) {
  record_.started = std::move(record);
  members_ = record_.started ? RosterOf(*record_.started) : Roster();
  RecountAll();
  if (!record_.started) return;
  started_at_ = last_growth_ = last_commit_at_ = next_progress_check_ = now;
  stop_until_ = Instant::Never();
  steps_in_generation_ = 0;
}

// After a restart nobody is given up before a full lease has passed, and then its usual grace.
void Job::AwaitMembers(Instant now) {
  if (!record_.started) return;
  for (const MemberEntry& entry : record_.started->members) {
    if (Gone(entry.member) || workers_.contains(entry.member)) continue;
    Worker worker;
    worker.member = entry.member;
    worker.node = entry.node;
    worker.address = entry.address;
    worker.able = worker.took_part = true;
    worker.order = next_order_++;
    worker.last_heard = now + timing().lease;
    worker.closed_at = now + timing().lease;
    if (Planted(Mutant::kRestartGivesUpAtOnce)) {
      worker.last_heard = worker.closed_at = now + Duration::Nanos(-timing().lease.nanos());
    }
    worker.beat_changed = now;
    leases_.Watch(worker.closed_at, worker.member);
    by_node_[worker.node].insert(worker.member);
    Recount(workers_.emplace(entry.member, std::move(worker)).first->second);
  }
}

Job::Worker* Job::BySession(SessionId session) {
  const auto it = by_session_.find(session);
  return it == by_session_.end() ? nullptr : it->second;
}

Job::Worker* Job::FindWorker(const Member& member) {
  if (Planted(Mutant::kAssignByName)) {
    for (auto& [other, worker] : workers_) {
      if (other.worker == member.worker && worker.connected) return &worker;
    }
  }
  const auto it = workers_.find(member);
  return it == workers_.end() ? nullptr : &it->second;
}

void Job::Send(const Worker& worker, const Message& message) {
  if (worker.connected) effects_->sends.push_back({worker.session, message});
}

void Job::Broadcast(const Message& message) {
  for (const auto& [member, worker] : workers_) Send(worker, message);
}

void Job::Persist() {
  record_.committed = committed_;
  effects_->persist.emplace_back(PutJob{record_});
}

void Job::Publish(EventKind kind, Instant now, std::string detail, std::optional<Member> member) {
  Event event;
  event.job = record_.job;
  event.kind = kind;
  event.at = now;
  event.generation = round_            ? round_->number
                     : record_.started ? record_.started->generation
                                       : Generation();
  event.step = committed_;
  event.member = std::move(member);
  event.detail = std::move(detail);
  effects_->events.push_back(std::move(event));
}

bool Job::RefuseHello(SessionId session, Code code, std::string reason, Instant now) {
  Publish(EventKind::kRefused, now, reason);
  effects_->sends.push_back({session, Refused{code, std::move(reason)}});
  return false;
}

bool Job::OnLauncherHello(SessionId session, const LauncherHello& hello, Instant now) {
  if (record_.end) {
    effects_->sends.push_back({session, Ended{*record_.end, false}});
    return false;
  }
  launchers_[session] = hello.node;
  muster::Welcome welcome;
  welcome.lineage = record_.lineage;
  welcome.lease = timing().lease;
  welcome.heartbeat_interval = timing().heartbeat_interval;
  welcome.autonomy = config_.autonomy;
  effects_->sends.push_back({session, welcome});
  Evaluate(now);
  return true;
}

bool Job::OnHello(SessionId session, const Hello& hello, const std::string& peer, Instant now) {
  if (record_.end && !Planted(Mutant::kEndIgnored)) {
    effects_->sends.push_back({session, Ended{*record_.end, false}});
    return false;
  }
  if (const std::string difference = DifferenceOf(record_.spec, hello.spec); !difference.empty()) {
    return RefuseHello(
        session, Code::kInvalidArgument,
        fmt::format("job {} runs with another spec ({}): start this worker with the same options, "
                    "or under another job name",
                    record_.job.value(), difference),
        now);
  }
  // No generation was ever decided here, but there is one: the store is not the one that knew it.
  const bool none = !record_.latest && !record_.started;
  if (!adopting_ && none && (hello.attachment || hello.highest > record_.highest)) {
    StartAdopting(now);
  }
  RaiseHighest(record_, hello.highest);
  if (hello.found && none) NoteFound(hello, now);
  const bool fresh = FindWorker(hello.member) == nullptr;
  const bool known = hello.attachment ? Attach(session, hello, now) : Admit(session, hello, now);
  if (!known) return false;
  Worker& worker = *FindWorker(hello.member);
  Welcome(worker, peer, now);
  CatchUp(worker, hello, fresh, now);
  Recount(worker);
  Evaluate(now);
  return true;
}

void Job::Connect(Worker& worker, SessionId session, const Hello& hello) {
  if (worker.order == 0) worker.order = next_order_++;
  if (worker.connected && worker.session != session) {
    // The worker has given up that connection; the other end of it may not know yet.
    by_session_.erase(worker.session);
    effects_->closes.push_back(worker.session);
  }
  if (const auto node = by_node_.find(worker.node); node != by_node_.end()) {
    node->second.erase(hello.member);
    if (node->second.empty()) by_node_.erase(node);
  }
  by_node_[hello.node].insert(hello.member);
  worker.member = hello.member;
  worker.node = hello.node;
  worker.pid = hello.pid;
  worker.address = hello.address;
  worker.able = worker.able || hello.able || hello.attachment.has_value();
  worker.session = session;
  worker.connected = true;
  by_session_[session] = &worker;
  Recount(worker);
}

// A fresh incarnation, which has taken part in nothing yet (or reconnects while it waits).
bool Job::Admit(SessionId session, const Hello& hello, Instant now) {
  for (auto at = workers_.lower_bound({hello.member.worker, Incarnation()});
       at != workers_.end() && at->first.worker == hello.member.worker; ++at) {
    auto& [member, other] = *at;
    if (member == hello.member) continue;
    if (other.suspicion && other.suspicion->dead) continue;
    if (other.node == hello.node && other.pid == hello.pid && hello.pid != 0) {
      Suspect(other, Cause::kConnectionLost, "its process took a fresh incarnation", true, true,
              now);
      continue;
    }
    if (hello.explicit_name && other.connected && !other.suspicion) {
      return RefuseHello(
          session, Code::kAlreadyExists,
          fmt::format("worker name {} is in use by process {} on node {}, heard {:.1f} s ago: end "
                      "that process or choose another name",
                      member.worker.value(), other.pid, other.node.value(),
                      (now - other.last_heard).ToSeconds()),
          now);
    }
  }
  auto [it, fresh] = workers_.try_emplace(hello.member);
  Worker& worker = it->second;
  if (!fresh && worker.suspicion && worker.suspicion->dead) {
    return RefuseHello(session, Code::kFenced, "this incarnation was declared dead", now);
  }
  Connect(worker, session, hello);
  if (fresh) {
    worker.beat_changed = now;
    if (Planted(Mutant::kJoinWindowRearmed) && quorum_since_) quorum_since_ = now;
    if (Planted(Mutant::kSettleRearmed) && round_) round_->settle_until = now + config_.settle;
    const Slot slot{hello.member.worker, hello.node};
    worker.drained = IsDrained(slot.worker, slot.node);
    cooldowns_.NoteReturn(slot, hello.pid, cooldown_rules(), now);
    SetCooling(slot, now);
    Publish(EventKind::kWorkerJoined, now,
            fmt::format("worker {} (pid {} on node {}) joined", hello.member.worker.value(),
                        hello.pid, hello.node.value()),
            hello.member);
  }
  return true;
}

// A worker that was in a generation comes back.
bool Job::Attach(SessionId session, const Hello& hello, Instant now) {
  const Attachment& attachment = *hello.attachment;
  RaiseHighest(record_, std::max(attachment.record.generation, attachment.aborted_for));
  if (adopting_) {
    Adopt(hello, now);
  } else {
    const bool in_started = IsMember(hello.member);
    const bool in_latest = latest_members_.contains(hello.member);
    const Worker* worker = FindWorker(hello.member);
    const bool dead =
        Gone(hello.member) || (worker != nullptr && worker->suspicion && worker->suspicion->dead);
    const bool ours = attachment.record.lineage == record_.lineage ||
                      (in_started && attachment.record.lineage == record_.started->lineage);
    const bool fences = !Planted(Mutant::kEvictedNotFenced);
    if (fences && (!ours || (!in_started && !in_latest) || dead)) {
      return RefuseHello(
          session, Code::kFenced,
          fmt::format("the job went on without this incarnation of worker {} "
                      "(it was in generation {})",
                      hello.member.worker.value(), attachment.record.generation.value()),
          now);
    }
    if (!round_ && in_started && attachment.started &&
        attachment.record.generation == record_.started->generation) {
      // Steps since the last record; those of a broken generation are for the decision to count.
      committed_ = std::max(committed_, attachment.committed);
    }
  }
  Worker& worker = workers_[hello.member];
  worker.took_part = true;
  Connect(worker, session, hello);
  // The coordinator that had asked it may be gone.
  if (!adopting_ && IsDrained(hello.member.worker, hello.node)) {
    AskToLeave(worker, "drained by an operator", {}, now);
  }
  return true;
}

void Job::Welcome(Worker& worker, const std::string& peer, Instant now) {
  muster::Welcome welcome;
  welcome.lineage = record_.lineage;
  welcome.lease = timing().lease;
  welcome.heartbeat_interval = timing().heartbeat_interval;
  welcome.autonomy = config_.autonomy;
  welcome.forming_timeout = config_.forming_timeout;
  // The coordinator judges progress; the data plane's own deadline is only the last resort.
  welcome.progress_timeout = config_.first_step_timeout + config_.progress_timeout;
  welcome.observed_address = peer;
  Send(worker, welcome);
  // An address without a host is completed by what the coordinator sees of the connection.
  if (worker.address.starts_with(':')) {
    const bool v6 = peer.find(':') != std::string::npos;
    worker.address = (v6 ? "[" + peer + "]" : peer) + worker.address;
  }
  Heard(worker, now);
  leases_.Watch(now + timing().lease, worker.member);
}

// What a worker may have missed while it was not connected.
void Job::CatchUp(Worker& worker, const Hello& hello, bool fresh, Instant now) {
  if (round_) {
    CatchUpRound(worker, hello, fresh, now);
    return;
  }
  if (!hello.attachment || adopting_ || !record_.started) return;
  const Attachment& attachment = *hello.attachment;
  const Generation running = record_.started->generation;
  // It has given this generation up, or is about to: it was interrupted for a later one.
  const bool given_up = std::max(hello.highest, attachment.aborted_for) > running ||
                        attachment.record.generation != running;
  if (given_up && !Planted(Mutant::kRestartKeepsGeneration)) {
    BeginRound(Cause::kCoordinatorRestart, true, now);
    return;
  }
  if (!Planted(Mutant::kStopForgotten)) worker.stopped = attachment.started && attachment.stopped;
  if (!attachment.started) Send(worker, Start{running});
  wished_ = false;  // asked again by CheckGrowth, of this one too
}

// The worker repeats of its own accord what it has to say; here it gets what it may not have heard.
void Job::CatchUpRound(Worker& worker, const Hello& hello, bool fresh, Instant now) {
  const Generation number = round_->number;
  // Of a generation whose start it has missed it holds the state all the same: once it knows.
  const bool missed = record_.started && record_.latest_started && hello.attachment &&
                      !hello.attachment->started &&
                      hello.attachment->record.generation == record_.started->generation;
  if (missed) Send(worker, Start{record_.started->generation});
  // It takes no interrupt that is not above all that it has seen: in a former life, with `fresh`.
  if (hello.highest > number || (fresh && !hello.attachment && hello.highest == number)) {
    BeginRound(round_->cause, true, now);
    return;
  }
  if (!round_->assigned) {
    if (Planted(Mutant::kLowerAssignAccepted) && record_.latest && !record_.latest_started) {
      Send(worker, Assign{*record_.latest});  // what it may have missed, of no use any more
    }
    Ask(worker, now);
    return;
  }
  const bool has_it = hello.attachment && hello.attachment->record.generation == number;
  if (!has_it && latest_members_.contains(worker.member)) Send(worker, Assign{round_->record});
  SendGroupId(worker);
}

void Job::OnClosed(SessionId session, Instant now) {
  if (const auto it = launchers_.find(session); it != launchers_.end()) {
    const NodeName node = it->second;
    launchers_.erase(it);
    if (const auto said = attested_.find(node); said != attested_.end()) {
      attested_count_ -= said->second.size();
      attested_.erase(said);
    }
    if (const auto there = by_node_.find(node); there != by_node_.end()) {
      for (const Member& member : there->second) {
        if (!workers_.at(member).connected) leases_.Watch(now, member);
      }
    }
    Evaluate(now);
    return;
  }
  Worker* worker = BySession(session);
  by_session_.erase(session);
  if (worker == nullptr || worker->session != session) return;
  if (record_.end) {  // it has heard of the end and is gone
    Forget(worker->member);
    return;
  }
  worker->connected = false;
  worker->closed_at = now;
  Recount(*worker);
  recent_closes_.push_back(now);
  leases_.Watch(now + timing().grace, worker->member);
  if (round_ && round_->accused.contains(worker->member) && !LauncherSaysAlive(*worker)) {
    // Its data connection failed as well as its session: two witnesses, no grace needed.
    Suspect(*worker, Cause::kConnectionLost, "its session closed after its data connection failed",
            false, false, now);
  }
  Evaluate(now);
}

void Job::OnLagged(Duration by, Instant now) {
  const auto credit = [&](Instant& at) {
    if (at < now) at = std::min(now, at + by);
  };
  // Nobody could answer what had not left yet.
  if (round_ && round_->deadline != Instant::Never()) round_->deadline = round_->deadline + by;
  if (round_) credit(round_->first_begun);  // patience with the silent counts from there
  for (auto& [member, worker] : workers_) {
    credit(worker.last_heard);
    credit(worker.asked);
    credit(worker.beat_changed);
    if (!worker.connected) credit(worker.closed_at);
    Recount(worker);
  }
}

void Job::EndJob(EndKind kind, std::string reason, Instant now) {
  if (record_.end) return;
  record_.end = End{kind, committed_, std::move(reason)};
  round_.reset();
  RecountAll();
  Persist();
  const Ended ended{*record_.end, false};
  Broadcast(ended);
  for (const auto& [session, node] : launchers_) effects_->sends.push_back({session, ended});
  Publish(EventKind::kEnded, now, record_.end->reason);
}

}  // namespace muster::coordinator
