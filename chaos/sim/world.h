// One simulated job: the real cores of coordinator and workers, driven in virtual time, with every
// process, connection, collective, clock, file and the store modelled as plain data, under faults
// drawn from one seed, and every promise checked after every event.
//
// A world is a value: a copy goes its own way. The random simulator takes what is pending in the
// order of time; the exhaustive one (explore.h) copies the world and takes each pending thing in
// turn.
//
// world.cc: time, processes; world_control.cc: sessions; world_coordinator.cc: musterd, its store,
// launchers; world_trainer.cc: the training loop; world_restore.cc: forming and files;
// world_faults.cc: what goes wrong.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "chaos/sim/action.h"
#include "chaos/sim/checkers/autonomy.h"
#include "chaos/sim/checkers/chain.h"
#include "chaos/sim/checkers/durable_decisions.h"
#include "chaos/sim/checkers/exact_data.h"
#include "chaos/sim/checkers/group_ids.h"
#include "chaos/sim/checkers/healthy_workers.h"
#include "chaos/sim/checkers/liveness.h"
#include "chaos/sim/checkers/one_generation.h"
#include "chaos/sim/checkers/reforming.h"
#include "chaos/sim/checkers/restored_state.h"
#include "chaos/sim/checkers/safe_checkpoints.h"
#include "chaos/sim/checkers/step_chain.h"
#include "chaos/sim/checkers/verdict.h"
#include "chaos/sim/data_plane.h"
#include "chaos/sim/network.h"
#include "chaos/sim/options.h"
#include "coordinator/core/coordinator.h"
#include "protocol/prng.h"
#include "worker/core/session.h"

namespace muster::sim {

// Elements of the modelled state; a number that few world sizes divide.
inline constexpr std::int64_t kElements = 23;

struct RunResult {
  std::string violation;  // empty: all promises held
  std::int64_t events = 0;
  std::int64_t steps = 0;
  std::int64_t reforms = 0;
  std::int64_t rollbacks = 0;
  std::int64_t group_ids = 0;                      // minted
  std::array<std::int64_t, kFaultKinds> faults{};  // injected, by kind
  std::uint64_t trace_hash = 0;
  std::vector<std::string> trace;  // with Options::trace
};

// Where the model of a training loop stands.
enum class At { kBoundary, kForming, kComputing, kReducing, kVoting, kDeciding, kApplying, kGone };

struct Process {
  int index = 0;
  int node = 0;
  std::int64_t pid = 0;
  std::int64_t life = 0;
  bool alive = false;
  std::optional<worker::Session> session;
  // Its clock: differs from the world's by an offset and runs a little fast or slow.
  Duration offset;
  int drift_ppm = 0;
  // The control plane.
  SessionId connection;  // zero: none
  std::int64_t dial = 0;
  bool timer = false;
  Instant timer_at;  // by the world's clock
  // The training thread.
  At at = At::kBoundary;
  RecordPointer record;       // of the generation that it works in
  std::uint64_t group = 0;    // the id that its communicators were made by; zero: none
  bool awaits_group = false;  // in forming, for that id
  Step step;
  Piece held;                     // its memory
  std::optional<Piece> next_cut;  // of a generation that has not started
  Generation next_cut_of;
  bool trained = false;
  Wishes agreed;
  std::optional<Found> found;  // in the checkpoint directory, before its last hello
  // The call that it is inside of.
  std::optional<OpKey> op;
  std::int64_t serial = 0;
  std::uint64_t operations = 0;  // in this generation
  // Trouble.
  int paused = 0;
  int stuck = 0;
  int slow_link = 0;
  int slow_compute = 0;
  int disk_full = 0;
  std::vector<Pending> missed;  // while it stood still
  std::vector<Pending> parked;  // by a training thread that is stuck
  Instant well_since;
  // A former life was killed: for so long that one may be waited for, under the same name.
  Instant haunted_until;
  Instant flaps_until;  // ended again soon after each start
  bool leaving = false;
  int losses = 0;  // lives that ended, and incarnations that were given up
  Contact contact;
  Generation interrupted_for;      // the last interrupt that arrived
  Generation ready_for;            // the last answer that the coordinator got
  std::int64_t reported_life = 0;  // of the coordinator that got its hello
};

class World {
 public:
  explicit World(const Options& options);
  World(const World&) = default;
  // Faults first, then peace until training goes on, then the checks.
  [[nodiscard]] RunResult Run();

 private:
  friend class Explorer;

  // world.cc
  void Begin();
  void Happen(Instant when, Pending pending);
  void Do(Pending pending);
  void Perform(int process, const Action& what);
  void Later(int process, Duration delay, Action what);
  void LaunchProcess(Process& p);
  void Flap(Process& p);
  void EndProcess(Process& p, bool silent, const char* how);
  void Exit(Process& p);
  [[nodiscard]] Instant LocalTime(const Process& p, Instant at) const;
  [[nodiscard]] Instant WorldTime(const Process& p, Instant local) const;
  [[nodiscard]] Instant LocalNow(const Process& p) const { return LocalTime(p, now_); }
  [[nodiscard]] Duration Delay(std::int64_t most_of = 1);
  [[nodiscard]] bool Chance(std::uint64_t numerator, std::uint64_t denominator);
  [[nodiscard]] Process& Of(int index) { return processes_[static_cast<std::size_t>(index)]; }
  [[nodiscard]] Health HealthOf(const Process& p) const;
  void CheckWaiting();
  void NoteSent(Process& p, const Message& message);
  [[nodiscard]] std::vector<OneGeneration::Standing> Standings() const;
  void NoteArrived(const Message& message, int process);
  [[nodiscard]] std::vector<Holder> WellHolders(const JobRecord& record) const;
  template <class... Args>
  void Trace(const char* format, const Args&... args);

  // world_control.cc
  void Tell(Process& p, const worker::Input& input);
  void Drain(Process& p);
  void ArmTimer(Process& p);
  void SendUp(Process& p, Action what);
  void SendDown(SessionId session, Action what);
  void Hangup(Process& p);
  void BreakConnection(Process& p);
  void Release(int process, bool up);
  void On(Process& p, const DialEnds& dial);
  void On(Process& p, const ToWorker& message);
  void On(Process& p, const WorkerHearsClose& close);
  void OnWorkerTimer(Process& p);

  // world_coordinator.cc
  void StartCoordinator();
  void CrashCoordinator(bool lose_store);
  void OwnCoordinator();
  void Deliver(const coordinator::Input& input);
  void DrainCoordinator();
  void OnSynced();
  void Carry(const coordinator::Effects& effects);
  void Publish(const coordinator::Event& event);
  void Store(const coordinator::Persist& persist);
  void StoreJob(const JobRecord& record);
  void StoreCheckpoint(const CheckpointEntry& entry);
  void ArmCoordinator();
  void On(const ToCoordinator& message);
  void StartLauncher(int node);
  void Attest(const Process& p, bool alive);

  // world_trainer.cc
  void Pump(Process& p);
  void BeginStep(Process& p);
  void Train(Process& p);
  void Enter(Process& p, OpKind kind, Step step, Contribution contribution);
  void Schedule(const std::vector<DataPlane::Result>& results);
  [[nodiscard]] DataPlane::Reaches Reaches() const {
    return [this](int from, int to) { return !network_.PeerBlocked(from, to); };
  }
  void On(Process& p, const OperationEnds& ends);
  void On(Process& p, const Continue& go_on);
  void Reduce(Process& p);
  void Reduced(Process& p, const OpKey& key);
  void Vote(Process& p);
  void EnterVote(Process& p);
  void Decide(Process& p);
  void Broke(Process& p, Rank peer);
  void AbortCalls(Process& p);
  [[nodiscard]] const MemberEntry& EntryOf(const Process& p) const;
  [[nodiscard]] Member MemberOf(const Process& p) const;
  void BackToBoundary(Process& p);

  // world_restore.cc
  void Form(Process& p);
  void MeetGroup(Process& p);
  [[nodiscard]] std::string MintId(const Process& p);
  [[nodiscard]] static bool FormsStill(const Process& p);
  void Connected(Process& p);
  void Exchanged(Process& p, const OpKey& key);
  void TakeState(Process& p, const std::vector<Piece>& pieces, Duration takes);
  void RestoreFromFiles(Process& p);
  void Restored(Process& p, Generation generation);
  void FormBroke(Process& p, Code code, const std::string& reason, Rank peer, bool bad_checkpoint);
  void AdoptCut(Process& p);
  void Snapshot(Process& p);
  void HandleSaver(Process& p, const worker::Effects& effects);
  void On(Process& p, const FileDone& done);
  void Remove(Process& p, const CheckpointKey& key);
  [[nodiscard]] bool Pinned(const CheckpointKey& key) const;
  void Sweep(const SweepCheckpoints& order);
  [[nodiscard]] std::optional<Found> Discover() const;
  void CheckStartedOver(const JobRecord& record);

  // world_faults.cc
  void PlanFaults();
  void Point(int process = Pending::kNobody);
  void Inject();
  void Start(FaultKind kind, Process& p, Duration how_long);
  void StartOnCoordinator(FaultKind kind, Duration how_long);
  void StartOnLinks(FaultKind kind, Process& p, Duration how_long);
  void End(const EndFault& fault);
  void EndBlock(const EndFault& fault);
  void ResumeCoordinator();
  void Wake(Process& p);
  void Unstick(Process& p);
  void DamageShard();
  void CutGroup(Duration how_long);
  [[nodiscard]] Process& Victim();
  void Heal();

  const Options options_;
  const JobSpec spec_;
  bool exhaustive_ = false;  // nothing is drawn, nothing takes time
  Prng prng_;
  Prng ids_;  // a stream of its own: what else is drawn does not depend on the backend
  Instant now_ = Instant::FromNanos(1'000'000'000'000);
  Queue queue_;
  std::vector<Process> processes_;
  Network network_;
  DataPlane data_;
  Disk disk_;

  // musterd.
  coordinator::Config config_;
  std::shared_ptr<coordinator::Coordinator> coordinator_;
  std::int64_t coordinator_life_ = 0;
  int coordinator_paused_ = 0;
  Instant paused_since_;
  Instant resumed_at_;
  std::vector<Pending> coordinator_missed_;
  Instant coordinator_timer_ = Instant::Never();
  std::deque<coordinator::Effects> unsynced_;  // in order; the first `offered_` are being synced
  std::size_t offered_ = 0;
  std::map<JobName, JobRecord> stored_jobs_;
  std::vector<CheckpointEntry> stored_checkpoints_;
  std::map<int, SessionId> launchers_;           // by node
  std::map<int, std::vector<Pending>> held_up_;  // by process: messages that a block holds back
  std::map<int, std::vector<Pending>> held_down_;

  // Faults.
  Instant peace_ = Instant::Never();  // no fault lasts longer
  int faults_left_ = 0;
  int points_until_fault_ = 0;
  int hot_process_ = Pending::kNobody;  // where something has just happened
  bool faulted_ = false;                // at least one fault so far

  // Checkers.
  Verdict verdict_;
  Chain chain_;
  OneGeneration one_generation_;
  StepChain step_chain_;
  ExactData exact_data_;
  SafeCheckpoints safe_checkpoints_;
  DurableDecisions durable_decisions_;
  GroupIds group_ids_;
  HealthyWorkers healthy_workers_;
  Liveness liveness_;
  Reforming reforming_;
  std::optional<Instant> quorum_;  // enough workers for the first generation are there
  Instant next_look_;
  bool store_lost_ = false;
  bool knew_nothing_ = false;  // this coordinator started with an empty store
  bool knows_generation_ = false;
  bool took_found_ = false;  // and went on from checkpoints that it was told of
  Instant coordinator_since_;

  RunResult result_;
};

}  // namespace muster::sim
