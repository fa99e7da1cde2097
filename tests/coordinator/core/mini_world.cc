#include "tests/coordinator/core/mini_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tests/coordinator/core/show.h"

namespace muster::coordinator {

namespace {

constexpr Duration kPulse = Duration::Millis(50);
constexpr Duration kAutonomy = Duration::Seconds(10);
constexpr std::size_t kWorkers = 4;

Config WorldConfig(const MiniWorld::Kind& kind) {
  Config config;
  // An empty store cannot know that workers train; they have this long to tell.
  config.join_window = Duration::Seconds(kind.loses_store ? 5 : 1);
  config.growth_interval = Duration::Seconds(1);
  config.forming_timeout = Duration::Seconds(5);
  config.autonomy = kAutonomy;
  config.progress_timeout = Duration::Seconds(3);
  config.first_step_timeout = Duration::Seconds(5);
  config.checkpoint_timeout = Duration::Seconds(4);
  config.max_patience = Duration::Seconds(3);
  config.max_forming_attempts = 100'000;  // the faults of a run are not to end the job
  return config;
}

}  // namespace

MiniWorld::MiniWorld(std::uint64_t seed, Kind kind)
    : kind_(kind), prng_(seed), driver_(WorldConfig(kind)) {
  spec_.min_workers = 2;
  spec_.max_workers = kWorkers;
  spec_.samples = 1000;
  spec_.global_batch = spec_.micro_batches = 64;
  spec_.checkpoint_every = 7;
  spec_.checkpoint_directory = "/checkpoints";
  spec_.tensors = {{"state", DType::kFloat32, {64}, kind.sharded ? 0 : -1}};
  for (std::size_t i = 0; i < kWorkers; ++i) Spawn();
}

void MiniWorld::Spawn() {
  auto worker = std::make_unique<Worker>();
  worker->member = {WorkerId(fmt::format("w{}", next_worker_++)), Incarnation(++next_incarnation_)};
  worker->pid = next_worker_;
  worker->touched = driver_.now();
  worker->delay = static_cast<int>(prng_.Below(20));
  workers_.push_back(std::move(worker));
}

MiniWorld::Worker* MiniWorld::Find(const Member& member) {
  const auto it =
      std::ranges::find_if(workers_, [&](const auto& w) { return w->member == member; });
  return it == workers_.end() ? nullptr : it->get();
}

bool MiniWorld::InTouch(const Worker& worker) const {
  return driver_.now() - worker.touched < kAutonomy;
}

std::vector<std::string> MiniWorld::violations() const {
  std::vector<std::string> all = violations_;
  all.insert(all.end(), driver_.violations().begin(), driver_.violations().end());
  return all;
}

std::string MiniWorld::Describe() const {
  const auto view = driver_.core().Describe(JobName("job"), driver_.now());
  std::string text = view ? Show(*view) + view->waiting_for + "\n" : "no job\n";
  for (const auto& w : workers_) {
    text += fmt::format("  {}{}{}{} forming g{} started g{} at {}{}\n", Show(w->member),
                        w->dead ? " dead" : "", w->paused ? " paused" : "",
                        w->session == SessionId() ? " away" : "", w->forming.value(),
                        w->started ? w->started->generation.value() : 0, w->history.size(),
                        w->initial_pending ? " waits for step 0" : "");
  }
  return text;
}

void MiniWorld::RunFaults(int pulses) {
  for (int i = 0; i < pulses && violations().empty(); ++i) Pulse(true);
}

bool MiniWorld::RunHealed(int pulses) {
  std::erase_if(workers_, [](const auto& worker) { return worker->dead || worker->gone; });
  for (const auto& worker : workers_) worker->paused = worker->leaving = false;
  while (workers_.size() < kWorkers) Spawn();
  for (const auto& [name, stored] : std::map(driver_.store())) {
    for (const Place& place : stored.record.drained) {
      driver_.Handle(Drain{name, place.worker, place.node, {}, true});
    }
  }
  std::size_t least = chain_.size() + 10;
  for (int i = 0; i < pulses && violations().empty(); ++i) {
    const std::size_t before = chain_.size();
    Pulse(false);
    if (chain_.size() < before) least = std::min(least, chain_.size() + 10);
    if (chain_.size() >= least && i > 100) return true;
  }
  return false;
}

void MiniWorld::Pulse(bool faults) {
  ++pulses_;
  if (faults) Fault();
  Route();
  for (std::size_t i = 0; i < workers_.size(); ++i) Act(*workers_[i]);
  Route();
  Train(faults);
  driver_.RunUntil(driver_.now() + kPulse, kPulse, [] {});
}

void MiniWorld::Drop(Worker& worker) {
  if (worker.session == SessionId()) return;
  worker.inbox.clear();
  driver_.Handle(Closed{std::exchange(worker.session, SessionId())});
  worker.delay = 1 + static_cast<int>(prng_.Below(12));
}

void MiniWorld::Kill(Worker& worker) {
  worker.dead = true;
  if (launcher_ != SessionId() && prng_.Chance(1, 2)) {
    driver_.Receive(launcher_, Attest{worker.member.worker, worker.pid, false, "killed"});
  }
  if (prng_.Chance(3, 4)) Drop(worker);  // else its host is gone, and nothing closes
}

// When nobody can tell of the last generation, it is lost with the store, and no rule can help.
bool MiniWorld::MayLoseStore() const {
  if (!kind_.loses_store || driver_.store().empty()) return false;
  const auto& started = driver_.store().begin()->second.record.started;
  if (!started) return false;
  bool some = false;
  for (const MemberEntry& entry : started->members) {
    const auto it =
        std::ranges::find_if(workers_, [&](const auto& w) { return w->member == entry.member; });
    if (it == workers_.end() || (*it)->dead) continue;
    if ((*it)->paused) return false;
    some = true;
  }
  return some;
}

void MiniWorld::KillCoordinator() {
  for (const auto& worker : workers_) {
    worker->session = SessionId();
    worker->inbox.clear();
    worker->delay = static_cast<int>(prng_.Below(30));
  }
  launcher_ = SessionId();
  const bool lose = MayLoseStore() && prng_.Chance(1, 2);
  if (lose) calm_ = 120;
  driver_.Restart(lose);
}

void MiniWorld::Fault() {
  Worker& victim = *workers_[prng_.Below(workers_.size())];
  const std::uint64_t dice = prng_.Below(1000);
  calm_ = std::max(0, calm_ - 1);
  // Until a lost generation is adopted, its members are all that knows of it.
  const bool adopted =
      !driver_.store().empty() && driver_.store().begin()->second.record.latest.has_value();
  if (!adopted) calm_ = std::max(calm_, 1);
  if (dice < 6 && !victim.dead && calm_ == 0) Kill(victim);
  if (dice >= 10 && dice < 16 && calm_ == 0) victim.paused = true;
  if (dice >= 20 && dice < 40) victim.paused = false;
  if (dice >= 40 && dice < 50 && !victim.dead) Drop(victim);
  if (dice >= 50 && dice < 53 && calm_ == 0) KillCoordinator();
  if (dice >= 60 && dice < 63 && !victim.dead) {
    victim.leaving = true;
    const auto notice = static_cast<std::int64_t>(prng_.Below(4));
    Say(victim, Leave{"asked", false, Duration::Seconds(notice)});  // 0: without a deadline
  }
  if (dice >= 63 && dice < 66) {
    driver_.Handle(Drain{JobName("job"), victim.member.worker, NodeName(), Duration::Seconds(1),
                         prng_.Chance(1, 2)});
  }
  if (dice >= 70 && dice < 80) {
    std::erase_if(workers_, [](const auto& worker) { return worker->dead || worker->gone; });
    if (workers_.size() < kWorkers + 1) Spawn();
  }
  if (launcher_ == SessionId() && dice >= 80 && dice < 90) {
    launcher_ = SessionId(++next_session_);
    driver_.Receive(launcher_,
                    LauncherHello{kProtocolMajor, kProtocolMinor, JobName("job"), NodeName("n1")});
  }
}

// From the coordinator to the inboxes.
void MiniWorld::Route() {
  Effects effects = driver_.Take();
  for (const Persist& persist : effects.persist) {
    const auto* put = std::get_if<PutJob>(&persist);
    if (put == nullptr) continue;
    for (const Rollback& rollback : put->record.rollbacks) {
      if (std::ranges::find(rollbacks_, rollback) == rollbacks_.end()) {
        rollbacks_.push_back(rollback);
      }
    }
  }
  for (Send& send : effects.sends) {
    for (const auto& worker : workers_) {
      if (worker->session == send.to && !worker->dead) {
        worker->inbox.push_back(std::move(send.message));
        break;
      }
    }
  }
  for (const SessionId session : effects.closes) {
    for (const auto& worker : workers_) {
      if (worker->session != session) continue;
      for (const Message& message : std::exchange(worker->inbox, {})) Hear(*worker, message);
      worker->session = SessionId();
      worker->delay = 1 + static_cast<int>(prng_.Below(10));
    }
    driver_.Handle(Closed{session});
  }
}

void MiniWorld::Train(bool faults) {
  std::set<Generation> generations;
  for (const auto& worker : workers_) {
    if (worker->started && !worker->dead) generations.insert(worker->started->generation);
  }
  for (const Generation generation : generations) {
    std::vector<Worker*> members;
    const GenerationRecord* record = nullptr;
    for (const auto& worker : workers_) {
      if (worker->started && worker->started->generation == generation) record = &*worker->started;
    }
    bool all = true;
    for (const MemberEntry& entry : record->members) {
      Worker* member = Find(entry.member);
      const bool ready = member != nullptr && !member->dead && !member->paused && member->started &&
                         member->started->generation == generation &&
                         member->forming == Generation() && !member->broken && !member->stopped &&
                         !member->initial_pending && InTouch(*member);
      all = all && ready;
      if (member != nullptr && !member->dead && ready) members.push_back(member);
    }
    if (all) {
      TakeStep(members, faults && prng_.Chance(1, 12));
      continue;
    }
    // The others wait for it; some see their connection to a dead one reset.
    for (const MemberEntry& entry : record->members) {
      const Worker* lost = Find(entry.member);
      if ((lost != nullptr && !lost->dead) || members.empty() || !prng_.Chance(1, 3)) continue;
      Worker& reporter = *members[prng_.Below(members.size())];
      reporter.broken = true;
      Say(reporter, OperationFailed{generation, Step(), Code::kUnavailable, "reset", entry.rank});
    }
  }
}

// One step of a whole generation, with its vote cut off anywhere when `cut`.
void MiniWorld::TakeStep(const std::vector<Worker*>& members, bool cut) {
  const std::uint64_t token = prng_.Next();
  const bool someone_not_prepared = cut && prng_.Chance(1, 2);
  Wishes agreed;
  for (Worker* worker : members) {
    if (worker->history != members[0]->history) Violation("members train from different states");
    worker->open = Open{token, !someone_not_prepared || prng_.Chance(1, 2), worker->wished};
    const auto step = static_cast<std::int64_t>(worker->history.size()) + 1;
    if (step % spec_.checkpoint_every == 0) worker->open->vote.checkpoint = true;
    agreed.checkpoint = agreed.checkpoint || worker->open->vote.checkpoint;
    agreed.reform = agreed.reform || worker->open->vote.reform;
  }
  if (someone_not_prepared) members[prng_.Below(members.size())]->open->prepared = false;
  for (Worker* worker : members) {
    const bool knows = !cut || (!someone_not_prepared && prng_.Chance(1, 2));
    if (!knows) continue;
    Commit(*worker, token, agreed);
    Snapshot(*worker);
    if (agreed.reform && !cut) {
      worker->stopped = true;
      worker->wished.reform = false;
      Say(*worker, Stopped{worker->started->generation,
                           Step(static_cast<std::int64_t>(worker->history.size()))});
    }
  }
  if (!cut) return;
  for (Worker* worker : members) worker->broken = true;
  Worker& reporter = *members[prng_.Below(members.size())];
  const auto peer = static_cast<std::int32_t>(prng_.Below(members.size() + 1)) - 1;
  Say(reporter,
      OperationFailed{reporter.started->generation, Step(), Code::kUnavailable, "cut", Rank(peer)});
}

void MiniWorld::Commit(Worker& worker, std::uint64_t token, Wishes agreed) {
  worker.history.push_back(token);
  worker.agreed = agreed;
  worker.open.reset();
  Note(Step(static_cast<std::int64_t>(worker.history.size())), worker.started->generation, token);
  // The first step of a generation is told at once, and so is the rest here.
  Heartbeat beat;
  beat.generation = worker.started->generation;
  beat.committed = Step(static_cast<std::int64_t>(worker.history.size()));
  Say(worker, beat);
}

// The chain as an observer sees it: a step is committed once, unless a rollback made it void.
void MiniWorld::Note(Step step, Generation generation, std::uint64_t token) {
  const auto index = static_cast<std::size_t>(step.value()) - 1;
  if (generation < committing_) {
    Violation(
        fmt::format("generation {} commits after {} did", generation.value(), committing_.value()));
  }
  committing_ = generation;
  if (index > chain_.size()) {
    Violation(fmt::format("step {} follows step {}", step.value(), chain_.size()));
    return;
  }
  if (index < chain_.size()) {
    if (chain_[index].token == token) return;
    const bool undone = std::ranges::any_of(rollbacks_, [&](const Rollback& rollback) {
      return rollback.generation > chain_[index].generation && rollback.step < step;
    });
    if (!undone) Violation(fmt::format("step {} is committed twice", step.value()));
    chain_.resize(index);
  }
  chain_.push_back({generation, token});
}

void MiniWorld::Snapshot(Worker& worker) {
  if (!worker.agreed.checkpoint || !worker.holds || !worker.started) return;
  worker.wished.checkpoint = false;
  const CheckpointKey key{Step(static_cast<std::int64_t>(worker.history.size())),
                          worker.started->generation};
  const auto [it, first] = saved_.try_emplace(key, worker.history);
  if (!first && it->second != worker.history) Violation("shards of different states under one key");
  ShardWritten shard;
  shard.key = key;
  shard.lineage = worker.started->lineage;
  shard.world_size = worker.started->world_size();
  for (const MemberEntry& entry : worker.started->members) {
    if (entry.member == worker.member) shard.file = {"f", 1, 1, entry.rank};
  }
  worker.reports.push_back(shard);
}

}  // namespace muster::coordinator
