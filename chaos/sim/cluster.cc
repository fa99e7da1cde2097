#include "chaos/sim/cluster.h"

#include <fmt/format.h>

#include <algorithm>

#include "protocol/codec.h"

namespace muster::sim {

namespace {
constexpr char kJob[] = "sim";
}  // namespace

Cluster::Cluster(const Options& options)
    : options_(options), prng_(Mix64(options.seed)), data_(events_, prng_, options.delay) {
  for (int i = 0; i < options_.workers; ++i) {
    processes_.push_back(std::make_unique<Process>());
    processes_.back()->index = i;
  }
}

Cluster::~Cluster() = default;

JobSpec Cluster::Spec() const {
  JobSpec spec;
  spec.min_workers = options_.min_workers;
  spec.max_workers = options_.max_workers;
  spec.samples = 1000;
  spec.global_batch = 64;
  spec.micro_batches = 16;
  spec.steps = 0;
  if (options_.sharded) {
    spec.checkpoint_directory = "/sim";
    spec.checkpoint_every = 7;
    TensorSpec shard{"m", DType::kFloat32, {64}, 0};
    spec.tensors.push_back(shard);
  } else {
    TensorSpec whole{"w", DType::kFloat32, {64}, -1};
    spec.tensors.push_back(whole);
  }
  return spec;
}

void Cluster::Trace(std::string line) {
  std::string full = fmt::format(
      "{:10.3f} {}", (events_.now() - Instant::FromNanos(1'000'000'000'000)).ToMillis(), line);
  for (const char c : full) hash_ = Mix64(hash_ ^ static_cast<unsigned char>(c));
  if (options_.trace) trace_.push_back(std::move(full));
}

Duration Cluster::Delay() {
  return Duration::Nanos(static_cast<std::int64_t>(
      prng_.Below(static_cast<std::uint64_t>(options_.delay.nanos())) + 1000));
}

Cluster::Process* Cluster::ByMember(const Member& member) {
  for (const auto& p : processes_) {
    if (p->alive && p->session->member() == member) return p.get();
  }
  return nullptr;
}

// Runs `what` in the process's present life, and not while it stands still.
void Cluster::Later(Process& p, Duration delay, std::function<void()> what) {
  events_.After(delay, [this, &p, life = p.life, what = std::move(what)]() mutable {
    if (p.life != life || !p.alive) return;
    if (p.paused) {
      p.missed.push_back([this, &p, life, what = std::move(what)] {
        if (p.life == life && p.alive) what();
      });
      return;
    }
    what();
  });
}

void Cluster::StartProcess(Process& p) {
  ++p.life;
  p.pid = 1000 + p.index * 1000 + p.life;
  p.alive = true;
  p.paused = p.cut_off = false;
  p.missed.clear();
  p.at = At::kBoundary;
  p.state = 0;
  p.state_step = Step();
  p.timer = false;
  p.connection = SessionId();
  worker::Identity identity;
  identity.job = JobName(kJob);
  identity.worker = WorkerId(fmt::format("w{}", p.index));
  identity.explicit_name = true;
  identity.node = NodeName(fmt::format("n{}", p.index));
  identity.pid = p.pid;
  identity.address = fmt::format("10.0.0.{}:1", p.index);
  identity.spec = Spec();
  identity.url = "sim";
  identity.connect_timeout = Duration::Seconds(3600);
  identity.seed = prng_.Next();
  Trace(fmt::format("start w{} pid {}", p.index, p.pid));
  p.session = std::make_unique<worker::Session>(identity, events_.now());
  Attest(p, true);
  Drain(p);
  Tell(p, worker::AtBoundary{});
  BeginStep(p);
}

void Cluster::KillProcess(Process& p) {
  if (!p.alive) return;
  Trace(fmt::format("kill w{} pid {}", p.index, p.pid));
  data_.Kill(p.session->member());
  p.alive = false;
  p.paused = false;
  ++p.life;
  p.missed.clear();
  Hangup(p);
  Attest(p, false);
}

void Cluster::Hangup(Process& p) {
  if (p.connection == SessionId()) return;
  const SessionId session = p.connection;
  p.connection = SessionId();
  by_session_.erase(session);
  events_.After(Delay(), [this, session, life = coordinator_life_] {
    if (coordinator_ && life == coordinator_life_) Deliver(coordinator::Closed{session});
  });
}

void Cluster::Tell(Process& p, const worker::Input& input) {
  p.session->Handle(input, events_.now());
  Drain(p);
}

void Cluster::Drain(Process& p) {
  worker::Effects effects = p.session->TakeEffects();
  for (const std::string& notice : effects.notices) {
    Trace(fmt::format("  w{}: {}", p.index, notice));
  }
  if (effects.abort) {
    const Member me = p.session->member();
    // The training thread leaves its call a little later; only then is the abort done.
    Later(p, Duration::Micros(200), [this, &p, me] {
      data_.Abort(me);
      Tell(p, worker::Aborted{0.2});
      Pump(p);
    });
  }
  if (effects.close) Hangup(p);
  for (const Message& message : effects.sends) {
    Trace(fmt::format("  w{} -> {}", p.index, NameOf(message)));
    const SessionId session = p.connection;
    if (session == SessionId() || p.cut_off) continue;
    // TCP keeps the order: a later message never arrives earlier.
    events_.After(options_.delay, [this, session, message, life = coordinator_life_] {
      if (!coordinator_ || life != coordinator_life_ || !by_session_.contains(session)) return;
      Deliver(coordinator::Received{session, message, "10.0.0.9"});
    });
  }
  if (effects.dial) Dial(p, *effects.dial);
  HandleSaver(p, effects);
  ArmTimer(p);
  if (effects.wake) Later(p, Duration::Micros(10), [this, &p] { Pump(p); });
}

void Cluster::Dial(Process& p, std::int64_t number) {
  p.dial = number;
  Later(p, Delay() + options_.delay, [this, &p, number] {
    if (p.dial != number) return;
    if (!coordinator_ || p.cut_off) {
      Tell(p, worker::Disconnected{number, Unavailable("refused")});
      return;
    }
    p.connection = SessionId(next_session_++);
    by_session_[p.connection] = p.index;
    Tell(p, worker::Connected{number});
  });
}

void Cluster::ArmTimer(Process& p) {
  const Instant at = p.session->NextDeadline();
  if (at == Instant::Never() || (p.timer && p.timer_at <= at && p.timer_at > events_.now())) return;
  p.timer = true;
  p.timer_at = std::max(at, events_.now() + Duration::Micros(1));
  Later(p, p.timer_at - events_.now(), [this, &p, when = p.timer_at] {
    if (!p.timer || p.timer_at != when) return;
    p.timer = false;
    const bool inside = p.at == At::kReducing || p.at == At::kVoting || p.at == At::kForming;
    Tell(p, worker::Tick{static_cast<std::uint64_t>(p.state_step.value() * 2), inside});
    Pump(p);
  });
}

RunResult Cluster::Run() {
  StartCoordinator();
  for (const auto& p : processes_) {
    Later(*p, Duration(), [] {});
    events_.After(Delay() * static_cast<std::int64_t>(1 + prng_.Below(20)),
                  [this, &p] { StartProcess(*p); });
  }
  PlanFaults();
  const Instant start = events_.now();
  peace_ = start + options_.faulty_phase;
  events_.At(peace_, [this] { Heal(); });
  const Instant end = peace_ + options_.liveness_bound;
  Step at_peace;
  bool peaceful = false;
  while (!events_.empty() && ledger_.violation().empty() && events_.next() <= end) {
    events_.Step();
    if (!peaceful && events_.now() >= peace_) {
      peaceful = true;
      at_peace = ledger_.last();
    }
    if (peaceful && ledger_.last().value() >= at_peace.value() + 20 &&
        events_.now() > peace_ + Duration::Seconds(15)) {
      break;
    }
  }
  if (ledger_.violation().empty() && ledger_.last().value() < at_peace.value() + 20) {
    const auto view =
        coordinator_ ? coordinator_->Describe(JobName(kJob), events_.now()) : std::nullopt;
    ledger_.Violate(fmt::format("L1: no training {:.0f} s after the last fault; waiting for: {}",
                                options_.liveness_bound.ToSeconds(),
                                view ? view->waiting_for : "no job"));
  }
  RunResult result;
  result.violation = ledger_.violation();
  result.steps = ledger_.last().value();
  result.reforms = reforms_;
  result.rollbacks = rollbacks_;
  result.trace_hash = hash_;
  result.trace = std::move(trace_);
  return result;
}

}  // namespace muster::sim
