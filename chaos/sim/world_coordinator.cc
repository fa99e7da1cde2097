// The coordinator's process, its store, and the launchers.
#include <fmt/format.h>

#include <algorithm>

#include "chaos/sim/trace.h"
#include "chaos/sim/world.h"
#include "protocol/codec.h"

namespace muster::sim {

void World::StartCoordinator() {
  ++coordinator_life_;
  std::vector<coordinator::StoredJob> stored;
  for (const auto& [name, record] : stored_jobs_) stored.push_back({record, stored_checkpoints_});
  Trace("coordinator starts");
  coordinator_since_ = now_;
  knew_nothing_ = stored_jobs_.empty();
  knows_generation_ = !knew_nothing_;
  took_found_ = false;
  const std::uint64_t seed =
      exhaustive_ ? static_cast<std::uint64_t>(coordinator_life_) : prng_.Next();
  coordinator_ = std::make_shared<coordinator::Coordinator>(config_, seed, std::move(stored), now_);
  DrainCoordinator();
  const std::map<int, SessionId> launchers = std::exchange(launchers_, {});
  for (const auto& [node, session] : launchers) StartLauncher(node);
}

void World::CrashCoordinator(bool lose_store) {
  if (!coordinator_) return;
  Trace("coordinator crashes{}", lose_store ? "; its store is lost" : "");
  // The batch that is being synced is durable or not: nobody has been told of it.
  if (offered_ > 0 && Chance(1, 2)) {
    for (std::size_t i = 0; i < offered_; ++i) {
      for (const auto& persist : unsynced_[i].persist) Store(persist);
    }
  }
  unsynced_.clear();
  offered_ = 0;
  for (const SessionId id : network_.All()) {
    SendDown(id, WorkerHearsClose{id});
    network_.Forget(id);
  }
  ++coordinator_life_;
  coordinator_.reset();
  coordinator_timer_ = Instant::Never();
  coordinator_missed_.clear();
  coordinator_paused_ = 0;
  held_up_.clear();
  if (!lose_store) return;
  store_lost_ = true;
  stored_jobs_.clear();
  stored_checkpoints_.clear();
  safe_checkpoints_.OnStoreLost();
  one_generation_.OnStoreLost();
  chain_.OnStoreLost();
  step_chain_.OnStoreLost();
  // With it went what it knew of everybody.
  for (Process& p : processes_) p.well_since = now_ + Duration::Seconds(60);
}

// Copies of a world share their coordinator until one of them changes it.
void World::OwnCoordinator() {
  if (coordinator_.use_count() > 1) coordinator_ = coordinator_->Clone();
}

void World::Deliver(const coordinator::Input& input) {
  OwnCoordinator();
  coordinator_->Handle(input, now_);
  DrainCoordinator();
}

void World::DrainCoordinator() {
  OwnCoordinator();
  coordinator::Effects effects = coordinator_->TakeEffects();
  ArmCoordinator();
  if (!effects.empty()) unsynced_.push_back(std::move(effects));
  // In order: whatever comes after something that has to be durable waits for it.
  while (!unsynced_.empty() && offered_ == 0 && unsynced_.front().persist.empty()) {
    const coordinator::Effects ready = std::move(unsynced_.front());
    unsynced_.pop_front();
    Carry(ready);
  }
  if (unsynced_.empty() || offered_ > 0) return;
  offered_ = unsynced_.size();
  Later(Pending::kCoordinator, Duration::Micros(100) + Delay(), Synced{});
}

void World::OnSynced() {
  const std::size_t synced = std::exchange(offered_, 0);
  for (std::size_t i = 0; i < synced; ++i) {
    for (const auto& persist : unsynced_[i].persist) Store(persist);
  }
  for (std::size_t i = 0; i < synced; ++i) {
    const coordinator::Effects ready = std::move(unsynced_.front());
    unsynced_.pop_front();
    Carry(ready);
  }
  DrainCoordinator();
}

void World::Carry(const coordinator::Effects& effects) {
  const auto job = stored_jobs_.find(JobName("sim"));
  const JobRecord* stored = job == stored_jobs_.end() ? nullptr : &job->second;
  for (const coordinator::Send& send : effects.sends) {
    durable_decisions_.OnSend(send.message, stored, stored_checkpoints_, verdict_);
    SendDown(send.to, ToWorker{send.to, send.message});
    const bool said = std::holds_alternative<Ack>(send.message);
    const sim::Session* session = network_.Find(send.to);
    if (!said && session != nullptr) Point(session->process);
    if (!std::holds_alternative<Welcome>(send.message) || stored == nullptr || stored->latest) {
      continue;
    }
    const auto here = std::ranges::count_if(
        processes_, [](const Process& p) { return p.alive && p.connection != SessionId(); });
    if (here >= options_.min_workers && !quorum_) quorum_ = now_;
  }
  for (const SessionId id : effects.closes) {
    SendDown(id, WorkerHearsClose{id});
    Later(Pending::kCoordinator, Delay(4), CoordinatorHearsClose{id});
  }
  for (const coordinator::Event& event : effects.events) Publish(event);
}

void World::Publish(const coordinator::Event& event) {
  Trace("  * {} {}", coordinator::NameOf(event.kind), event.detail);
  if (event.kind == coordinator::EventKind::kStarted) {
    ++result_.reforms;
    if (event.incident) reforming_.OnStarted(*event.incident, spec_, verdict_);
  }
  const bool struck = event.kind == coordinator::EventKind::kCheckpointVoid &&
                      event.detail.find("struck out") != std::string::npos;
  // Which end of a link is bad nobody can know, nor whether a peer's end was the link's: with
  // trouble about, that choice may hit one with whom nothing is wrong.
  if (event.kind == coordinator::EventKind::kWorkerSuspected && event.member &&
      event.detail.find("its links failed") != std::string::npos) {
    const bool trouble = std::ranges::any_of(
        processes_, [&](const Process& p) { return HealthOf(p).well_since != Instant(); });
    for (Process& p : processes_) {
      const bool it = p.session && p.session->member() == *event.member;
      if (it && trouble) p.well_since = std::max(p.well_since, now_);
    }
  }
  // A good place for the next fault.
  if (struck && faults_left_ > 0 && options_.dense) points_until_fault_ = 1;
  for (const CheckpointEntry& entry : stored_checkpoints_) {
    const bool it = struck && event.detail.starts_with(entry.record.directory);
    if (it) safe_checkpoints_.OnStruckOut(entry.record.key);
  }
  if (event.kind == coordinator::EventKind::kRolledBack) ++result_.rollbacks;
}

void World::Store(const coordinator::Persist& persist) {
  if (const auto* put = std::get_if<coordinator::PutJob>(&persist)) {
    // Through the codec, as the real store does.
    auto decoded = DecodeJobRecord(EncodeJobRecord(put->record));
    if (!decoded.ok()) {
      return verdict_.Violate("S6", "a job record does not decode: " + decoded.status().message());
    }
    StoreJob(*decoded);
    stored_jobs_[put->record.job] = std::move(*decoded);
  } else if (const auto* entry = std::get_if<coordinator::PutCheckpoint>(&persist)) {
    StoreCheckpoint(entry->entry);
  } else if (const auto* drop = std::get_if<coordinator::DropCheckpoint>(&persist)) {
    std::erase_if(stored_checkpoints_,
                  [&](const CheckpointEntry& e) { return e.record.key == drop->key; });
    safe_checkpoints_.OnLess(stored_checkpoints_, chain_, disk_, verdict_);
  }
}

void World::StoreJob(const JobRecord& record) {
  chain_.OnRecord(record);
  one_generation_.OnRecord(record, verdict_);
  // The first generation that a coordinator with an empty store knows was reported to it, unless it
  // is a new job's first one.
  const bool first = knew_nothing_ && !knows_generation_ && record.latest;
  const bool adopts = first && !took_found_ && record.highest > Generation(1);
  if (first) CheckStartedOver(record);
  if (record.latest) knows_generation_ = true;
  const bool waited = now_ - coordinator_since_ >= config_.autonomy;
  one_generation_.OnDecision(record, Standings(), adopts, waited, verdict_);
  if (record.latest_started) group_ids_.OnStarted(spec_, *record.latest, verdict_);
  step_chain_.OnRecord(record, chain_, verdict_);
  safe_checkpoints_.OnRecord(record, stored_checkpoints_, chain_, verdict_);
  reforming_.OnRecord(record, WellHolders(record), kElements, verdict_);
  if (record.latest && quorum_) {
    if (!faulted_) reforming_.OnFirstFormation(*quorum_, now_, verdict_);
    quorum_.reset();
  }
  if (!record.end) return;
  if (record.end->kind == EndKind::kFailed) {
    verdict_.Violate("L1", "the job was given up: " + record.end->reason);
  }
  liveness_.OnEnd();
}

void World::StoreCheckpoint(const CheckpointEntry& entry) {
  const auto it = std::ranges::find_if(stored_checkpoints_, [&](const CheckpointEntry& e) {
    return e.record.key == entry.record.key;
  });
  const bool announces =
      entry.state == CheckpointState::kAnnounced &&
      (it == stored_checkpoints_.end() || it->state != CheckpointState::kAnnounced);
  if (entry.state == CheckpointState::kDeleting && it != stored_checkpoints_.end() &&
      it->state == CheckpointState::kAnnounced) {
    safe_checkpoints_.OnRetired(*it, stored_checkpoints_, spec_, chain_, verdict_);
  }
  if (entry.state == CheckpointState::kComplete) {
    safe_checkpoints_.OnComplete(entry.record, chain_, disk_, verdict_);
    chain_.OnSaved(entry.record);
  }
  if (announces && it == stored_checkpoints_.end() && entry.record.world_size > 0) {
    took_found_ = true;
    chain_.OnFound(entry.record);
  }
  if (it == stored_checkpoints_.end()) {
    stored_checkpoints_.push_back(entry);
  } else {
    *it = entry;
  }
  // One that was taken over from a worker's word may be gone by now: it is a last resort.
  if (entry.record.world_size == 0) return;
  if (announces) safe_checkpoints_.OnAnnounced(entry, chain_, disk_, verdict_);
  safe_checkpoints_.OnLess(stored_checkpoints_, chain_, disk_, verdict_);
}

void World::ArmCoordinator() {
  if (exhaustive_) return;  // the explorer asks the coordinator
  const Instant at = coordinator_->NextDeadline();
  if (at == Instant::Never() || (coordinator_timer_ <= at && coordinator_timer_ > now_)) return;
  coordinator_timer_ = std::max(at, now_ + Duration::Micros(1));
  queue_.Add(coordinator_timer_, {Pending::kCoordinator, coordinator_life_, CoordinatorTimer{}});
}

// --- Launchers -----------------------------------------------------------------------------------

// Connects (again) and says which of its workers live.
void World::StartLauncher(int node) {
  if (!options_.launchers || !coordinator_) return;
  const SessionId id = network_.Open(-1, node);
  launchers_[node] = id;
  LauncherHello hello;
  hello.job = JobName("sim");
  hello.node = NodeName(fmt::format("n{}", node));
  network_.Find(id)->last_up = now_ + Delay();
  queue_.Add(network_.Find(id)->last_up,
             {Pending::kCoordinator, coordinator_life_, ToCoordinator{id, hello}});
  for (const Process& p : processes_) {
    if (p.node == node && p.alive) Attest(p, true);
  }
}

void World::Attest(const Process& p, bool alive) {
  const auto it = launchers_.find(p.node);
  if (it == launchers_.end() || !coordinator_) return;
  sim::Session* session = network_.Find(it->second);
  if (session == nullptr) return;
  muster::Attest attest;
  attest.worker = WorkerId(fmt::format("w{}", p.index));
  attest.pid = p.pid;
  attest.alive = alive;
  attest.detail = alive ? "" : "killed by signal 9 (SIGKILL)";
  session->last_up = std::max(session->last_up, now_ + Delay(3)) + Duration::Nanos(1);
  queue_.Add(session->last_up,
             {Pending::kCoordinator, coordinator_life_, ToCoordinator{it->second, attest}});
}

}  // namespace muster::sim
