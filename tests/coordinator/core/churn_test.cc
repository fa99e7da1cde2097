// A job that re-forms a hundred thousand times: what it costs must not depend on what has been.
// Everything is counted, nothing is timed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <vector>

#include "coordinator/core/coordinator.h"
#include "coordinator/core/durable_state.h"
#include "protocol/codec.h"

namespace muster::coordinator {
namespace {

// Honest workers on one node with a launcher, no faster than they have to be. Each is a process of
// its own with a fresh name, incarnation and pid, as a restarted one is.
class Churn {
 public:
  explicit Churn(std::int32_t min_workers) {
    config_.cooldown_forgiveness = Duration::Seconds(60);  // so that the first thousand fill it
    config_.join_window = config_.growth_interval = config_.settle = Duration();
    spec_.min_workers = min_workers;
    spec_.max_workers = 3;
    spec_.samples = spec_.global_batch = spec_.micro_batches = 3;
    spec_.checkpoint_keep = 1;
    spec_.checkpoint_directory = "/c";
    spec_.tensors = {{"t", DType::kFloat32, {3}, 0}};
    core_ = std::make_unique<Coordinator>(config_, 1, std::vector<StoredJob>(), now_);
    launcher_ = SessionId(++next_);
    Hand(launcher_, LauncherHello{kProtocolMajor, kProtocolMinor, JobName("job"), NodeName("n")});
    while (workers_.size() < 3) Spawn();
    Settle();
    Step();
  }

  // A member dies and another one takes its place: two generations, or three when all die.
  void Cycle(bool all) {
    const std::size_t victims = all ? workers_.size() : 1;
    for (std::size_t i = 0; i < victims; ++i) Kill(0);
    if (all) Spawn();
    Settle();
    Step();
    while (workers_.size() < 3) Spawn();
    Settle();
    Step();  // agrees to re-form, and stops
    Settle();
    Save();
    Step();
    Pass();
  }

  // Two of three are lost; another one comes and goes, so many times, and one is missing always.
  void WaitForMore(int times) {
    while (workers_.size() > 1) Kill(1);
    Settle();
    for (int i = 0; i < times; ++i) {
      Spawn();
      Settle();
      Kill(1);
      Pass();
    }
  }

  [[nodiscard]] std::int64_t reforms() const { return reforms_; }
  [[nodiscard]] std::int64_t rollbacks() const { return rollbacks_; }
  [[nodiscard]] std::size_t footprint() const { return core_->Footprint(); }
  [[nodiscard]] std::int64_t committed() const { return record_.committed.value(); }
  // Of what is durable, with all numbers written at one length.
  [[nodiscard]] std::size_t stored() const {
    JobRecord record = record_;
    for (auto* generation : {&record.latest, &record.started}) {
      if (!*generation) continue;
      (*generation)->generation = (*generation)->previous = Generation(1);
      (*generation)->restore = Restore();
      (*generation)->decision = StepDecision();
      for (MemberEntry& entry : (*generation)->members) entry.member = {WorkerId("w"), {}};
    }
    record.highest = Generation(1);
    record.committed = muster::Step(1);
    for (Rollback& rollback : record.rollbacks) rollback = {Generation(1), muster::Step(1)};
    return EncodeJobRecord(record).size() + checkpoints_.size() * 100;
  }

 private:
  struct Worker {
    Member member;
    SessionId session;
    std::int64_t pid = 0;
    Generation generation;  // started
    GenerationRecord assigned;
    muster::Step committed;
    bool holds = false;
    bool wished = false;
  };

  void Hand(SessionId session, Message message) {
    core_->Handle(Received{session, std::move(message), "10.0.0.1"}, now_);
  }
  void Spawn() {
    Worker worker;
    worker.pid = ++next_;
    worker.member = {WorkerId(fmt::format("w{}", worker.pid)),
                     Incarnation(static_cast<std::uint64_t>(worker.pid))};
    worker.session = SessionId(++next_);
    Hello hello;
    hello.job = JobName("job");
    hello.member = worker.member;
    hello.node = NodeName("n");
    hello.pid = worker.pid;
    hello.address = "10.0.0.1:1";
    hello.able = true;
    hello.spec = spec_;
    workers_.push_back(worker);
    Hand(worker.session, hello);
    Hand(launcher_, Attest{worker.member.worker, worker.pid, true, "started"});
  }
  void Kill(std::size_t index) {
    const Worker victim = workers_[index];
    workers_.erase(workers_.begin() + static_cast<std::ptrdiff_t>(index));
    const MemberEntry* rank = Find(victim.assigned, victim.member);
    if (rank != nullptr && !workers_.empty()) {
      const Worker& peer = workers_.front();
      Hand(peer.session, OperationFailed{peer.generation, peer.committed.Next(), Code::kUnavailable,
                                         "connection reset", rank->rank});
    }
    Hand(launcher_, Attest{victim.member.worker, victim.pid, false, "killed"});
    core_->Handle(Closed{victim.session}, now_);
  }
  void Pass() {
    now_ = now_ + Duration::Seconds(1);
    for (const Worker& worker : workers_) Beat(worker);
    if (core_->NextDeadline() <= now_) core_->Handle(Tick{}, now_);
    Settle();
  }
  void Beat(const Worker& worker) {
    Heartbeat beat;
    beat.generation = worker.generation;
    beat.committed = worker.committed;
    Hand(worker.session, beat);
  }
  void Step() {
    for (Worker& worker : workers_) {
      if (worker.generation == Generation()) continue;
      worker.committed = worker.committed.Next();
      Beat(worker);
      if (worker.wished) Hand(worker.session, Stopped{worker.generation, worker.committed});
    }
  }
  void Save() {
    for (const Worker& worker : workers_) {
      const MemberEntry* entry = Find(worker.assigned, worker.member);
      if (entry == nullptr) continue;
      ShardWritten shard;
      shard.key = {worker.committed, worker.generation};
      shard.lineage = worker.assigned.lineage;
      shard.world_size = worker.assigned.world_size();
      shard.file = {"f", 1, 1, entry->rank};
      Hand(worker.session, shard);
    }
    Settle();
  }

  // Until nobody has anything to say any more.
  void Settle() {
    for (;;) {
      Effects effects = core_->TakeEffects();
      if (effects.empty()) return;
      for (const Persist& persist : effects.persist) Keep(persist);
      for (const Event& event : effects.events) {
        reforms_ += event.kind == EventKind::kStarted ? 1 : 0;
        rollbacks_ += event.kind == EventKind::kRolledBack ? 1 : 0;
      }
      for (Send& send : effects.sends) {
        const auto it = std::ranges::find(workers_, send.to, &Worker::session);
        if (it != workers_.end()) Hear(*it, send.message);
      }
      for (const SessionId session : effects.closes) core_->Handle(Closed{session}, now_);
    }
  }
  void Keep(const Persist& persist) {
    if (const auto* put = std::get_if<PutJob>(&persist)) record_ = put->record;
    if (const auto* put = std::get_if<PutCheckpoint>(&persist)) {
      checkpoints_[put->entry.record.key] = put->entry;
    }
    if (const auto* drop = std::get_if<DropCheckpoint>(&persist)) checkpoints_.erase(drop->key);
  }
  void Hear(Worker& worker, const Message& message) {
    if (const auto* interrupt = std::get_if<Interrupt>(&message)) {
      Ready ready;
      ready.forming = interrupt->generation;
      ready.generation = worker.generation;
      ready.committed = worker.committed;
      ready.holds_state = worker.holds;
      ready.lineage = worker.generation == Generation() ? Lineage() : worker.assigned.lineage;
      Hand(worker.session, ready);
    } else if (const auto* assign = std::get_if<Assign>(&message)) {
      worker.assigned = assign->record;
      Hand(worker.session, Formed{assign->record.generation, 1, 1, 1});
    } else if (std::holds_alternative<Start>(message)) {
      worker.generation = worker.assigned.generation;
      worker.committed = worker.assigned.restore.step;
      worker.holds = true;
      worker.wished = false;
    } else if (const auto* wish = std::get_if<Wish>(&message)) {
      worker.wished = wish->wishes.reform;
    } else if (const auto* write = std::get_if<WriteManifest>(&message)) {
      Hand(worker.session, ManifestWritten{write->record.key, 7, Code::kOk, ""});
    } else if (const auto* remove = std::get_if<RemoveCheckpoint>(&message)) {
      Hand(worker.session, CheckpointRemoved{remove->key});
    }
  }

  Config config_;
  JobSpec spec_;
  Instant now_ = Instant::FromNanos(1'000'000'000);
  std::unique_ptr<Coordinator> core_;
  SessionId launcher_;
  std::deque<Worker> workers_;
  JobRecord record_;
  std::map<CheckpointKey, CheckpointEntry> checkpoints_;
  std::int64_t next_ = 0;
  std::int64_t reforms_ = 0;
  std::int64_t rollbacks_ = 0;
};

struct Cost {
  std::size_t footprint = 0;
  std::size_t stored = 0;
};

// The most that was ever there on the way to so many re-forms.
Cost RunTo(Churn& churn, std::int64_t reforms, std::int64_t* cycles) {
  Cost most;
  while (churn.reforms() < reforms) {
    const std::int64_t before = churn.reforms();
    churn.Cycle(++*cycles % 10 == 0);
    EXPECT_GT(churn.reforms(), before);
    if (churn.reforms() == before) break;
    most.footprint = std::max(most.footprint, churn.footprint());
    most.stored = std::max(most.stored, churn.stored());
    if (most.footprint > 5'000) break;  // enough to fail
  }
  return most;
}

TEST(Churn, AHundredThousandReformsCostNoMoreAtTheEnd) {
  Churn churn(1);
  std::int64_t cycles = 0;
  const Cost early = RunTo(churn, 1'000, &cycles);
  const Cost late = RunTo(churn, 100'000, &cycles);
  EXPECT_GE(churn.reforms(), 100'000);
  EXPECT_GT(churn.rollbacks(), 1'000);
  EXPECT_GT(churn.committed(), 10'000);  // from checkpoint to checkpoint
  EXPECT_LE(late.footprint, early.footprint);
  EXPECT_LE(late.stored, early.stored);
  EXPECT_LT(late.footprint, 2'000U);
}

TEST(Churn, WhoeverComesAndGoesWhileTooFewAreThereLeavesNothing) {
  Churn churn(3);
  churn.WaitForMore(10);
  const std::size_t early = churn.footprint();
  churn.WaitForMore(1'000);
  EXPECT_EQ(churn.footprint(), early);
  EXPECT_EQ(churn.reforms(), 1);
}

}  // namespace
}  // namespace muster::coordinator
