// The coordinator's process, its store, and the launchers.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "chaos/sim/cluster.h"
#include "protocol/codec.h"

namespace muster::sim {

void Cluster::StartCoordinator() {
  ++coordinator_life_;
  coordinator::Config config;
  config.growth_interval = Duration::Seconds(1);
  config.join_window = Duration::Seconds(1);
  config.autonomy = Duration::Seconds(40);
  config.first_step_timeout = Duration::Seconds(10);
  config.progress_timeout = Duration::Seconds(5);
  config.max_patience = Duration::Seconds(5);
  config.checkpoint_timeout = Duration::Seconds(5);
  config.forming_timeout = Duration::Seconds(5);
  config.max_forming_attempts = 1000;
  std::vector<coordinator::StoredJob> stored;
  for (const auto& [name, record] : stored_jobs_) stored.push_back({record, stored_checkpoints_});
  Trace("coordinator starts");
  coordinator_ = std::make_unique<coordinator::Coordinator>(config, prng_.Next(), std::move(stored),
                                                            events_.now());
  DrainCoordinator();
  for (const auto& p : processes_) {
    if (p->alive) Attest(*p, true);
  }
}

void Cluster::CrashCoordinator() {
  if (!coordinator_) return;
  Trace("coordinator crashes");
  ++coordinator_life_;
  coordinator_.reset();
  coordinator_timer_ = Instant::Never();
  by_session_.clear();
  launcher_session_.clear();
  for (const auto& p : processes_) {
    if (!p->alive || p->connection == SessionId()) continue;
    p->connection = SessionId();
    Later(*p, Delay(), [this, &p = *p, number = p->dial] {
      Tell(p, worker::Disconnected{number, Unavailable("reset")});
    });
  }
}

void Cluster::Deliver(const coordinator::Input& input) {
  coordinator_->Handle(input, events_.now());
  DrainCoordinator();
}

void Cluster::DrainCoordinator() {
  coordinator::Effects effects = coordinator_->TakeEffects();
  ArmCoordinator();
  if (effects.empty()) return;
  // Durable after a while; only then is anything sent. A crash in between forgets all of it.
  const Duration sync = effects.persist.empty() ? Duration() : Duration::Micros(300);
  auto shared = std::make_shared<coordinator::Effects>(std::move(effects));
  events_.After(sync, [this, shared, life = coordinator_life_] {
    if (life == coordinator_life_ && coordinator_) Carry(std::move(*shared));
  });
}

void Cluster::Carry(coordinator::Effects effects) {
  for (const auto& persist : effects.persist) Store(persist);
  for (const coordinator::Event& event : effects.events) {
    Trace(fmt::format("  * {} {}", coordinator::NameOf(event.kind), event.detail));
    if (event.kind == coordinator::EventKind::kStarted) ++reforms_;
    if (event.kind == coordinator::EventKind::kRolledBack) ++rollbacks_;
    if (event.kind == coordinator::EventKind::kEnded) ended_ = true;
  }
  for (const coordinator::Send& send : effects.sends) {
    const auto it = by_session_.find(send.to);
    if (it == by_session_.end()) continue;
    Process& p = *processes_[static_cast<std::size_t>(it->second)];
    if (p.cut_off) continue;
    Trace(fmt::format("  {} -> w{}", NameOf(send.message), p.index));
    Later(p, options_.delay, [this, &p, session = send.to, message = send.message] {
      if (p.connection != session) return;
      Tell(p, worker::Received{p.dial, message});
      Pump(p);
    });
  }
  for (const SessionId session : effects.closes) {
    const auto it = by_session_.find(session);
    if (it == by_session_.end()) continue;
    Process& p = *processes_[static_cast<std::size_t>(it->second)];
    Later(p, options_.delay + Duration::Micros(1), [this, &p, session] {
      if (p.connection != session) return;
      by_session_.erase(session);
      p.connection = SessionId();
      Tell(p, worker::Disconnected{p.dial, Status()});
    });
  }
}

void Cluster::Store(const coordinator::Persist& persist) {
  if (const auto* put = std::get_if<coordinator::PutJob>(&persist)) {
    // Through the codec, as the real store does.
    auto decoded = DecodeJobRecord(EncodeJobRecord(put->record));
    if (!decoded.ok())
      return ledger_.Violate("a job record does not decode: " + decoded.status().message());
    ledger_.OnRecord(*decoded);
    stored_jobs_[put->record.job] = std::move(*decoded);
  } else if (const auto* entry = std::get_if<coordinator::PutCheckpoint>(&persist)) {
    const auto it = std::ranges::find_if(stored_checkpoints_, [&](const CheckpointEntry& e) {
      return e.record.key == entry->entry.record.key;
    });
    if (it == stored_checkpoints_.end()) {
      stored_checkpoints_.push_back(entry->entry);
    } else {
      *it = entry->entry;
    }
  } else if (const auto* drop = std::get_if<coordinator::DropCheckpoint>(&persist)) {
    std::erase_if(stored_checkpoints_,
                  [&](const CheckpointEntry& e) { return e.record.key == drop->key; });
  }
}

void Cluster::ArmCoordinator() {
  const Instant at = coordinator_->NextDeadline();
  if (at == Instant::Never() || (coordinator_timer_ <= at && coordinator_timer_ > events_.now())) {
    return;
  }
  coordinator_timer_ = std::max(at, events_.now() + Duration::Micros(1));
  events_.At(coordinator_timer_, [this, life = coordinator_life_, when = coordinator_timer_] {
    if (life != coordinator_life_ || !coordinator_ || when != coordinator_timer_) return;
    coordinator_timer_ = Instant::Never();
    Deliver(coordinator::Tick{});
  });
}

void Cluster::Attest(const Process& p, bool alive) {
  if (!options_.launchers || !coordinator_) return;
  if (!launcher_session_.contains(p.index)) {
    const SessionId session(next_session_++);
    launcher_session_[p.index] = session;
    LauncherHello hello;
    hello.job = JobName("sim");
    hello.node = NodeName(fmt::format("n{}", p.index));
    Deliver(coordinator::Received{session, hello, "10.0.0.9"});
  }
  muster::Attest attest;
  attest.worker = WorkerId(fmt::format("w{}", p.index));
  attest.pid = p.pid;
  attest.alive = alive;
  attest.detail = alive ? "" : "killed by signal 9 (SIGKILL)";
  events_.After(Delay(),
                [this, attest, session = launcher_session_[p.index], life = coordinator_life_] {
                  if (coordinator_ && life == coordinator_life_) {
                    Deliver(coordinator::Received{session, attest, "10.0.0.9"});
                  }
                });
}

}  // namespace muster::sim
