// One simulated job: the real cores of coordinator and workers, driven in virtual time, with every
// process, connection and collective modelled, under faults drawn from one seed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chaos/sim/data_plane.h"
#include "chaos/sim/events.h"
#include "chaos/sim/ledger.h"
#include "chaos/sim/options.h"
#include "coordinator/core/coordinator.h"
#include "protocol/prng.h"
#include "worker/core/session.h"

namespace muster::sim {

struct RunResult {
  std::string violation;  // empty: all promises held
  std::int64_t steps = 0;
  std::int64_t reforms = 0;
  std::int64_t rollbacks = 0;
  std::uint64_t trace_hash = 0;
  std::vector<std::string> trace;  // with Options::trace
};

class Cluster {
 public:
  explicit Cluster(const Options& options);
  ~Cluster();
  // Faults first, then peace until training goes on, then the checks.
  [[nodiscard]] RunResult Run();

 private:
  // Where the model of a training loop stands.
  enum class At {
    kBoundary,
    kForming,
    kComputing,
    kReducing,
    kVoting,
    kDeciding,
    kApplying,
    kGone
  };
  struct Process {
    int index = 0;
    std::int64_t pid = 0;
    std::unique_ptr<worker::Session> session;
    bool alive = false;
    bool paused = false;
    bool cut_off = false;                       // from the coordinator
    std::vector<std::function<void()>> missed;  // while it stood still
    std::int64_t life = 0;                      // events of an earlier life are dropped
    SessionId connection;                       // at the coordinator; zero: none
    std::int64_t dial = 0;
    At at = At::kBoundary;
    std::uint64_t state = 0;      // what its memory holds
    Step state_step;              // of which step
    std::uint64_t old_state = 0;  // until `start`
    bool timer = false;
    Instant timer_at;
  };
  struct SavedShard {
    std::uint64_t state = 0;
  };

  // cluster.cc
  void StartProcess(Process& p);
  void KillProcess(Process& p);
  void Tell(Process& p, const worker::Input& input);
  void Drain(Process& p);
  void Later(Process& p, Duration delay, std::function<void()> what);
  void ArmTimer(Process& p);
  void Dial(Process& p, std::int64_t number);
  void Hangup(Process& p);
  void Trace(std::string line);
  [[nodiscard]] Duration Delay();

  // cluster_coordinator.cc
  void StartCoordinator();
  void CrashCoordinator();
  void Deliver(const coordinator::Input& input);
  void DrainCoordinator();
  void Carry(coordinator::Effects effects);
  void Store(const coordinator::Persist& persist);
  void ArmCoordinator();
  void Attest(const Process& p, bool alive);

  // cluster_trainer.cc
  void Pump(Process& p);
  void BeginStep(Process& p);
  void Form(Process& p);
  void Formed(Process& p, const GenerationRecord& record);
  void Train(Process& p);
  void Reduce(Process& p, const GenerationRecord& record, Step step);
  void Vote(Process& p, const GenerationRecord& record, Step step);
  void Decide(Process& p);
  void Broke(Process& p, const GenerationRecord& record, Step step, Rank peer);
  void Snapshot(Process& p);
  void HandleSaver(Process& p, const worker::Effects& effects);

  // cluster_faults.cc
  void PlanFaults();
  void InjectFault();
  void MendLink(Process& p);
  void Heal();

  [[nodiscard]] Process* ByMember(const Member& member);
  [[nodiscard]] JobSpec Spec() const;

  const Options options_;
  Prng prng_;
  Events events_;
  DataPlane data_;
  Ledger ledger_;
  std::vector<std::unique_ptr<Process>> processes_;

  std::unique_ptr<coordinator::Coordinator> coordinator_;
  std::int64_t coordinator_life_ = 0;
  Instant coordinator_timer_ = Instant::Never();
  std::map<JobName, JobRecord> stored_jobs_;
  std::vector<CheckpointEntry> stored_checkpoints_;
  std::int64_t next_session_ = 1;
  std::map<SessionId, int> by_session_;  // worker sessions
  std::map<int, SessionId> launcher_session_;
  std::map<std::pair<CheckpointKey, std::int32_t>, std::uint64_t> shards_;

  std::map<std::pair<Generation, Step>, Wishes> wishes_;  // agreed in votes

  bool ended_ = false;
  Instant peace_;
  std::int64_t reforms_ = 0;
  std::int64_t rollbacks_ = 0;
  std::uint64_t hash_ = 0;
  std::vector<std::string> trace_;
};

}  // namespace muster::sim
