// What can happen next in a state.
#include <algorithm>

#include "chaos/sim/explore.h"

namespace muster::sim {

namespace {
enum ChannelKind { kUp, kDown, kFiles, kAborts };
}  // namespace

// The job has ended, and everybody has gone.
bool Explorer::Over(const World& world) {
  return world.chain_.record().end.has_value() &&
         std::ranges::none_of(world.processes_, &Process::alive);
}

std::optional<Explorer::Channel> Explorer::ChannelOf(const Pending& pending) {
  const Action& what = pending.what;
  if (const auto* m = std::get_if<ToCoordinator>(&what)) return Channel{kUp, m->session.value()};
  if (const auto* m = std::get_if<CoordinatorHearsClose>(&what)) {
    return Channel{kUp, m->session.value()};
  }
  if (const auto* m = std::get_if<ToWorker>(&what)) return Channel{kDown, m->session.value()};
  if (const auto* m = std::get_if<WorkerHearsClose>(&what)) {
    return Channel{kDown, m->session.value()};
  }
  if (std::holds_alternative<FileDone>(what)) return Channel{kFiles, pending.process};
  if (const auto* go_on = std::get_if<Continue>(&what)) {
    if (go_on->what == Thread::kAbortDone) return Channel{kAborts, pending.process};
  }
  return std::nullopt;
}

const Session* Explorer::SessionOf(const World& world, SessionId id) {
  const Session* found = nullptr;
  world.network_.VisitState([&](const auto&, const auto&, const auto&, const auto& sessions) {
    const auto it = sessions.find(id);
    if (it != sessions.end()) found = &it->second;
  });
  return found;
}

// It need not happen: time can pass without it.
bool Explorer::Lazy(const Pending& pending) {
  const auto* ends = std::get_if<OperationEnds>(&pending.what);
  return ends != nullptr && ends->how == Ended::kFailed;
}

// Would a look of the training thread change anything? Whatever makes it do so wakes it again.
bool Explorer::PumpActs(const World& world, const Process& p) {
  const Instant now = world.LocalNow(p);
  if (p.at == At::kDeciding) return p.session->Decided(now).has_value();
  if (p.at == At::kForming && p.awaits_group) {
    return !World::FormsStill(p) || p.session->group_id() != nullptr;
  }
  if (p.at != At::kBoundary) return false;
  const GenerationRecord* started = p.session->started_record();
  const bool adopts = p.next_cut && started != nullptr && started->generation == p.next_cut_of;
  return adopts || p.session->snapshot_due() || p.session->Next(now) != worker::Directive::kWait;
}

// It would change nothing, now or later.
bool Explorer::Stale(const World& world, const Pending& pending) {
  const Action& what = pending.what;
  if (pending.process == Pending::kCoordinator) {
    if (!world.coordinator_ || pending.life != world.coordinator_life_) return true;
    const auto* message = std::get_if<ToCoordinator>(&what);
    if (message == nullptr) return false;
    return SessionOf(world, message->session) == nullptr || world.network_.IsCut(message->session);
  }
  if (pending.process == Pending::kNobody) return false;
  const Process& p = world.processes_[static_cast<std::size_t>(pending.process)];
  if (p.life != pending.life) return true;
  if (std::holds_alternative<Launch>(what)) return p.alive;
  if (!p.alive) return true;
  if (const auto* message = std::get_if<ToWorker>(&what)) {
    return p.connection != message->session || world.network_.IsCut(message->session);
  }
  if (const auto* close = std::get_if<WorkerHearsClose>(&what)) {
    return p.connection != close->session;
  }
  if (const auto* dial = std::get_if<DialEnds>(&what)) {
    return p.dial != dial->number || p.connection != SessionId();
  }
  if (const auto* ends = std::get_if<OperationEnds>(&what)) {
    return !p.op || p.serial != ends->serial;
  }
  if (const auto* go_on = std::get_if<Continue>(&what)) {
    if (go_on->what == Thread::kPump) return !PumpActs(world, p);
    if (go_on->what == Thread::kRestored) {
      return p.at != At::kForming || !p.record || p.record->generation != go_on->generation;
    }
  }
  return false;
}

// Not of a process that stands still, nor over a link that is blocked.
bool Explorer::Enabled(const World& world, const Pending& pending) {
  if (pending.process == Pending::kCoordinator) {
    const auto* message = std::get_if<ToCoordinator>(&pending.what);
    if (message == nullptr) return true;
    const Session* session = SessionOf(world, message->session);
    return session->process < 0 || !world.network_.UpBlocked(session->process);
  }
  if (pending.process == Pending::kNobody) return true;
  const Process& p = world.processes_[static_cast<std::size_t>(pending.process)];
  if (p.paused > 0) return false;
  const bool down = std::holds_alternative<ToWorker>(pending.what) ||
                    std::holds_alternative<WorkerHearsClose>(pending.what);
  return !down || !world.network_.DownBlocked(p.index);
}

// REQUIRES: nothing is stale.
std::vector<Queue::Key> Explorer::Ready(const World& world) {
  std::vector<Queue::Key> ready;
  std::vector<Channel> begun;
  for (const auto& [key, pending] : world.queue_.entries()) {
    if (const auto channel = ChannelOf(pending)) {
      if (std::ranges::find(begun, *channel) != begun.end()) continue;
      begun.push_back(*channel);
    }
    if (Enabled(world, pending)) ready.push_back(key);
  }
  return ready;
}

Explorer::Choices Explorer::ChoicesOf(const Node& node) {
  const World& world = node.world;
  Choices choices;
  if (Over(world)) return choices;
  bool busy = false;
  for (const Queue::Key& key : Ready(world)) {
    choices.push_back({Kind::kAction, Pending::kNobody, key});
    busy = busy || !Lazy(world.queue_.entries().at(key));
  }
  if (!busy) choices.push_back({Kind::kTime, Pending::kNobody, {}});
  AddEndsOfFaults(node, &choices);
  if (busy && node.left.early_timers > 0) {
    for (const int who : TimersOf(world)) choices.push_back({Kind::kEarlyTimer, who, {}});
  }
  AddFaults(node, &choices);
  return choices;
}

// The coordinator and the workers that wait for a time.
std::vector<int> Explorer::TimersOf(const World& world) {
  std::vector<int> all;
  if (DeadlineOf(world, Pending::kCoordinator) != Instant::Never()) {
    all.push_back(Pending::kCoordinator);
  }
  for (const Process& p : world.processes_) {
    if (DeadlineOf(world, p.index) != Instant::Never()) all.push_back(p.index);
  }
  return all;
}

void Explorer::AddEndsOfFaults(const Node& node, Choices* choices) {
  const World& world = node.world;
  if (!world.coordinator_) choices->push_back({Kind::kRestart, Pending::kCoordinator, {}});
  const bool ended = world.chain_.record().end.has_value();
  for (const Process& p : world.processes_) {
    const int launches = node.relaunches[static_cast<std::size_t>(p.index)];
    if (!p.alive && launches > 0 && !ended) choices->push_back({Kind::kRelaunch, p.index, {}});
    if (p.alive && p.paused > 0) choices->push_back({Kind::kWake, p.index, {}});
    if (world.network_.UpBlocked(p.index) || world.network_.DownBlocked(p.index)) {
      choices->push_back({Kind::kUnblock, p.index, {}});
      if (p.connection != SessionId()) choices->push_back({Kind::kUnblockAndLose, p.index, {}});
    }
  }
}

void Explorer::AddFaults(const Node& node, Choices* choices) {
  const World& world = node.world;
  for (const Process& p : world.processes_) {
    if (p.alive) AddFaultsOfWorker(node, p, choices);
  }
  if (!world.coordinator_) return;
  const auto add = [&](int left, Kind kind) {
    if (left > 0) choices->push_back({kind, Pending::kCoordinator, {}});
  };
  add(node.left.coordinator_crashes, Kind::kCrashLost);
  if (world.offered_ > 0) add(node.left.coordinator_crashes, Kind::kCrashKept);
  add(node.left.store_losses, Kind::kLoseStore);
}

void Explorer::AddFaultsOfWorker(const Node& node, const Process& p, Choices* choices) {
  const World& world = node.world;
  const auto add = [&](int left, Kind kind) {
    if (left > 0) choices->push_back({kind, p.index, {}});
  };
  add(node.left.kills, Kind::kKill);
  add(node.left.vanishings, Kind::kVanish);
  if (p.paused == 0) add(node.left.pauses, Kind::kPause);
  if (SessionOf(world, p.connection) != nullptr && !world.network_.IsCut(p.connection)) {
    add(node.left.cuts, Kind::kCut);
  }
  if (!world.network_.UpBlocked(p.index) && !world.network_.DownBlocked(p.index)) {
    add(node.left.blocks, Kind::kBlockUp);
    add(node.left.blocks, Kind::kBlockDown);
    add(node.left.blocks, Kind::kBlockBoth);
  }
  if (p.paused == 0 && !p.leaving) add(node.left.leaves, Kind::kLeave);
  if (p.paused == 0 && p.op) add(node.left.failures, Kind::kFail);
}

}  // namespace muster::sim
