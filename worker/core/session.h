// The worker's core: what one worker knows of its job, no I/O. The runner (worker/client) and the
// simulator are two drivers of it.
//
//   session.Handle(input, now);  do(session.TakeEffects());
//   wait until session.NextDeadline(): Handle(Tick)
//
// Two parties hand in inputs: the control thread (connection, time) and the training thread (where
// it stands); the driver sees to it that one call runs at a time. The training thread looks at
// Next() and Decided() whenever Effects::wake was set.
//
// Same inputs at the same instants give the same effects.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "protocol/messages.h"
#include "protocol/prng.h"
#include "worker/core/backoff.h"
#include "worker/core/effects.h"
#include "worker/core/input.h"
#include "worker/core/lease_watch.h"
#include "worker/core/step_transaction.h"

namespace muster::worker {

struct Identity {
  JobName job;
  WorkerId worker;
  bool explicit_name = false;
  NodeName node;
  std::int64_t pid = 0;
  std::string address;  // of the data plane
  JobSpec spec;
  std::string url;             // of the coordinator, for messages
  Duration connect_timeout;    // of the first welcome
  std::uint64_t seed = 0;      // feeds incarnations and jitter; different in each process
  std::optional<Found> found;  // in the checkpoint directory, before anything of this process
};

// What the training thread has to do in BeginStep, after snapshot_due().
enum class Directive {
  kWait,    // until woken
  kForm,    // build assigned() and hand in FormedHere or FormBroke (nothing after an abort)
  kTrain,   // take step committed() + 1 in started_record()
  kFinish,  // all steps are committed: do what has to follow them and hand in StepsDone
  kEnd,     // no further step: status() says why
};

class Session {
 public:
  Session(Identity identity, Instant now);

  void Handle(const Input& input, Instant now);
  [[nodiscard]] Effects TakeEffects() { return std::exchange(effects_, Effects()); }
  [[nodiscard]] Instant NextDeadline() const;

  // --- What the training thread asks ---
  [[nodiscard]] Directive Next(Instant now) const;
  // Welcomed once; or ended, see status().
  [[nodiscard]] bool joined() const { return joined_; }
  [[nodiscard]] bool ended() const { return end_.has_value(); }
  // Ok while it goes on, after the job's end and after a planned leave; otherwise why it ended.
  [[nodiscard]] Status status() const { return end_.value_or(Status()); }
  // The record to be formed, or formed and not yet started; null without one.
  [[nodiscard]] const GenerationRecord* assigned() const {
    return assigned_ ? &*assigned_ : nullptr;
  }
  // Over NCCL the members of a generation find each other by an id that its rank 0 mints and the
  // coordinator hands on. That of assigned(); null while it is not known, which wakes, and in a job
  // over TCP or alone.
  [[nodiscard]] const std::string* group_id() const;
  // This worker is the one to mint it, and has not handed in IdMinted yet.
  [[nodiscard]] bool mints_group_id() const;
  // The last generation that started with this worker; null when there is none.
  [[nodiscard]] const GenerationRecord* started_record() const {
    return started_ ? &*started_ : nullptr;
  }
  // This worker's rank in a record; -1 when it is no member.
  [[nodiscard]] Rank RankIn(const GenerationRecord& record) const;
  // An interrupt was taken that no generation has followed yet: what runs is void or cut off.
  [[nodiscard]] bool interrupted() const { return forming_.value() > 0; }
  // Is `generation` started, not interrupted, and without a failed operation?
  [[nodiscard]] bool Running(Generation generation) const;
  // After Prepare: the vote may leave.
  [[nodiscard]] bool prepared() const { return open_.prepared(); }
  // What Commit() is to return; nothing while that is not known, or the coordinator has to be asked
  // first.
  [[nodiscard]] std::optional<Outcome> Decided(Instant now) const;
  // The wishes for this rank's vote on `step`.
  [[nodiscard]] Wishes WishesFor(Step step) const;
  // At a boundary: the checkpoint of which this rank's boxes are to be copied now, before anything
  // writes to the state.
  [[nodiscard]] std::optional<CheckpointKey> snapshot_due() const { return snapshot_due_; }
  // That checkpoint must not be skipped because an earlier one is still being saved: it is the
  // first one, the last one, or that of a planned change of members.
  [[nodiscard]] bool snapshot_needed() const {
    return snapshot_due_ && (stop_due_ || snapshot_due_->step == Step() ||
                             snapshot_due_->step == Step(identity_.spec.steps));
  }
  [[nodiscard]] Step committed() const { return committed_; }
  [[nodiscard]] const Member& member() const { return member_; }
  [[nodiscard]] Lineage lineage() const { return lineage_; }
  // Of the data plane; from the last welcome.
  [[nodiscard]] Duration progress_timeout() const { return progress_timeout_; }
  [[nodiscard]] Duration forming_timeout() const { return forming_timeout_; }
  [[nodiscard]] const std::string& observed_address() const { return observed_address_; }
  // The last checkpoint of this worker's that counts, and the last that was given up.
  [[nodiscard]] std::optional<CheckpointKey> last_announced() const { return last_announced_; }
  [[nodiscard]] std::optional<CheckpointKey> last_aborted() const { return last_aborted_; }

  // Before it takes part in anything its hello says what lies in the checkpoint directory.
  [[nodiscard]] bool looks_at_checkpoints() const { return !last_record_; }

  // --- For those who compare states and go on from copies ---
  // What is drawn from now on follows from `seed` alone.
  void Reseed(std::uint64_t seed) { prng_ = Prng(seed); }
  // All state that what it does later may depend on (see Reseed for what it draws).
  template <class Visit>
  void VisitState(Visit&& visit) const {
    visit(backoff_, handled_at_, member_, link_, redial_at_, greeted_, greeted_able_,
          greeted_stopped_, out_of_touch_, join_deadline_, joined_, lease_, progress_timeout_,
          forming_timeout_, highest_, forming_, aborted_, assigned_, group_id_, formed_,
          form_failed_, lineage_, last_record_, started_, committed_, agreed_, holds_state_, open_,
          broken_, commits_here_, able_, boundary_due_, stop_due_, snapshot_due_, initial_pending_,
          stopped_, stopped_at_, wished_, finished_, leave_, leave_by_, stage_, skips_, operations_,
          waiting_, phases_, reports_, last_announced_, last_aborted_, end_);
  }

 private:
  enum class Link { kDown, kDialing, kGreeting, kUp };
  struct PendingReport {
    Message message;
    CheckpointKey key;
    bool sent = false;
  };
  struct OpenPhase {
    std::string name;
    Instant until;
  };

  // session.cc: connection, time
  void On(const Connected& input, Instant now);
  void On(const Disconnected& input, Instant now);
  void On(const Looked& input, Instant now);
  void On(const Received& input, Instant now);
  void On(const Tick& input, Instant now);
  void Dial();
  void Lost(const Status& why, bool evidence, Instant now);
  void EnsureLease(Instant now);
  void GoOnWithoutCoordinator(Instant now);
  void SendHeartbeat(Instant now);
  void SendHello();
  void Send(Message message);
  void FlushReports(Instant now);
  void DropReports(const CheckpointKey& key);
  void Fail(Status why);
  void Fence(const std::string& reason, Instant now);
  void DropState();
  void Notice(std::string text) { effects_.notices.push_back(std::move(text)); }
  [[nodiscard]] bool NeedsLease() const;

  // session_messages.cc: what the coordinator says
  void OnMessage(const Welcome& message, Instant now);
  void OnMessage(const Refused& message, Instant now);
  void OnMessage(const Ack& message, Instant now);
  void OnMessage(const Interrupt& message, Instant now);
  void OnMessage(const Assign& message, Instant now);
  void OnMessage(const GroupId& message, Instant now);
  void OnMessage(const Start& message, Instant now);
  void OnMessage(const Wish& message, Instant now);
  void OnMessage(const WriteManifest& message, Instant now);
  void OnMessage(const RemoveCheckpoint& message, Instant now);
  void OnMessage(const SweepCheckpoints& message, Instant now);
  void OnMessage(const CheckpointAnnounced& message, Instant now);
  void OnMessage(const CheckpointAborted& message, Instant now);
  void OnMessage(const Ended& message, Instant now);
  template <class Other>
  void OnMessage(const Other&, Instant) {}  // workers' and launchers' own messages
  void SendReady();
  void TakeDecision(const GenerationRecord& record, Instant now);

  // session_training.cc: what the training thread and the saver say
  void On(const Aborted& input, Instant now);
  void On(const AtBoundary& input, Instant now);
  void On(const OutcomeTaken& input, Instant now);
  void On(const SnapshotTaken& input, Instant now);
  void On(const FormingBegun& input, Instant now);
  void On(const IdMinted& input, Instant now);
  void On(const FormedHere& input, Instant now);
  void On(const FormBroke& input, Instant now);
  void On(const StepOpened& input, Instant now);
  void On(const ReduceBegun& input, Instant now);
  void On(const Prepare& input, Instant now);
  void On(const VoteDone& input, Instant now);
  void On(const OperationBroke& input, Instant now);
  void On(const StepsDone& input, Instant now);
  void On(const PhaseBegun& input, Instant now);
  void On(const PhaseDone& input, Instant now);
  void On(const LeaveWanted& input, Instant now);
  void On(const Unfit& input, Instant now);
  void On(const FinishCalled& input, Instant now);
  void On(const Report& input, Instant now);
  void CommitStep(Outcome outcome, Wishes agreed, Instant now);
  void StopIfAgreed(Instant now);
  void SendLeave(Instant now);

  Identity identity_;
  Prng prng_;
  Backoff backoff_;
  Effects effects_;
  Instant handled_at_;
  Member member_;

  // The connection.
  Link link_ = Link::kDown;
  std::int64_t connection_ = 0;
  Instant redial_at_;
  Instant greeted_;
  bool greeted_able_ = false;     // the hello said so
  bool greeted_stopped_ = false;  // and so
  Instant next_complaint_;
  bool out_of_touch_ = false;  // said so
  Instant join_deadline_;
  bool joined_ = false;
  LeaseWatch lease_;
  Duration progress_timeout_ = kDefaultFirstStepTimeout;
  Duration forming_timeout_ = kDefaultFormingTimeout;
  std::string observed_address_;

  // The generation being formed.
  Generation highest_;
  Generation forming_;  // of the last interrupt that no start has followed; zero: none
  bool aborted_ = false;
  double abort_ms_ = 0;
  std::optional<GenerationRecord> assigned_;
  std::optional<GroupId> group_id_;  // of assigned_
  std::optional<Formed> formed_;
  std::optional<FormFailed> form_failed_;

  // What it is in, and holds.
  Lineage lineage_;
  std::optional<GenerationRecord> last_record_;  // taken last, started or not
  std::optional<GenerationRecord> started_;
  Step committed_;
  Wishes agreed_;  // in the vote of `committed_`
  bool holds_state_ = false;
  StepTransaction open_;
  double open_loss_ = 0;
  std::optional<OperationFailed> broken_;
  std::int64_t commits_here_ = 0;  // in this generation

  // The boundary.
  bool able_ = false;
  bool boundary_due_ = false;
  bool stop_due_ = false;
  std::optional<CheckpointKey> snapshot_due_;
  std::optional<CheckpointKey> initial_pending_;  // no step before it is announced
  bool stopped_ = false;
  Instant stopped_at_;
  Wishes wished_;  // by the coordinator, for the next vote
  std::optional<Finished> finished_;
  std::optional<Leave> leave_;
  std::optional<Instant> leave_by_;  // when this process will be killed

  // What heartbeats say.
  Stage stage_ = Stage::kIdle;
  double loss_ = 0;
  std::int64_t skips_ = 0;
  std::uint64_t operations_ = 0;
  bool waiting_ = false;
  std::vector<OpenPhase> phases_;  // innermost last

  std::vector<PendingReport> reports_;
  std::optional<CheckpointKey> last_announced_;
  std::optional<CheckpointKey> last_aborted_;
  std::optional<Status> end_;
};

}  // namespace muster::worker
