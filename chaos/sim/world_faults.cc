// Faults: drawn from the seed, at random times or at interesting points, healed at the end.
#include <fmt/format.h>

#include <algorithm>

#include "chaos/sim/trace.h"
#include "chaos/sim/world.h"
#include "coordinator/core/durable_state.h"

namespace muster::sim {

void World::PlanFaults() {
  faults_left_ = options_.faults;
  if (options_.dense) {
    points_until_fault_ = 1 + static_cast<int>(prng_.Below(200));
    return;
  }
  const auto span = static_cast<std::uint64_t>(options_.faulty_phase.nanos() * 9 / 10);
  for (int i = 0; i < options_.faults; ++i) {
    const Duration when = Duration::Nanos(static_cast<std::int64_t>(prng_.Below(span)));
    Later(Pending::kNobody, when, NextFault{});
  }
}

// Something has just happened in whose wake a fault is interesting. The fault itself comes as an
// event of its own, right after, or a moment later.
void World::Point(int process) {
  if (exhaustive_ || points_until_fault_ == 0 || --points_until_fault_ > 0) return;
  if (faults_left_ == 0) return;
  hot_process_ = process;
  // Often in the middle of the recovery from the one before.
  points_until_fault_ = 1 + static_cast<int>(prng_.Below(prng_.Chance(2, 3) ? 24 : 400));
  Later(Pending::kNobody, prng_.Chance(1, 2) ? Duration() : Delay(3), NextFault{});
}

void World::Inject() {
  if (faults_left_ == 0) return;
  --faults_left_;
  auto kind = static_cast<FaultKind>(prng_.Below(kFaultKinds));
  // Nothing is as interesting as a death in the middle of something.
  const bool hot = hot_process_ >= 0 && options_.Has(FaultKind::kKill);
  if (hot && prng_.Chance(1, 3)) kind = FaultKind::kKill;
  const bool crash = options_.dense && options_.Has(FaultKind::kCoordinatorCrash);
  if (crash && prng_.Chance(1, 8)) kind = FaultKind::kCoordinatorCrash;
  Process& p = Victim();
  // Short ones race with the recovery, long ones outlast it.
  const auto lease = static_cast<std::uint64_t>(options_.lease.millis());
  const std::uint64_t shortest = prng_.Chance(1, 4) ? lease * 9 / 10 : 0;  // or just about a lease
  const std::uint64_t longest = shortest > 0 ? lease / 4 : prng_.Chance(1, 3) ? 200 : 7000;
  const Duration how_long =
      std::min(Duration::Millis(static_cast<std::int64_t>(shortest + prng_.Below(longest)) + 1),
               peace_ - now_);
  if (!options_.Has(kind)) {
    ++faults_left_;  // another kind: soon
    Later(Pending::kNobody, Duration(), NextFault{});
    return;
  }
  faulted_ = true;
  Trace("FAULT {} w{} for {} ms", NameOf(kind), p.index, how_long.millis());
  ++result_.faults[static_cast<std::size_t>(kind)];
  switch (kind) {
    case FaultKind::kCoordinatorCrash:
    case FaultKind::kStoreLost:
    case FaultKind::kCoordinatorPause: return StartOnCoordinator(kind, how_long);
    case FaultKind::kBlockUp:
    case FaultKind::kBlockDown:
    case FaultKind::kBlockBoth:
    case FaultKind::kBlockPeers:
    case FaultKind::kCutConnection: return StartOnLinks(kind, p, how_long);
    case FaultKind::kCutGroup: return CutGroup(how_long);
    default: return Start(kind, p, how_long);
  }
}

// Where something has just happened, or anywhere.
Process& World::Victim() {
  const int hot = std::exchange(hot_process_, Pending::kNobody);
  if (hot >= 0 && prng_.Chance(1, 2)) return Of(hot);
  return processes_[prng_.Below(processes_.size())];
}

// A switch fails: those that train together lose the coordinator together, and no one else does.
void World::CutGroup(Duration how_long) {
  const auto& started = chain_.record().started;
  if (!started) return;
  for (const Process& p : processes_) {
    if (!p.alive) continue;
    if (coordinator::Find(*started, p.session->member()) == nullptr) continue;
    network_.BlockUp(p.index, 1);
    network_.BlockDown(p.index, 1);
    Later(Pending::kNobody, how_long, EndFault{FaultKind::kCutGroup, p.index, -1, false});
  }
}

void World::StartOnCoordinator(FaultKind kind, Duration how_long) {
  if (!coordinator_) return;
  if (kind == FaultKind::kCoordinatorPause) {
    if (coordinator_paused_++ == 0) paused_since_ = now_;
    Later(Pending::kNobody, how_long, EndFault{kind, -1, -1, false});
    return;
  }
  CrashCoordinator(kind == FaultKind::kStoreLost);
  if (kind == FaultKind::kStoreLost && options_.total_loss) {
    for (Process& p : processes_) {
      if (!p.alive) continue;
      EndProcess(p, false, "lose");
      Later(p.index, how_long + Delay(10), Launch{});
    }
  }
  Later(Pending::kNobody, how_long, StartCoordinatorAgain{});
}

void World::StartOnLinks(FaultKind kind, Process& p, Duration how_long) {
  if (kind == FaultKind::kCutConnection) {
    p.well_since = std::max(p.well_since, now_);
    return BreakConnection(p);
  }
  EndFault end{kind, p.index, -1, false};
  if (kind == FaultKind::kBlockPeers) {
    end.other = static_cast<int>(prng_.Below(processes_.size()));
    if (end.other == p.index) return;
    end.both = prng_.Chance(1, 2);
    network_.BlockPeer(p.index, end.other, 1);
    if (end.both) network_.BlockPeer(end.other, p.index, 1);
  }
  if (kind == FaultKind::kBlockUp || kind == FaultKind::kBlockBoth) network_.BlockUp(p.index, 1);
  if (kind == FaultKind::kBlockDown || kind == FaultKind::kBlockBoth) {
    network_.BlockDown(p.index, 1);
  }
  Later(Pending::kNobody, how_long, end);
}

void World::Start(FaultKind kind, Process& p, Duration how_long) {
  if (!p.alive) return;
  switch (kind) {
    case FaultKind::kKill: EndProcess(p, false, "kill"); break;
    case FaultKind::kFlap: {
      EndProcess(p, false, "flap");
      const auto pause = static_cast<std::int64_t>(prng_.Below(80));
      p.flaps_until = std::max(p.flaps_until, now_ + how_long);
      return Later(p.index, Duration::Millis(pause), Launch{});
    }
    case FaultKind::kHostLost:
      if (const auto it = launchers_.find(p.node); it != launchers_.end()) {
        // Its session looks alive for a while.
        Later(Pending::kCoordinator, Duration::Seconds(5), CoordinatorHearsClose{it->second});
        launchers_.erase(it);
      }
      for (Process& q : processes_) {
        if (q.node != p.node || !q.alive) continue;
        EndProcess(q, true, "lose");
        Later(q.index, how_long, Launch{});
      }
      return;
    case FaultKind::kPause: ++p.paused; break;
    case FaultKind::kStuck: ++p.stuck; break;
    case FaultKind::kSlowLink: ++p.slow_link; break;
    case FaultKind::kSlowCompute: ++p.slow_compute; break;
    case FaultKind::kDiskFull: ++p.disk_full; break;
    case FaultKind::kDamage: return DamageShard();
    case FaultKind::kLeave:
      p.well_since = now_;
      if (p.paused == 0) Tell(p, worker::LeaveWanted{"asked by the simulator"});
      return;
    case FaultKind::kLauncherLost:
      if (const auto it = launchers_.find(p.node); it != launchers_.end()) {
        Later(Pending::kCoordinator, Delay(), CoordinatorHearsClose{it->second});
        StartLauncher(p.node);
      }
      return;
    default: return;
  }
  if (kind == FaultKind::kKill) {
    Later(p.index, how_long, Launch{});
  } else {
    Later(Pending::kNobody, how_long, EndFault{kind, p.index, -1, false});
  }
}

void World::End(const EndFault& fault) {
  const auto less = [](int& count) { count = std::max(0, count - 1); };
  if (fault.kind == FaultKind::kCoordinatorPause) {
    less(coordinator_paused_);
    if (coordinator_paused_ == 0) ResumeCoordinator();
    return;
  }
  Process& p = Of(fault.worker);
  Trace("end of {} w{}", NameOf(fault.kind), p.index);
  p.well_since = std::max(p.well_since, now_);
  switch (fault.kind) {
    case FaultKind::kPause: less(p.paused); return Wake(p);
    case FaultKind::kStuck:
      less(p.stuck);
      // It may have been found unable meanwhile, and is waited for as one that holds the state.
      p.well_since = std::max(p.well_since, now_ + config_.autonomy + options_.lease);
      return Unstick(p);
    case FaultKind::kSlowLink: return less(p.slow_link);
    case FaultKind::kSlowCompute: return less(p.slow_compute);
    case FaultKind::kDiskFull: return less(p.disk_full);
    default: return EndBlock(fault);
  }
}

void World::EndBlock(const EndFault& fault) {
  const int worker = fault.worker;
  if (fault.kind == FaultKind::kBlockPeers) {
    network_.BlockPeer(worker, fault.other, -1);
    if (fault.both) network_.BlockPeer(fault.other, worker, -1);
    Process& other = Of(fault.other);
    other.well_since = std::max(other.well_since, now_);
    return Schedule(data_.Reconsider(Reaches()));
  }
  if (fault.kind != FaultKind::kBlockDown) network_.BlockUp(worker, -1);
  if (fault.kind != FaultKind::kBlockUp) network_.BlockDown(worker, -1);
  if (!network_.UpBlocked(worker)) Release(worker, true);
  if (!network_.DownBlocked(worker)) Release(worker, false);
}

// It was late, and knows so; what came meanwhile is in its buffers.
void World::ResumeCoordinator() {
  coordinator_paused_ = 0;
  resumed_at_ = now_;
  if (!coordinator_) return;
  Trace("coordinator goes on");
  Deliver(coordinator::Lagged{now_ - paused_since_});
  for (Pending& pending : std::exchange(coordinator_missed_, {})) {
    queue_.Add(now_, std::move(pending));
  }
}

// It wakes as if nothing had happened: what was due meanwhile happens now, and what came to it is
// in its buffers. Its threads wake in any order.
void World::Wake(Process& p) {
  if (p.paused > 0 || !p.alive) return;
  Instant control = now_ + Delay();
  Instant trainer = now_ + Delay();
  for (Pending& pending : std::exchange(p.missed, {})) {
    const bool of_trainer = std::holds_alternative<OperationEnds>(pending.what) ||
                            std::holds_alternative<Continue>(pending.what);
    Instant& at = of_trainer ? trainer : control;
    at = at + Duration::Nanos(100);
    queue_.Add(at, std::move(pending));
  }
}

void World::Unstick(Process& p) {
  if (p.stuck > 0 || !p.alive) return;
  for (Pending& pending : std::exchange(p.parked, {})) queue_.Add(now_, std::move(pending));
}

void World::DamageShard() {
  if (disk_.shards.empty()) return;
  auto it = disk_.shards.begin();
  // Most often of the newest checkpoint, which is the one that is wanted.
  const bool newest = prng_.Chance(2, 3);
  std::advance(it, static_cast<std::ptrdiff_t>(newest ? disk_.shards.size() - 1
                                                      : prng_.Below(disk_.shards.size())));
  it->second.damaged = true;
  safe_checkpoints_.OnDamage();
}

void World::Heal() {
  Trace("peace");
  faults_left_ = 0;
  liveness_.OnPeace(now_);
  if (!coordinator_) StartCoordinator();
  if (coordinator_paused_ > 0) ResumeCoordinator();
  const bool over = chain_.record().end.has_value();
  for (Process& p : processes_) {
    if (!p.alive && !over) LaunchProcess(p);
    p.well_since = std::max(p.well_since, HealthOf(p).well ? Instant() : now_);
  }
}

}  // namespace muster::sim
