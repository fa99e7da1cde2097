// Going on from a state by one choice.
#include <fmt/format.h>

#include <algorithm>

#include "chaos/sim/explore.h"
#include "chaos/sim/trace.h"

namespace muster::sim {

void Explorer::Perform(Node& node, const Choice& choice) {
  World& world = node.world;
  Process* p = choice.process >= 0 ? &world.Of(choice.process) : nullptr;
  switch (choice.kind) {
    case Kind::kAction: world.Do(world.queue_.Take(choice.key)); break;
    case Kind::kTime: return PassTime(node);
    case Kind::kEarlyTimer:
      --node.left.early_timers;
      FireTimer(world, choice.process, DeadlineOf(world, choice.process));
      // Whatever is pending comes late, which is a trouble of everybody's.
      for (Process& late : world.processes_) late.well_since = world.now_;
      break;
    case Kind::kRelaunch:
      --node.relaunches[static_cast<std::size_t>(choice.process)];
      world.LaunchProcess(*p);
      break;
    case Kind::kRestart:
      world.StartCoordinator();
      // While it was away nobody was judged: former troubles count as if they had just ended.
      for (Process& one : world.processes_) {
        if (one.well_since != Instant()) one.well_since = std::max(one.well_since, world.now_);
      }
      break;
    case Kind::kWake:
      p->paused = 0;
      p->well_since = std::max(p->well_since, world.now_);
      break;
    case Kind::kUnblock: Unblock(node, *p, false); break;
    case Kind::kUnblockAndLose: Unblock(node, *p, true); break;
    default: PerformFault(node, choice); break;
  }
  Settle(node);
}

void Explorer::PerformFault(Node& node, const Choice& choice) {
  World& world = node.world;
  Budget& left = node.left;
  world.faulted_ = true;
  if (choice.kind == Kind::kCrashLost || choice.kind == Kind::kCrashKept) {
    --left.coordinator_crashes;
    return Crash(world, choice.kind == Kind::kCrashKept, false);
  }
  if (choice.kind == Kind::kLoseStore) {
    --left.store_losses;
    return Crash(world, false, true);
  }
  Process& p = world.Of(choice.process);
  switch (choice.kind) {
    case Kind::kKill:
    case Kind::kVanish:
      --(choice.kind == Kind::kKill ? left.kills : left.vanishings);
      ++node.relaunches[static_cast<std::size_t>(p.index)];
      return world.EndProcess(p, choice.kind == Kind::kVanish, "kill");
    case Kind::kPause:
      --left.pauses;
      p.paused = 1;
      return;
    case Kind::kCut:
      --left.cuts;
      p.well_since = std::max(p.well_since, world.now_);
      return world.BreakConnection(p);
    case Kind::kLeave:
      --left.leaves;
      p.leaving = true;
      p.well_since = world.now_;
      return world.Tell(p, worker::LeaveWanted{"asked by the explorer"});
    case Kind::kFail: return FailCall(node, p);
    default: break;
  }
  --left.blocks;
  if (choice.kind != Kind::kBlockDown) world.network_.BlockUp(p.index, 1);
  if (choice.kind != Kind::kBlockUp) world.network_.BlockDown(p.index, 1);
}

// What was held back goes on, unless TCP has given up meanwhile.
void Explorer::Unblock(Node& node, Process& p, bool lose) {
  World& world = node.world;
  if (world.network_.UpBlocked(p.index)) world.network_.BlockUp(p.index, -1);
  if (world.network_.DownBlocked(p.index)) world.network_.BlockDown(p.index, -1);
  p.well_since = std::max(p.well_since, world.now_);
  if (lose) world.BreakConnection(p);
}

// A link between workers breaks. Somebody may be given up for that when it happens again.
void Explorer::FailCall(Node& node, Process& p) {
  World& world = node.world;
  --node.left.failures;
  if (std::exchange(node.linked, true)) {
    for (Process& any : world.processes_) any.well_since = world.now_;
  }
  world.Do({p.index, p.life, OperationEnds{p.serial, Ended::kFailed, Rank(-1)}});
}

// The batch that was being synced is durable or not: nobody has been told of it.
void Explorer::Crash(World& world, bool keep, bool lose_store) {
  for (std::size_t i = 0; keep && i < world.offered_; ++i) {
    for (const auto& persist : world.unsynced_[i].persist) world.Store(persist);
  }
  world.CrashCoordinator(lose_store);
}

// --- Time ----------------------------------------------------------------------------------------

Instant Explorer::DeadlineOf(const World& world, int process) {
  Instant at = Instant::Never();
  if (process == Pending::kCoordinator) {
    if (world.coordinator_) at = world.coordinator_->NextDeadline();
  } else {
    const Process& p = world.processes_[static_cast<std::size_t>(process)];
    // Who could not go on is started again, when everything else has calmed down.
    const bool exited = !p.alive && p.at == At::kGone;
    if (exited && !world.chain_.record().end) at = p.timer_at;
    const bool runs = p.alive && p.paused == 0;
    const Instant local = runs ? p.session->NextDeadline() : Instant::Never();
    if (local != Instant::Never()) at = world.WorldTime(p, local);
  }
  return at == Instant::Never() ? at : std::max(at, world.now_ + Duration::Micros(1));
}

void Explorer::FireTimer(World& world, int process, Instant at) {
  world.now_ = std::max(world.now_, at);
  if (process == Pending::kCoordinator) return world.Deliver(coordinator::Tick{});
  Process& p = world.Of(process);
  if (!p.alive) return world.LaunchProcess(p);
  world.Tell(p, worker::Tick{p.operations, p.op.has_value()});
}

// Timers run out in their order until something else can happen. Where a fault can end, or an error
// can come late, that has its chance after each lease's time; where nothing can happen at all, the
// job is stuck.
void Explorer::PassTime(Node& node) {
  World& world = node.world;
  Choices ends;
  AddEndsOfFaults(node, &ends);
  const bool waits = !ends.empty() || !Ready(world).empty();
  const Duration long_enough = (world.config_.autonomy + world.options_.lease) * 5;
  const Instant until = world.now_ + (waits ? world.options_.lease : long_enough);
  while (world.verdict_.ok()) {
    int first = Pending::kNobody;
    Instant at = Instant::Never();
    for (const int who : TimersOf(world)) {
      const Instant deadline = DeadlineOf(world, who);
      if (deadline < at) first = who;
      at = std::min(at, deadline);
    }
    if (at > until) {
      world.now_ = until;
      break;
    }
    FireTimer(world, first, at);
    Settle(node);
    for (const Queue::Key& key : Ready(world)) {
      if (!Lazy(world.queue_.entries().at(key))) return;
    }
    if (Over(world)) return;
  }
  if (waits) return;
  const auto view = world.coordinator_->Describe(JobName("sim"), world.now_);
  world.verdict_.Violate("L1", fmt::format("nothing happens any more; waiting for: {}",
                                           view ? view->waiting_for : "no job"));
}

// --- What happens at once ------------------------------------------------------------------------

bool Explorer::Eager(const Node& node, const Pending& pending) {
  const Action& what = pending.what;
  if (const auto* up = std::get_if<ToCoordinator>(&what)) {
    return std::holds_alternative<Heartbeat>(up->message);
  }
  if (const auto* down = std::get_if<ToWorker>(&what)) {
    return std::holds_alternative<Ack>(down->message);
  }
  // When a batch becomes durable matters only to a crash.
  if (std::holds_alternative<Synced>(what)) {
    return node.left.coordinator_crashes == 0 && node.left.store_losses == 0;
  }
  return std::holds_alternative<DialEnds>(what);
}

void Explorer::Settle(Node& node) {
  World& world = node.world;
  while (world.verdict_.ok()) {
    DropStale(world);
    const auto ready = Ready(world);
    const auto it = std::ranges::find_if(
        ready, [&](const Queue::Key& key) { return Eager(node, world.queue_.entries().at(key)); });
    if (it == ready.end()) return;
    world.Do(world.queue_.Take(*it));
  }
}

// What would change nothing, and what is there twice.
void Explorer::DropStale(World& world) {
  std::vector<Queue::Key> drop;
  std::vector<const Pending*> kept;
  const auto same = [](const Pending& a, const Pending& b) {
    if (a.process != b.process || a.what.index() != b.what.index()) return false;
    if (const auto* x = std::get_if<OperationEnds>(&a.what)) {
      const auto& y = std::get<OperationEnds>(b.what);
      return x->serial == y.serial && x->how == y.how && x->peer == y.peer;
    }
    const auto* x = std::get_if<Continue>(&a.what);
    return x != nullptr && x->what == Thread::kPump &&
           std::get<Continue>(b.what).what == Thread::kPump;
  };
  for (const auto& [key, pending] : world.queue_.entries()) {
    const bool again =
        std::ranges::any_of(kept, [&](const Pending* other) { return same(*other, pending); });
    if (again || Stale(world, pending)) {
      drop.push_back(key);
    } else {
      kept.push_back(&pending);
    }
  }
  for (const Queue::Key& key : drop) static_cast<void>(world.queue_.Take(key));
}

}  // namespace muster::sim
