// Sessions between workers and the coordinator.
#include <algorithm>

#include "chaos/sim/trace.h"
#include "chaos/sim/world.h"
#include "protocol/codec.h"

namespace muster::sim {

namespace {
// How much longer messages take on a slow link.
constexpr std::int64_t kSlow = 50;
}  // namespace

void World::Tell(Process& p, const worker::Input& input) {
  const Member before = p.session->member();
  const bool had_state = p.session->started_record() != nullptr;
  // What is drawn is no part of the state then.
  if (exhaustive_) p.session->Reseed(before.incarnation.value());
  p.session->Handle(input, LocalNow(p));
  if (p.session->member() != before) {
    // To join afresh costs nothing but the state that it holds.
    if (had_state) healthy_workers_.OnFenced(HealthOf(p), now_, verdict_);
    p.well_since = now_;
    ++p.losses;
    p.interrupted_for = p.ready_for = Generation();
    p.reported_life = 0;
  }
  Drain(p);
}

void World::Drain(Process& p) {
  const worker::Effects effects = p.session->TakeEffects();
  for (const std::string& notice : effects.notices) Trace("  w{}: {}", p.index, notice);
  if (effects.abort) {
    const bool slow = options_.slow_aborts && Chance(1, 2);
    const auto longer = static_cast<std::int64_t>(slow ? prng_.Below(150) : 0);
    const Duration takes = Duration::Micros(200) + Duration::Millis(longer);
    Later(p.index, takes,
          Continue{Thread::kAbortDone, p.record ? p.record->generation : Generation()});
  }
  if (effects.close) Hangup(p);
  for (const Message& message : effects.sends) {
    NoteSent(p, message);
    if (p.connection != SessionId()) SendUp(p, ToCoordinator{p.connection, message});
  }
  if (effects.dial) {
    p.dial = *effects.dial;
    Later(p.index, Delay(2), DialEnds{p.dial});
  }
  HandleSaver(p, effects);
  ArmTimer(p);
  if (effects.wake) Later(p.index, Duration::Micros(10), Continue{Thread::kPump, {}});
}

void World::ArmTimer(Process& p) {
  if (exhaustive_) return;  // the explorer asks the session
  const Instant local = p.session->NextDeadline();
  if (local == Instant::Never()) return;
  const Instant at = std::max(WorldTime(p, local), now_ + Duration::Micros(1));
  if (p.timer && p.timer_at <= at && p.timer_at > now_) return;
  p.timer = true;
  p.timer_at = at;
  queue_.Add(at, {p.index, p.life, WorkerTimer{}});
}

void World::OnWorkerTimer(Process& p) {
  if (!p.timer || now_ < p.timer_at) return;
  p.timer = false;
  Tell(p, worker::Tick{p.operations, p.op.has_value()});
}

// --- Messages ------------------------------------------------------------------------------------

void World::SendUp(Process& p, Action what) {
  const auto* message = std::get_if<ToCoordinator>(&what);
  const SessionId id =
      message != nullptr ? message->session : std::get<CoordinatorHearsClose>(what).session;
  sim::Session* session = network_.Find(id);
  if (session == nullptr) return;  // the coordinator has gone since
  if (message != nullptr) Trace("  w{} -> {}", p.index, NameOf(message->message));
  session->last_up =
      std::max(session->last_up, now_ + Delay(p.slow_link > 0 ? kSlow : 1)) + Duration::Nanos(1);
  queue_.Add(session->last_up, {Pending::kCoordinator, coordinator_life_, std::move(what)});
}

void World::SendDown(SessionId id, Action what) {
  sim::Session* session = network_.Find(id);
  if (session == nullptr || session->process < 0) return;
  const Process& p = Of(session->process);
  if (!p.alive) return;
  if (const auto* message = std::get_if<ToWorker>(&what)) {
    Trace("  {} -> w{}", NameOf(message->message), p.index);
  }
  session->last_down =
      std::max(session->last_down, now_ + Delay(p.slow_link > 0 ? kSlow : 1)) + Duration::Nanos(1);
  queue_.Add(session->last_down, {p.index, p.life, std::move(what)});
}

void World::On(const ToCoordinator& message) {
  const sim::Session* session = network_.Find(message.session);
  if (session == nullptr || network_.IsCut(message.session)) return;
  if (session->process >= 0 && network_.UpBlocked(session->process)) {
    held_up_[session->process].push_back({Pending::kCoordinator, coordinator_life_, message});
    return;
  }
  NoteArrived(message.message, session->process);
  Deliver(coordinator::Received{message.session, message.message, "10.0.0.9"});
}

void World::On(Process& p, const ToWorker& message) {
  if (p.connection != message.session || network_.IsCut(message.session)) return;
  if (network_.DownBlocked(p.index)) {
    held_down_[p.index].push_back({p.index, p.life, message});
    return;
  }
  if (const auto* ack = std::get_if<Ack>(&message.message)) p.contact.OnAck(ack->sequence);
  if (std::holds_alternative<Welcome>(message.message)) p.contact.OnWelcome();
  const auto* interrupt = std::get_if<Interrupt>(&message.message);
  if (interrupt != nullptr) p.interrupted_for = std::max(p.interrupted_for, interrupt->generation);
  Tell(p, worker::Received{p.dial, message.message});
  if (!p.alive) return;
  const GenerationRecord* assigned = p.session->assigned();
  if (assigned != nullptr && assigned->generation < p.interrupted_for) {
    verdict_.Violate("S1",
                     fmt::format("worker w{} forms generation {}, though it was interrupted "
                                 "for generation {}",
                                 p.index, assigned->generation.value(), p.interrupted_for.value()));
  }
}

void World::NoteArrived(const Message& message, int process) {
  if (process < 0) return;
  Process& p = Of(process);
  if (std::holds_alternative<Hello>(message)) p.reported_life = coordinator_life_;
  if (const auto* ready = std::get_if<Ready>(&message)) p.ready_for = ready->forming;
}

std::vector<OneGeneration::Standing> World::Standings() const {
  std::vector<OneGeneration::Standing> all;
  for (const Process& p : processes_) {
    if (!p.session || !p.alive) continue;
    all.push_back({p.session->member(), p.contact.MayAct(config_.autonomy, now_),
                   p.reported_life == coordinator_life_, p.ready_for});
  }
  return all;
}

void World::NoteSent(Process& p, const Message& message) {
  if (const auto* beat = std::get_if<Heartbeat>(&message)) p.contact.OnBeat(beat->sequence, now_);
  if (std::holds_alternative<Hello>(message)) p.contact.OnHello(now_);
  if (std::holds_alternative<Leave>(message)) p.leaving = true;
  const auto* ready = std::get_if<Ready>(&message);
  if (ready != nullptr && p.op && p.op->generation < ready->forming) {
    verdict_.Violate("S2", fmt::format("worker w{} answers the interrupt for generation {} while a "
                                       "call is inside of its communicator",
                                       p.index, ready->forming.value()));
  }
}

void World::On(Process& p, const WorkerHearsClose& close) {
  if (p.connection != close.session) return;
  if (network_.DownBlocked(p.index)) {
    held_down_[p.index].push_back({p.index, p.life, close});
    return;
  }
  p.connection = SessionId();
  Tell(p, worker::Disconnected{p.dial, Unavailable("reset")});
}

void World::On(Process& p, const DialEnds& dial) {
  if (p.dial != dial.number || p.connection != SessionId()) return;
  if (!coordinator_ || network_.UpBlocked(p.index) || network_.DownBlocked(p.index)) {
    Tell(p, worker::Disconnected{dial.number, Unavailable("refused")});
    return;
  }
  p.connection = network_.Open(p.index, p.node);
  if (p.session->looks_at_checkpoints() && !spec_.checkpoint_directory.empty()) {
    p.found = Discover();
    Tell(p, worker::Looked{p.found});
  }
  Tell(p, worker::Connected{dial.number});
}

// The worker's end closes.
void World::Hangup(Process& p) {
  if (p.connection == SessionId()) return;
  SendUp(p, CoordinatorHearsClose{p.connection});
  p.connection = SessionId();
}

// The session breaks in the middle: both ends hear so, each at its own time, and what was in flight
// in either direction is lost.
void World::BreakConnection(Process& p) {
  if (network_.Find(p.connection) == nullptr) return;
  Trace("cut the session of w{}", p.index);
  network_.Cut(p.connection);
  SendUp(p, CoordinatorHearsClose{p.connection});
  SendDown(p.connection, WorkerHearsClose{p.connection});
}

// A direction works again. TCP has kept what was sent, unless it gave up meanwhile.
void World::Release(int process, bool up) {
  std::vector<Pending> held = std::move((up ? held_up_ : held_down_)[process]);
  (up ? held_up_ : held_down_)[process].clear();
  Process& p = Of(process);
  if (p.alive && p.connection != SessionId() && Chance(1, 2)) {
    BreakConnection(p);
    held.clear();
  }
  Instant at = now_;
  for (Pending& pending : held) {
    at = at + Duration::Micros(1);
    queue_.Add(at, std::move(pending));
  }
}

}  // namespace muster::sim
