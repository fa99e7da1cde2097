// A small world around one real Coordinator: workers that keep the worker's side of the protocol, a
// data plane on which a vote can be cut off at any point, and faults drawn from a seed. It checks
// that steps are atomic, that no two generations commit, that what a generation starts from is what
// the record says, and that training resumes once the faults stop. One pulse is 50 ms.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/prng.h"
#include "tests/coordinator/core/driver.h"

namespace muster::coordinator {

class MiniWorld {
 public:
  struct Kind {
    bool sharded = false;      // else one holder of the state is enough
    bool loses_store = false;  // a coordinator may come back with an empty store
  };
  MiniWorld(std::uint64_t seed, Kind kind);

  void RunFaults(int pulses);
  // No more faults: the dead are replaced, the paused wake. False when training has not advanced by
  // ten steps within `pulses`.
  bool RunHealed(int pulses);
  // Broken promises; empty when all is well.
  [[nodiscard]] std::vector<std::string> violations() const;
  [[nodiscard]] std::size_t steps() const { return chain_.size(); }
  [[nodiscard]] std::string Describe() const;

 private:
  // The state at step k is what was added in steps 1 to k.
  using History = std::vector<std::uint64_t>;
  struct Open {
    std::uint64_t token = 0;
    bool prepared = false;
    Wishes vote;
  };
  struct Worker {
    Member member;
    std::int64_t pid = 0;
    bool dead = false;
    bool paused = false;
    bool gone = false;  // left as planned
    SessionId session;  // zero: not connected
    std::vector<Message> inbox;
    Instant touched;  // last time that the coordinator was heard
    int delay = 0;    // pulses until it dials or answers
    Generation highest;
    Generation forming;
    bool ready_sent = false;
    std::optional<GenerationRecord> assigned;
    std::optional<GenerationRecord> last_record;
    bool formed = false;
    History next;  // restored, until the start
    std::optional<GenerationRecord> started;
    History history;
    std::optional<Open> open;
    bool holds = false;
    bool broken = false;
    bool stopped = false;
    bool initial_pending = false;
    bool leaving = false;
    Wishes wished;
    Wishes agreed;
    std::vector<Message> reports;
  };
  struct Entry {
    Generation generation;
    std::uint64_t token = 0;
  };

  void Pulse(bool faults);
  void Fault();
  void Kill(Worker& worker);
  void KillCoordinator();
  [[nodiscard]] bool MayLoseStore() const;
  void Drop(Worker& worker);
  void Spawn();
  void Route();
  void Act(Worker& worker);
  void Say(Worker& worker, Message message);
  void SayHello(Worker& worker);
  void SayReady(Worker& worker);
  void Hear(Worker& worker, const Message& message);
  void HearAssign(Worker& worker, const GenerationRecord& record);
  void HearStart(Worker& worker);
  void HearRefused(Worker& worker, const Refused& refused);
  void Form(Worker& worker);
  void Restore(Worker& worker, History* restored);
  void Train(bool faults);
  void TakeStep(const std::vector<Worker*>& members, bool cut);
  void Commit(Worker& worker, std::uint64_t token, Wishes agreed);
  void Note(Step step, Generation generation, std::uint64_t token);
  void Snapshot(Worker& worker);
  Worker* Find(const Member& member);
  [[nodiscard]] bool InTouch(const Worker& worker) const;
  void Violation(std::string text) { violations_.push_back(std::move(text)); }

  const Kind kind_;
  Prng prng_;
  JobSpec spec_;
  Driver driver_;
  std::vector<std::unique_ptr<Worker>> workers_;
  SessionId launcher_;
  std::map<CheckpointKey, History> saved_;
  std::vector<Entry> chain_;
  std::vector<Rollback> rollbacks_;  // all that were ever made durable, lost stores included
  Generation committing_;            // the greatest generation that has committed a step
  std::int64_t next_session_ = 0;
  std::int64_t next_worker_ = 0;
  std::uint64_t next_incarnation_ = 0;
  std::int64_t pulses_ = 0;
  int calm_ = 0;  // pulses without deaths and pauses
  std::vector<std::string> violations_;
};

}  // namespace muster::coordinator
