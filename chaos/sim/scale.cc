#include "chaos/sim/scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <queue>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>

#include "coordinator/core/coordinator.h"
#include "protocol/messages.h"
#include "protocol/prng.h"

namespace muster::sim {

namespace {

constexpr Duration kDelay = Duration::Millis(1);    // of a message, each way
constexpr Duration kStep = Duration::Seconds(1);    // of training
constexpr Duration kSpread = Duration::Millis(20);  // of what all workers do at about one time
constexpr Duration kPhaseLimit = Duration::Seconds(60);

const JobName& TheJob() {
  static const JobName name("scale");
  return name;
}

// What a worker::Session would say, and no more of it than that takes.
struct StandIn {
  Member member;
  std::int32_t node = 0;
  bool alive = true;
  bool stopped = false;
  Generation highest;
  Generation forming;     // of the last interrupt that no start has followed; zero: none
  Generation generation;  // the last that started with it; zero: none
  Instant interrupted;    // when it hears of that
  Duration interval;      // of heartbeats
  std::int64_t beats = 0;
};

// Something that a stand-in, or the launcher of its node, is about to say.
struct Planned {
  Instant at;
  std::int64_t order = 0;
  std::int32_t worker = 0;
  enum class What { kJoin, kReady, kFormed, kBeat, kFirstCommit, kStopped, kFailed, kAttest };
  What what = What::kBeat;
  Generation generation;
  bool operator>(const Planned& other) const {
    return std::pair(at, order) > std::pair(other.at, other.order);
  }
};

class ScaleRun {
 public:
  explicit ScaleRun(const ScaleOptions& options);
  ScaleResult Run();

 private:
  void Phase(const char* name, const std::function<void()>& what);
  void Quiet();
  void Lose(std::int32_t first, std::int32_t count, bool silently);
  void AddWorkers(std::int32_t count);
  void Advance(Instant until, bool to_first_step);
  void Say(const Planned& planned);
  void Receive(SessionId session, const Message& message);
  void Handle(const coordinator::Input& input);
  void Charge(ScaleCost* cost, std::int64_t received, std::int64_t sent, std::int64_t before);
  void Hear(std::int32_t index, const Message& message);
  void Plan(Duration after, std::int32_t worker, Planned::What what,
            Generation generation = Generation());
  void Beat(StandIn* worker, SessionId session);
  [[nodiscard]] Hello HelloOf(const StandIn& worker, std::int32_t index) const;
  [[nodiscard]] Ready ReadyOf(const StandIn& worker) const;
  [[nodiscard]] Step StepNow() const;
  [[nodiscard]] Duration Spread() {
    return Duration::Nanos(
        static_cast<std::int64_t>(prng_.Below(static_cast<std::uint64_t>(kSpread.nanos()))));
  }
  [[nodiscard]] std::int64_t Meter() const { return options_.meter ? options_.meter() : 0; }
  void Problem(std::string text) {
    if (result_.problem.empty()) result_.problem = std::move(text);
  }
  // Sessions of workers are their indices + 1; those of launchers follow far above.
  static SessionId SessionOf(std::int32_t worker) { return SessionId(worker + 1); }
  static SessionId LauncherOf(std::int32_t node) { return SessionId((1LL << 32U) + node); }

  const ScaleOptions options_;
  Prng prng_{1};
  JobSpec spec_;
  coordinator::Coordinator core_;
  Instant now_ = Instant::FromNanos(1'000'000'000);
  Instant deadline_ = Instant::Never();
  std::priority_queue<Planned, std::vector<Planned>, std::greater<>> planned_;
  std::int64_t next_order_ = 0;
  std::vector<StandIn> workers_;
  SharedRecord assigned_;  // the last one
  Rank dead_peer_;         // that operations fail for
  Lineage lineage_;
  Generation started_;
  Step base_;  // of the started generation
  Instant started_at_;
  bool first_step_ = false;  // of the phase's generation
  ScalePhase phase_;
  ScaleResult result_;
};

JobSpec SpecOf(const ScaleOptions& options) {
  JobSpec spec;
  spec.max_workers = options.workers + options.growth;
  spec.min_workers = std::max(1, options.workers / 2);
  spec.micro_batches = spec.max_workers;
  spec.samples = spec.global_batch = spec.max_workers;
  return spec;
}

// The job is in the store already: that is the way in for a job above the world size that a hello
// may ask for, and makes no other difference.
std::vector<coordinator::StoredJob> Stored(const ScaleOptions& options) {
  coordinator::StoredJob job;
  job.record.job = TheJob();
  job.record.spec = SpecOf(options);
  job.record.lineage = Lineage(1);
  std::vector<coordinator::StoredJob> stored;
  stored.push_back(std::move(job));
  return stored;
}

ScaleRun::ScaleRun(const ScaleOptions& options)
    : options_(options),
      spec_(SpecOf(options)),
      core_(coordinator::Config(), 1, Stored(options), Instant::FromNanos(1'000'000'000)),
      lineage_(1) {}

ScaleResult ScaleRun::Run() {
  Phase("form", [this] { AddWorkers(options_.workers); });
  Phase("lose a node", [this] { Lose(0, options_.workers_per_node, false); });
  Phase("lose a rack", [this] { Lose(options_.workers_per_node, options_.rack, true); });
  Phase("grow", [this] { AddWorkers(options_.growth); });
  Quiet();
  return std::move(result_);
}

void ScaleRun::Phase(const char* name, const std::function<void()>& what) {
  if (!result_.problem.empty()) return;
  phase_ = ScalePhase();
  phase_.name = name;
  first_step_ = false;
  const Instant begun = now_;
  what();
  Advance(now_ + kPhaseLimit, true);
  if (!first_step_) Problem(fmt::format("{}: no step was committed in time", name));
  phase_.took = now_ - begun;
  result_.phases.push_back(phase_);
}

void ScaleRun::Quiet() {
  if (!result_.problem.empty()) return;
  phase_ = ScalePhase();
  phase_.name = "heartbeats";
  phase_.world_size = result_.phases.back().world_size;
  Advance(now_ + options_.quiet, false);
  phase_.took = options_.quiet;
  result_.phases.push_back(phase_);
}

void ScaleRun::AddWorkers(std::int32_t count) {
  for (std::int32_t i = 0; i < count; ++i) {
    const auto index = static_cast<std::int32_t>(workers_.size());
    StandIn worker;
    worker.member.worker = WorkerId(fmt::format("w{:06}", index));
    worker.member.incarnation = Incarnation(prng_.Next());
    worker.node = index / options_.workers_per_node;
    const bool first = workers_.empty() || workers_.back().node != worker.node;
    workers_.push_back(std::move(worker));
    if (first) {
      LauncherHello hello;
      hello.job = TheJob();
      hello.node = NodeName(fmt::format("n{:05}", index / options_.workers_per_node));
      Receive(LauncherOf(index / options_.workers_per_node), hello);
    }
    Plan(Duration(), index, Planned::What::kAttest);
    Plan(Spread() * 50, index, Planned::What::kJoin);  // within a second
  }
}

// A node that crashes has its connections closed by its peers' errors; a rack without power says
// nothing at all.
void ScaleRun::Lose(std::int32_t first, std::int32_t count, bool silently) {
  const Member& dead = workers_[static_cast<std::size_t>(first)].member;
  const auto entry = std::ranges::find(assigned_->members, dead, &MemberEntry::member);
  if (entry == assigned_->members.end()) return Problem("no member can be lost");
  dead_peer_ = entry->rank;
  for (std::int32_t index = first; index < first + count; ++index) {
    workers_[static_cast<std::size_t>(index)].alive = false;
  }
  for (std::int32_t i = first; i < first + count && !silently; ++i) {
    Handle(coordinator::Closed{SessionOf(i)});
    if (i % options_.workers_per_node == 0) {
      Handle(coordinator::Closed{LauncherOf(i / options_.workers_per_node)});
    }
  }
  if (silently) return;  // their peers hang
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(workers_.size()); ++i) {
    if (!workers_[static_cast<std::size_t>(i)].alive) continue;
    Plan(Spread(), i, Planned::What::kFailed, started_);
  }
}

void ScaleRun::Plan(Duration after, std::int32_t worker, Planned::What what,
                    Generation generation) {
  planned_.push({now_ + after, next_order_++, worker, what, generation});
}

void ScaleRun::Advance(Instant until, bool to_first_step) {
  std::int64_t idle = 0;
  while (result_.problem.empty() && !(to_first_step && first_step_)) {
    const Instant said = planned_.empty() ? Instant::Never() : planned_.top().at;
    const Instant next = std::min(said, deadline_);
    if (next >= until) break;
    idle = next > now_ || said <= deadline_ ? 0 : idle + 1;
    if (idle > 100) Problem("the core asks to be called again and again at one instant");
    now_ = std::max(now_, next);
    if (said > deadline_) {
      Handle(coordinator::Tick{});
      continue;
    }
    const Planned planned = planned_.top();
    planned_.pop();
    Say(planned);
  }
}

Step ScaleRun::StepNow() const {
  return Step(base_.value() + 1 + (now_ - started_at_).nanos() / kStep.nanos());
}

Hello ScaleRun::HelloOf(const StandIn& worker, std::int32_t index) const {
  Hello hello;
  hello.job = TheJob();
  hello.member = worker.member;
  hello.node = NodeName(fmt::format("n{:05}", worker.node));
  hello.pid = 1000 + index;
  hello.address = fmt::format("10.{}.{}.{}:4000", index / 65536, index / 256 % 256, index % 256);
  hello.able = true;
  hello.spec = spec_;
  return hello;
}

Ready ScaleRun::ReadyOf(const StandIn& worker) const {
  Ready ready;
  ready.forming = worker.forming;
  ready.generation = worker.generation;
  ready.committed = worker.generation == Generation() ? Step() : base_.Next();
  ready.holds_state = worker.generation != Generation();
  ready.lineage = lineage_;
  ready.abort_ms = 1;
  return ready;
}

void ScaleRun::Beat(StandIn* worker, SessionId session) {
  Heartbeat beat;
  beat.sequence = ++worker->beats;
  beat.generation = worker->generation;
  const bool trains = worker->generation == started_ && worker->forming == Generation();
  beat.committed = worker->generation == Generation() || !trains ? Step() : StepNow();
  beat.stage = trains ? Stage::kCompute : Stage::kForming;
  beat.operations = static_cast<std::uint64_t>(beat.committed.value());
  Receive(session, beat);
}

void ScaleRun::Say(const Planned& planned) {
  const std::int32_t index = planned.worker;
  StandIn& worker = workers_[static_cast<std::size_t>(index)];
  if (!worker.alive) return;
  const SessionId session = SessionOf(index);
  switch (planned.what) {
    case Planned::What::kJoin: return Receive(session, HelloOf(worker, index));
    case Planned::What::kAttest:
      return Receive(LauncherOf(worker.node), Attest{worker.member.worker, 1000 + index, true, ""});
    case Planned::What::kReady:
      if (worker.forming == planned.generation) Receive(session, ReadyOf(worker));
      return;
    case Planned::What::kFormed:
      if (worker.forming == planned.generation) Receive(session, Formed{worker.forming, 5, 1, 0});
      return;
    case Planned::What::kBeat:
      Plan(worker.interval, index, Planned::What::kBeat);
      return Beat(&worker, session);
    case Planned::What::kFirstCommit:
      if (worker.generation == planned.generation) Beat(&worker, session);
      return;
    case Planned::What::kStopped:
      if (worker.generation != planned.generation || worker.forming != Generation()) return;
      worker.stopped = true;
      return Receive(session, Stopped{worker.generation, base_.Next()});
    case Planned::What::kFailed:
      if (worker.generation != planned.generation) return;
      // An aborted operation is no failed one; but the report may be under way already.
      if (worker.forming != Generation() && now_ > worker.interrupted + kDelay) return;
      return Receive(session, OperationFailed{worker.generation, StepNow().Next(),
                                              Code::kUnavailable, "connection reset", dead_peer_});
  }
}

void ScaleRun::Receive(SessionId session, const Message& message) {
  Handle(coordinator::Received{session, message, "10.0.0.1"});
}

void ScaleRun::Charge(ScaleCost* cost, std::int64_t received, std::int64_t sent,
                      std::int64_t before) {
  const std::int64_t spent = Meter() - before;
  cost->received += received;
  cost->sent += sent;
  ++cost->calls;
  cost->spent += spent;
  cost->most_sent = std::max(cost->most_sent, sent);
  cost->most_spent = std::max(cost->most_spent, spent);
}

void ScaleRun::Handle(const coordinator::Input& input) {
  const auto* received = std::get_if<coordinator::Received>(&input);
  const bool beat = received != nullptr && std::holds_alternative<Heartbeat>(received->message);
  const std::int64_t before = Meter();
  core_.Handle(input, now_);
  const coordinator::Effects effects = core_.TakeEffects();
  deadline_ = core_.NextDeadline();
  Charge(beat ? &phase_.heartbeats : &phase_.protocol, received == nullptr ? 0 : 1,
         static_cast<std::int64_t>(effects.sends.size()), before);
  for (const coordinator::Event& event : effects.events) {
    if (event.kind == coordinator::EventKind::kAssigned) ++phase_.decisions;
    if (event.kind == coordinator::EventKind::kFirstStep) first_step_ = true;
    if (event.kind == coordinator::EventKind::kRolledBack) Problem("steps were undone");
    if (event.kind == coordinator::EventKind::kEnded) Problem("the job ended: " + event.detail);
    if (event.kind == coordinator::EventKind::kStarted && event.incident) {
      started_ = event.generation;
      started_at_ = now_;
      base_ = event.step;
      phase_.world_size = event.incident->world_after;
    }
  }
  for (const coordinator::Send& send : effects.sends) {
    const std::int64_t index = send.to.value() - 1;
    if (index >= static_cast<std::int64_t>(workers_.size())) continue;  // to a launcher
    Hear(static_cast<std::int32_t>(index), send.message);
  }
}

void ScaleRun::Hear(std::int32_t index, const Message& message) {
  StandIn& worker = workers_[static_cast<std::size_t>(index)];
  if (!worker.alive) return;
  if (const auto* welcome = std::get_if<Welcome>(&message)) {
    worker.interval = welcome->heartbeat_interval;
    Plan(worker.interval / 2 + Spread(), index, Planned::What::kBeat);
  } else if (const auto* ack = std::get_if<Ack>(&message)) {
    worker.interval = ack->interval;
  } else if (const auto* interrupt = std::get_if<Interrupt>(&message)) {
    if (interrupt->generation <= worker.highest) return;
    worker.highest = worker.forming = interrupt->generation;
    worker.interrupted = now_ + kDelay;
    Plan(kDelay * 2 + Spread(), index, Planned::What::kReady, worker.forming);
  } else if (const auto* assign = std::get_if<Assign>(&message)) {
    if (assign->record->generation != worker.forming) return;
    assigned_ = assign->record;
    Plan(kDelay * 2 + Spread(), index, Planned::What::kFormed, worker.forming);
  } else if (const auto* start = std::get_if<Start>(&message)) {
    if (start->generation != worker.forming) return;
    worker.generation = std::exchange(worker.forming, Generation());
    worker.stopped = false;
    Plan(kDelay * 2 + Spread(), index, Planned::What::kFirstCommit, worker.generation);
  } else if (const auto* wish = std::get_if<Wish>(&message)) {
    if (!wish->wishes.reform || wish->generation != worker.generation || worker.stopped) return;
    Plan(kDelay * 2 + Spread(), index, Planned::What::kStopped, worker.generation);
  } else if (const auto* refused = std::get_if<Refused>(&message)) {
    Problem("a live worker was refused: " + refused->reason);
  }
}

}  // namespace

ScaleResult MeasureScale(const ScaleOptions& options) { return ScaleRun(options).Run(); }

}  // namespace muster::sim
