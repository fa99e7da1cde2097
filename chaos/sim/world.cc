#include "chaos/sim/world.h"

#include <fmt/format.h>

#include <algorithm>

#include "chaos/sim/trace.h"
#include "coordinator/core/durable_state.h"

namespace muster::sim {

namespace {

constexpr Instant kEpoch = Instant::FromNanos(1'000'000'000'000);
// Longer than it takes to forget anything about a worker but that it was given up.
constexpr Duration kShadow = Duration::Seconds(20);

coordinator::Config ConfigOf(const Options& options) {
  coordinator::Config config;
  config.growth_interval = Duration::Seconds(1);
  config.join_window = Duration::Seconds(1);
  config.autonomy = options.autonomy;
  config.first_step_timeout = Duration::Seconds(10);
  config.progress_timeout = Duration::Seconds(5);
  config.max_patience = std::min(Duration::Seconds(5), options.autonomy / 2);
  config.checkpoint_timeout = Duration::Seconds(5);
  config.forming_timeout = options.lease + Duration::Seconds(3);
  config.max_forming_attempts = 1000;
  config.cooldown_failures = 2;
  config.cooldown = Duration::Seconds(3);
  config.max_cooldown = Duration::Seconds(12);
  return config;
}

JobSpec SpecOf(const Options& options) {
  JobSpec spec;
  spec.min_workers = options.min_workers;
  spec.max_workers = options.max_workers;
  spec.samples = 1000;
  spec.global_batch = 64;
  spec.micro_batches = 16;
  spec.steps = options.steps;
  spec.failure_timeout = options.lease;
  spec.backend = options.backend;
  TensorSpec tensor{"w", DType::kFloat32, {kElements}, options.sharded ? 0 : -1};
  spec.tensors.push_back(tensor);
  if (options.sharded || options.checkpoints) {
    spec.checkpoint_directory = "/sim";
    spec.checkpoint_every = options.save_every;
    spec.checkpoint_keep = 2;
    spec.checkpoint_keep_every = options.keep_every;
  }
  return spec;
}

// Things that the training thread does, and so not while it is stuck.
bool OfTrainer(const Action& what) {
  if (std::holds_alternative<OperationEnds>(what)) return true;
  const auto* go_on = std::get_if<Continue>(&what);
  return go_on != nullptr && go_on->what != Thread::kAbortDone;
}

}  // namespace

World::World(const Options& options)
    : options_(options),
      spec_(SpecOf(options)),
      prng_(Mix64(options.seed)),
      ids_(Mix64(~options.seed)),
      network_(options.workers),
      config_(ConfigOf(options)),
      exact_data_(spec_),
      safe_checkpoints_(kElements),
      healthy_workers_(kShadow),
      reforming_(config_.join_window + Duration::Millis(500),
                 config_.settle * 64 + Duration::Millis(500)) {
  for (int i = 0; i < options_.workers; ++i) {
    Process& p = processes_.emplace_back();
    p.index = i;
    p.node = i / options_.workers_per_node;
    p.offset = Duration::Seconds(static_cast<std::int64_t>(prng_.Below(1000)));
    const auto most = static_cast<std::uint64_t>(options_.drift_ppm);
    p.drift_ppm = static_cast<int>(prng_.Below(2 * most + 1)) - options_.drift_ppm;
  }
}

// --- Time ----------------------------------------------------------------------------------------

Instant World::LocalTime(const Process& p, Instant at) const {
  const std::int64_t since = (at - kEpoch).nanos();
  return at + p.offset + Duration::Nanos(since / 1'000'000 * p.drift_ppm);
}

Instant World::WorldTime(const Process& p, Instant local) const {
  const Instant guess = local + Duration::Nanos(-p.offset.nanos());
  const std::int64_t since = (guess - kEpoch).nanos();
  Instant at = guess + Duration::Nanos(-(since / 1'000'000 * p.drift_ppm));
  while (LocalTime(p, at) < local) at = at + Duration::Micros(1);
  return at;
}

Duration World::Delay(std::int64_t most_of) {
  if (exhaustive_) return {};
  const auto most = static_cast<std::uint64_t>(options_.delay.nanos() * most_of);
  return Duration::Nanos(static_cast<std::int64_t>(prng_.Below(most)) + 1000);
}

bool World::Chance(std::uint64_t numerator, std::uint64_t denominator) {
  return !exhaustive_ && prng_.Chance(numerator, denominator);
}

void World::Later(int process, Duration delay, Action what) {
  const std::int64_t life = process == Pending::kCoordinator ? coordinator_life_
                            : process == Pending::kNobody    ? 0
                                                             : Of(process).life;
  queue_.Add(now_ + (exhaustive_ ? Duration() : delay), {process, life, std::move(what)});
}

void World::Happen(Instant when, Pending pending) {
  now_ = std::max(now_, when);
  ++result_.events;
  const auto number = static_cast<std::uint64_t>(now_.nanos());
  result_.trace_hash =
      Mix64(result_.trace_hash ^ number ^ (static_cast<std::uint64_t>(pending.process) << 48U) ^
            (pending.what.index() << 56U));
  Do(std::move(pending));
  if (now_ >= next_look_) {
    next_look_ = now_ + Duration::Seconds(1);
    CheckWaiting();
  }
}

// Not in a life that is over; and not now, while its process stands still.
void World::Do(Pending pending) {
  if (pending.process == Pending::kCoordinator) {
    if (pending.life != coordinator_life_ || !coordinator_) return;
    if (coordinator_paused_ > 0) {
      coordinator_missed_.push_back(std::move(pending));
      return;
    }
  } else if (pending.process != Pending::kNobody) {
    Process& p = Of(pending.process);
    if (p.life != pending.life) return;
    if (p.paused > 0) {
      p.missed.push_back(std::move(pending));
      return;
    }
    if (p.stuck > 0 && OfTrainer(pending.what)) {
      p.parked.push_back(std::move(pending));
      return;
    }
  }
  Perform(pending.process, pending.what);
}

void World::Perform(int process, const Action& what) {
  if (const auto* message = std::get_if<ToCoordinator>(&what)) return On(*message);
  if (const auto* close = std::get_if<CoordinatorHearsClose>(&what)) {
    network_.Forget(close->session);
    return Deliver(coordinator::Closed{close->session});
  }
  if (std::holds_alternative<CoordinatorTimer>(what)) {
    coordinator_timer_ = Instant::Never();
    return Deliver(coordinator::Tick{});
  }
  if (std::holds_alternative<Synced>(what)) return OnSynced();
  if (std::holds_alternative<StartCoordinatorAgain>(what)) {
    if (!coordinator_) StartCoordinator();
    return;
  }
  if (std::holds_alternative<NextFault>(what)) return Inject();
  if (std::holds_alternative<sim::Heal>(what)) return Heal();
  if (const auto* end = std::get_if<EndFault>(&what)) return End(*end);
  Process& p = Of(process);
  if (std::holds_alternative<Launch>(what)) {
    if (!p.alive) {
      LaunchProcess(p);
    } else if (now_ < p.flaps_until) {
      Flap(p);
    }
    return;
  }
  if (!p.alive) return;
  if (const auto* dial = std::get_if<DialEnds>(&what)) return On(p, *dial);
  if (const auto* message = std::get_if<ToWorker>(&what)) return On(p, *message);
  if (const auto* close = std::get_if<WorkerHearsClose>(&what)) return On(p, *close);
  if (std::holds_alternative<WorkerTimer>(what)) return OnWorkerTimer(p);
  if (const auto* ends = std::get_if<OperationEnds>(&what)) return On(p, *ends);
  if (const auto* go_on = std::get_if<Continue>(&what)) return On(p, *go_on);
  if (const auto* done = std::get_if<FileDone>(&what)) return On(p, *done);
}

// --- Processes -----------------------------------------------------------------------------------

void World::LaunchProcess(Process& p) {
  Process fresh;
  fresh.index = p.index;
  fresh.node = p.node;
  fresh.life = p.life + 1;
  fresh.pid = 1000 + p.index * 1000 + fresh.life;
  fresh.alive = true;
  fresh.offset = p.offset;
  fresh.drift_ppm = p.drift_ppm;
  fresh.slow_link = p.slow_link;
  fresh.disk_full = p.disk_full;
  fresh.haunted_until = p.haunted_until;
  fresh.flaps_until = p.flaps_until;
  fresh.losses = p.losses;
  fresh.well_since = p.life == 0 ? Instant() : std::max(now_, p.haunted_until);
  fresh.serial = p.serial;
  fresh.dial = p.dial;
  p = std::move(fresh);
  worker::Identity identity;
  identity.job = JobName("sim");
  identity.worker = WorkerId(fmt::format("w{}", p.index));
  identity.explicit_name = true;
  identity.node = NodeName(fmt::format("n{}", p.node));
  identity.pid = p.pid;
  identity.address = fmt::format("10.0.0.{}:1", p.index);
  identity.spec = spec_;
  identity.url = "sim";
  identity.connect_timeout = Duration::Seconds(3600);
  identity.seed = exhaustive_ ? static_cast<std::uint64_t>(p.pid) : prng_.Next();
  Trace("start w{} pid {}", p.index, p.pid);
  if (!launchers_.contains(p.node)) StartLauncher(p.node);
  p.session.emplace(identity, LocalNow(p));
  Attest(p, true);
  Drain(p);
  Tell(p, worker::AtBoundary{});
  Later(p.index, Duration(), Continue{Thread::kPump, {}});
  if (now_ < p.flaps_until) Later(p.index, Duration::Millis(5) + Delay(10), Launch{});
}

void World::Flap(Process& p) {
  EndProcess(p, false, "flap");
  Later(p.index, Duration::Millis(5) + Delay(10), Launch{});
}

// `silent`: with its host, so that no connection is closed and no launcher can say so.
void World::EndProcess(Process& p, bool silent, const char* how) {
  if (!p.alive) return;
  Trace("{} w{} pid {}", how, p.index, p.pid);
  const Member me = MemberOf(p);
  p.haunted_until = now_ + (config_.autonomy + options_.lease) * 2;
  p.alive = false;
  ++p.life;
  ++p.losses;
  p.missed.clear();
  p.parked.clear();
  p.op.reset();
  p.paused = p.stuck = p.slow_compute = 0;
  const auto failed = data_.GiveUp(me, Generation(INT64_MAX));
  if (!silent) {
    Schedule(failed);
    Hangup(p);
    Attest(p, false);
  }
  p.connection = SessionId();
}

void World::Exit(Process& p) {
  p.at = At::kGone;
  Trace("w{} ends: {}", p.index, p.session->status().ToString());
  const bool over = chain_.record().end.has_value();
  EndProcess(p, false, "exit");
  // Whoever left as planned, or could not go on, is started again; not when the job is over.
  if (!over && !exhaustive_) Later(p.index, Duration::Millis(300), Launch{});
  if (exhaustive_) p.timer_at = now_ + options_.lease;  // for the explorer
}

Health World::HealthOf(const Process& p) const {
  Health health;
  health.name = fmt::format("w{}", p.index);
  health.well = p.alive && p.paused == 0 && p.stuck == 0 && p.slow_link == 0 &&
                p.slow_compute == 0 && p.disk_full == 0 && now_ >= p.flaps_until &&
                !network_.UpBlocked(p.index) && !network_.DownBlocked(p.index) &&
                !network_.AnyPeerBlocked(p.index);
  health.well_since = p.well_since;
  return health;
}

// Members of the generation that is being left, with whom nothing has been wrong for long.
std::vector<Holder> World::WellHolders(const JobRecord& record) const {
  std::vector<Holder> holders;
  if (!record.started) return holders;
  const Duration long_enough = options_.lease * 2 + Duration::Seconds(1);
  if (now_ - resumed_at_ < long_enough) return holders;  // it may not have read their words yet
  for (const Process& p : processes_) {
    const Health health = HealthOf(p);
    if (!health.well || p.leaving || now_ - health.well_since < long_enough) continue;
    const Member me = p.session->member();
    if (coordinator::Find(*record.started, me) == nullptr) continue;
    // In the cut of that generation: one that has not adopted it yet holds nothing of it.
    if (p.record && p.record->generation >= record.started->generation) {
      holders.push_back({me, p.held});
    }
  }
  return holders;
}

void World::CheckWaiting() {
  if (!coordinator_ || coordinator_paused_ > 0) return;
  const auto view = coordinator_->Describe(JobName("sim"), now_);
  std::vector<Health> all;
  for (const Process& p : processes_) all.push_back(HealthOf(p));
  const std::string waiting = view ? view->waiting_for : "";
  healthy_workers_.OnWaiting(waiting, all, now_, verdict_);
  if (view) {
    for (const coordinator::WorkerView& worker : view->workers) {
      if (worker.role != "cooling") continue;
      const auto of = std::ranges::find_if(
          all, [&](const Health& one) { return one.name == worker.member.worker.value(); });
      const int losses = of == all.end() ? 0 : Of(static_cast<int>(of - all.begin())).losses;
      healthy_workers_.OnCooling(worker.member.worker.value(), losses, config_.cooldown_failures,
                                 verdict_);
    }
  }
  reforming_.OnWaiting(view ? view->generation : Generation(), waiting, now_, verdict_);
}

// --- The run -------------------------------------------------------------------------------------

void World::Begin() {
  StartCoordinator();
  for (const Process& p : processes_) {
    if (p.index % options_.workers_per_node == 0) StartLauncher(p.node);
    const auto spread = static_cast<std::uint64_t>(options_.spread.nanos() + 1);
    const Duration when =
        exhaustive_ ? Duration() : Duration::Nanos(static_cast<std::int64_t>(prng_.Below(spread)));
    Later(p.index, when, Launch{});
  }
}

RunResult World::Run() {
  Begin();
  peace_ = now_ + options_.faulty_phase;
  PlanFaults();
  queue_.Add(peace_, {Pending::kNobody, 0, sim::Heal{}});
  const Instant end = peace_ + options_.liveness_bound;
  const auto done = [&] {
    if (!liveness_.satisfied()) return false;
    const bool over = chain_.record().end.has_value();
    return !over || std::ranges::none_of(processes_, &Process::alive);
  };
  while (!queue_.empty() && verdict_.ok() && queue_.next() <= end && !done()) {
    const Queue::Key key = queue_.entries().begin()->first;
    Happen(key.first, queue_.Take(key));
  }
  if (verdict_.ok() && !done()) {
    const auto view = coordinator_ ? coordinator_->Describe(JobName("sim"), now_) : std::nullopt;
    liveness_.AtDeadline(now_, view ? view->waiting_for : "no job", verdict_);
    if (verdict_.ok()) verdict_.Violate("L1", "the job has ended, but a worker goes on");
  }
  result_.violation = verdict_.violation();
  result_.steps = chain_.last().value();
  return result_;
}

}  // namespace muster::sim
