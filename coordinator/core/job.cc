#include "coordinator/core/job.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/core/durable_state.h"

namespace muster::coordinator {

Job::Job(const Config& config, StoredJob stored, bool adopting, Effects* effects, Instant now)
    : config_(config),
      effects_(effects),
      record_(std::move(stored.record)),
      checkpoints_(std::move(stored.checkpoints)),
      adopting_(adopting),
      committed_(record_.committed) {
  if (adopting_) adopt_until_ = now + config_.autonomy + timing().lease;
  if (record_.end || !record_.started) return;
  // After a restart nobody is given up before a full lease has passed, and then its usual grace.
  for (const MemberEntry& entry : record_.started->members) {
    if (IsGone(record_, entry.member)) continue;
    Worker worker;
    worker.member = entry.member;
    worker.node = entry.node;
    worker.address = entry.address;
    worker.able = true;
    worker.order = next_order_++;
    worker.last_heard = now + timing().lease;
    worker.closed_at = now + timing().lease;
    worker.beat_changed = now;
    leases_.Watch(worker.closed_at, worker.member);
    workers_.emplace(entry.member, std::move(worker));
  }
  started_at_ = now;
  last_growth_ = now;
  last_commit_at_ = now;
  if (!record_.latest_started) BeginRound(Cause::kCoordinatorRestart, false, now);
}

Job::Worker* Job::BySession(SessionId session) {
  const auto it = by_session_.find(session);
  return it == by_session_.end() ? nullptr : FindWorker(it->second);
}

Job::Worker* Job::FindWorker(const Member& member) {
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
  if (record_.end) {
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
  RaiseHighest(record_, hello.highest);
  const bool known = hello.attachment ? Attach(session, hello, now) : Admit(session, hello, now);
  if (!known) return false;
  Worker& worker = *FindWorker(hello.member);
  Welcome(worker, peer, now);
  CatchUp(worker, hello, now);
  Evaluate(now);
  return true;
}

// A fresh incarnation, which has taken part in nothing yet (or reconnects while it waits).
bool Job::Admit(SessionId session, const Hello& hello, Instant now) {
  for (auto& [member, other] : workers_) {
    if (member.worker != hello.member.worker || member == hello.member) continue;
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
  worker.member = hello.member;
  if (fresh) worker.order = next_order_++;
  worker.node = hello.node;
  worker.pid = hello.pid;
  worker.address = hello.address;
  worker.able = worker.able || hello.able;
  if (worker.connected && worker.session != session) by_session_.erase(worker.session);
  worker.session = session;
  worker.connected = true;
  by_session_[session] = hello.member;
  if (fresh) {
    worker.beat_changed = now;
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
    const bool in_started = record_.started && Find(*record_.started, hello.member) != nullptr;
    const bool in_latest = record_.latest && Find(*record_.latest, hello.member) != nullptr;
    const Worker* worker = FindWorker(hello.member);
    const bool dead = IsGone(record_, hello.member) ||
                      (worker != nullptr && worker->suspicion && worker->suspicion->dead);
    if (attachment.record.lineage != record_.lineage || (!in_started && !in_latest) || dead) {
      return RefuseHello(
          session, Code::kFenced,
          fmt::format("the job went on without this incarnation of worker {} "
                      "(it was in generation {})",
                      hello.member.worker.value(), attachment.record.generation.value()),
          now);
    }
  }
  Worker& worker = workers_[hello.member];
  if (worker.order == 0) worker.order = next_order_++;
  if (worker.connected && worker.session != session) by_session_.erase(worker.session);
  worker.member = hello.member;
  worker.node = hello.node;
  worker.pid = hello.pid;
  worker.address = hello.address;
  worker.able = true;
  worker.session = session;
  worker.connected = true;
  by_session_[session] = hello.member;
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
void Job::CatchUp(Worker& worker, const Hello& hello, Instant now) {
  const bool attached = hello.attachment.has_value() && !adopting_;
  if (round_) {
    if (hello.highest > round_->number) {
      // It would take this round's messages for stale ones.
      BeginRound(Cause::kFormingFailed, true, now);
    } else if (!round_->assigned) {
      Send(worker, Interrupt{round_->number, round_->cause, std::string(CauseText(round_->cause))});
    } else if (Find(round_->record, worker.member) != nullptr) {
      Send(worker, Assign{round_->record});  // taken once; its answer is sent again by itself
    }
    return;
  }
  if (!attached || !record_.started) return;
  const Attachment& attachment = *hello.attachment;
  const Generation running = record_.started->generation;
  if (attachment.aborted_for > running || attachment.record.generation != running) {
    BeginRound(Cause::kCoordinatorRestart, true, now);
  } else if (attachment.stopped) {
    BeginRound(Cause::kGrowth, true, now);
  } else if (!attachment.started) {
    Send(worker, Start{running});
  } else if (wished_) {
    wished_ = false;  // asked again by CheckGrowth, of this one too
  }
}

void Job::Adopt(const Hello& hello, Instant now) {
  adoption_[hello.member] = *hello.attachment;
  Publish(
      EventKind::kAdopted, now,
      fmt::format("worker {} reports generation {}; this coordinator's store knew nothing of it",
                  hello.member.worker.value(), hello.attachment->record.generation.value()),
      hello.member);
}

// Takes over the greatest generation that any worker named, once all its members are here.
void Job::TryAdopt(Instant now) {
  const auto greatest = std::ranges::max_element(
      adoption_, {}, [](const auto& entry) { return entry.second.record.generation; });
  if (greatest == adoption_.end()) return;
  const GenerationRecord running = greatest->second.record;
  const bool all = std::ranges::all_of(running.members, [&](const MemberEntry& entry) {
    const auto it = adoption_.find(entry.member);
    return it != adoption_.end() && it->second.record.generation == running.generation;
  });
  if (!all && now < adopt_until_) return;
  adopting_ = false;
  record_.lineage = running.lineage;
  record_.latest = running;
  record_.started = running;
  record_.latest_started = true;
  bool broken = !all;
  for (const MemberEntry& entry : running.members) {
    const auto it = adoption_.find(entry.member);
    if (it == adoption_.end()) {
      record_.gone.push_back(entry.member);
      continue;
    }
    committed_ = std::max(committed_, it->second.committed);
    broken = broken || it->second.aborted_for > running.generation || it->second.stopped ||
             !it->second.started;
  }
  adoption_.clear();
  started_at_ = now;
  last_growth_ = now;
  last_commit_at_ = now;
  Persist();
  Publish(EventKind::kAdopted, now,
          fmt::format("adopted generation {} with {} workers at step {}",
                      running.generation.value(), running.world_size(), committed_.value()));
  if (broken) BeginRound(Cause::kCoordinatorRestart, true, now);
}

void Job::ForceAdopt(Instant now) {
  if (!adopting_) return;
  adopt_until_ = now;
  Evaluate(now);
}

void Job::OnClosed(SessionId session, Instant now) {
  if (const auto it = launchers_.find(session); it != launchers_.end()) {
    const NodeName node = it->second;
    launchers_.erase(it);
    std::erase_if(attested_, [&](const auto& entry) { return entry.second.first == node; });
    for (const auto& [member, worker] : workers_) {
      if (worker.node == node && !worker.connected) leases_.Watch(now, member);
    }
    Evaluate(now);
    return;
  }
  Worker* worker = BySession(session);
  by_session_.erase(session);
  if (worker == nullptr || worker->session != session) return;
  worker->connected = false;
  worker->closed_at = now;
  recent_closes_.push_back(now);
  leases_.Watch(now + timing().grace, worker->member);
  const auto accused = [&](const Blame& blame) { return blame.member == worker->member; };
  if (round_ && !worker->suspicion && !LauncherSaysAlive(*worker) &&
      std::ranges::any_of(round_->incident.blamed, accused)) {
    // Its data connection failed as well as its session: two witnesses, no grace needed.
    const std::string evidence = "its session closed, and " +
                                 std::ranges::find_if(round_->incident.blamed, accused)->evidence;
    Suspect(*worker, Cause::kConnectionLost, evidence, false, false, now);
  }
  Evaluate(now);
}

void Job::OnLagged(Duration by, Instant now) {
  for (auto& [member, worker] : workers_) {
    worker.last_heard = std::min(now, worker.last_heard + by);
    if (!worker.connected) worker.closed_at = std::min(now, worker.closed_at + by);
  }
}

void Job::EndJob(EndKind kind, std::string reason, Instant now) {
  if (record_.end) return;
  record_.end = End{kind, committed_, std::move(reason)};
  round_.reset();
  Persist();
  const Ended ended{*record_.end, false};
  Broadcast(ended);
  for (const auto& [session, node] : launchers_) effects_->sends.push_back({session, ended});
  Publish(EventKind::kEnded, now, record_.end->reason);
}

}  // namespace muster::coordinator
