// A session under test, with a coordinator played by hand and a clock that only the test moves.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "worker/core/session.h"

namespace muster::worker {

inline JobSpec SpecOf(std::int64_t steps = 100) {
  JobSpec spec;
  spec.min_workers = 1;
  spec.max_workers = 4;
  spec.steps = steps;
  spec.samples = 100;
  spec.global_batch = 8;
  spec.micro_batches = 8;
  spec.failure_timeout = Duration::Seconds(2);
  TensorSpec model;
  model.name = "model";
  model.shape = {8};
  spec.tensors = {model};
  return spec;
}

class SessionHarness {
 public:
  explicit SessionHarness(JobSpec spec = SpecOf()) : session_(IdentityFor(std::move(spec)), now_) {
    Absorb();
  }

  static Identity IdentityFor(JobSpec spec) {
    Identity identity;
    identity.job = JobName("job");
    identity.worker = WorkerId("me");
    identity.node = NodeName("node");
    identity.pid = 4711;
    identity.address = ":1";
    identity.spec = std::move(spec);
    identity.url = "http://c:1";
    identity.connect_timeout = Duration::Seconds(60);
    identity.seed = 7;
    return identity;
  }

  void Hand(const Input& input) {
    session_.Handle(input, now_);
    Absorb();
  }
  void Say(Message message) { Hand(Received{connection_, std::move(message)}); }
  void Pass(Duration by) { now_ = now_ + by; }
  // Time passes, and the session is called whenever it asked to be.
  void Run(Duration by) {
    const Instant end = now_ + by;
    for (int calls = 0; session_.NextDeadline() <= end; ++calls) {
      ASSERT_LT(calls, 100000) << "the session asks to be called without end";
      now_ = std::max(now_, session_.NextDeadline());
      Hand(Tick{});
    }
    now_ = end;
  }

  // --- The coordinator ---
  void Accept() {
    ASSERT_TRUE(dial_) << "it did not dial";
    connection_ = *std::exchange(dial_, std::nullopt);
    Hand(Connected{connection_});
  }
  void RefuseDial() {
    ASSERT_TRUE(dial_);
    Hand(Disconnected{*std::exchange(dial_, std::nullopt), Unavailable("refused")});
  }
  void Cut() { Hand(Disconnected{connection_, Unavailable("cut")}); }
  void Greet() {
    Welcome welcome;
    welcome.lineage = Lineage(99);
    welcome.lease = Duration::Seconds(2);
    welcome.heartbeat_interval = Duration::Millis(200);
    welcome.autonomy = Duration::Seconds(600);
    welcome.forming_timeout = Duration::Seconds(30);
    welcome.progress_timeout = Duration::Seconds(600);
    Say(welcome);
  }
  void Join() {
    Accept();
    Greet();
    Hand(AtBoundary{});
  }
  // Acknowledges the heartbeats sent so far.
  void Ack() {
    for (const Heartbeat& beat : TakeAll<Heartbeat>()) {
      Say(muster::Ack{beat.sequence, Duration::Millis(200)});
    }
  }
  // Time passes with a coordinator that answers.
  void Live(Duration by) {
    for (Duration done; done < by; done = done + Duration::Millis(100)) {
      Run(Duration::Millis(100));
      Ack();
    }
  }
  void SayInterrupt(std::int64_t generation, Cause cause = Cause::kProcessDied) {
    Say(Interrupt{Generation(generation), cause, "a reason"});
  }
  void FinishAbort() { Hand(Aborted{1.5}); }

  // A record with this worker as `rank` of `size`; the others' previous ranks are their ranks.
  [[nodiscard]] GenerationRecord RecordOf(std::int64_t generation, std::int32_t rank,
                                          std::int32_t size, std::int64_t step,
                                          RestoreSource source = RestoreSource::kLive) const {
    GenerationRecord record;
    record.generation = Generation(generation);
    record.lineage = Lineage(99);
    for (std::int32_t r = 0; r < size; ++r) {
      MemberEntry entry;
      entry.member =
          r == rank ? session_.member() : Member{WorkerId("w" + std::to_string(r)), Incarnation(5)};
      entry.rank = Rank(r);
      entry.address = "host:1";
      entry.previous_rank = source == RestoreSource::kLive ? Rank(r) : Rank(-1);
      record.members.push_back(entry);
    }
    record.restore.source = source;
    record.restore.step = Step(step);
    if (source == RestoreSource::kLive) {
      const GenerationRecord* started = session_.started_record();
      record.restore.base = started ? started->generation : Generation(generation - 1);
      record.restore.base_world_size = size;
    }
    return record;
  }
  void Form(const GenerationRecord& record) {
    SayInterrupt(record.generation.value());
    FinishAbort();
    Say(Assign{record});
    FormAssigned(record.generation);
  }
  void FormAssigned(Generation generation) {
    Hand(FormedHere{generation, 1, 1, 0});
    Say(Start{generation});
  }
  // In generation 1 of `size` as rank 0, at the boundary before step 1.
  void StartFirst(std::int32_t size = 2) {
    Join();
    Form(RecordOf(1, 0, size, 0, RestoreSource::kInitial));
    Hand(AtBoundary{});
    Forget();
    (void)TakeAbort();
  }

  // --- The training thread ---
  void OpenStep() { Hand(StepOpened{}); }
  void PrepareStep(std::int64_t step, Outcome vote = Outcome::kApply, Wishes wishes = {}) {
    Hand(Prepare{Step(step), vote, wishes, 0.5});
  }
  // A whole step; leaves the loop at the next boundary.
  void TakeStep(std::int64_t step, Wishes agreed = {}) {
    OpenStep();
    PrepareStep(step);
    Hand(VoteDone{Step(step), agreed});
    ASSERT_EQ(session_.Decided(now_), Outcome::kApply);
    Hand(OutcomeTaken{});
    Hand(AtBoundary{});
  }

  // --- What came out ---
  template <class T>
  std::vector<T> TakeAll() {
    std::vector<T> found;
    std::erase_if(sent_, [&](const Message& message) {
      if (const T* one = std::get_if<T>(&message)) found.push_back(*one);
      return std::holds_alternative<T>(message);
    });
    return found;
  }
  template <class T>
  std::optional<T> Take() {
    std::vector<T> found = TakeAll<T>();
    return found.empty() ? std::nullopt : std::optional<T>(found.back());
  }
  void Forget() { sent_.clear(); }
  bool TakeAbort() { return std::exchange(abort_, false); }
  bool TakeWake() { return std::exchange(wake_, false); }
  bool TakeClose() { return std::exchange(close_, false); }
  [[nodiscard]] bool dialing() const { return dial_.has_value(); }

  [[nodiscard]] Session& session() { return session_; }
  [[nodiscard]] const Session& session() const { return session_; }
  [[nodiscard]] Directive next() const { return session_.Next(now_); }
  [[nodiscard]] std::optional<Outcome> decided() const { return session_.Decided(now_); }
  [[nodiscard]] Instant now() const { return now_; }
  [[nodiscard]] const std::vector<std::string>& notices() const { return notices_; }
  std::vector<WriteManifest> manifests;
  std::vector<RemoveCheckpoint> removals;
  std::vector<SweepCheckpoints> sweeps;

 private:
  void Absorb() {
    Effects effects = session_.TakeEffects();
    abort_ = abort_ || effects.abort;
    close_ = close_ || effects.close;
    wake_ = wake_ || effects.wake;
    for (Message& message : effects.sends) sent_.push_back(std::move(message));
    if (effects.dial) dial_ = effects.dial;
    for (auto& request : effects.manifests) manifests.push_back(std::move(request));
    for (auto& request : effects.removals) removals.push_back(std::move(request));
    for (auto& request : effects.sweeps) sweeps.push_back(std::move(request));
    for (auto& notice : effects.notices) notices_.push_back(std::move(notice));
  }

  Instant now_ = Instant::FromNanos(1'000'000'000'000);
  Session session_;
  std::int64_t connection_ = 0;
  std::optional<std::int64_t> dial_;
  std::vector<Message> sent_;
  std::vector<std::string> notices_;
  bool abort_ = false;
  bool close_ = false;
  bool wake_ = false;
};

}  // namespace muster::worker
