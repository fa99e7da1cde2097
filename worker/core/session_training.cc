// What the training thread and the saver say.
#include <algorithm>
#include <optional>
#include <variant>

#include "protocol/check.h"
#include "protocol/mutants.h"
#include "worker/core/session.h"

namespace muster::worker {

namespace {

// More saves than can be under way at once; past it the oldest report is forgotten, and that save
// given up by the coordinator when its time is over.
constexpr std::size_t kMaxReports = 64;

CheckpointKey KeyOf(const Message& message) {
  if (const auto* m = std::get_if<ShardWritten>(&message)) return m->key;
  if (const auto* m = std::get_if<ShardFailed>(&message)) return m->key;
  if (const auto* m = std::get_if<ManifestWritten>(&message)) return m->key;
  if (const auto* m = std::get_if<CheckpointRemoved>(&message)) return m->key;
  MUSTER_CHECK(false, "not a report of the saver");
  return {};
}

}  // namespace

std::optional<Outcome> Session::Decided(Instant now) const {
  if (open_.undecided()) return std::nullopt;
  const Outcome outcome = open_.outcome();
  if (outcome != Outcome::kApply && outcome != Outcome::kSkip) return Outcome::kVoid;
  if (!lease_.MayProceed(link_ == Link::kUp, now)) return std::nullopt;
  return outcome;
}

Wishes Session::WishesFor(Step step) const {
  const JobSpec& spec = identity_.spec;
  Wishes wishes = wished_;
  if (spec.checkpoint_every > 0) {
    const bool due = step.value() % spec.checkpoint_every == 0;
    const bool last = spec.steps > 0 && step.value() == spec.steps;
    wishes.checkpoint = wishes.checkpoint || due || last;
  }
  if (spec.checkpoint_directory.empty()) wishes.checkpoint = false;
  return wishes;
}

void Session::On(const Aborted& input, Instant) {
  if (Planted(Mutant::kReadyBeforeAbort) && interrupted()) open_.Freeze();
  if (!interrupted() || aborted_) return;
  aborted_ = true;
  abort_ms_ = input.abort_ms;
  SendReady();
}

void Session::On(const AtBoundary&, Instant now) {
  if (!able_) {
    able_ = true;
    Send(Able());
  }
  // A step that the loop gave up is void: it was never voted on.
  if (open_.undecided()) open_.Decide(Outcome::kVoid, {});
  open_.Close();
  stage_ = Stage::kBoundary;
  if (boundary_due_) {
    boundary_due_ = false;
    if (agreed_.checkpoint && holds_state_ && started_) {
      snapshot_due_ = CheckpointKey{committed_, started_->generation};
    }
    stop_due_ = agreed_.reform;
    if (agreed_.checkpoint) wished_.checkpoint = false;
    if (agreed_.reform) wished_.reform = false;
  }
  if (!snapshot_due_) StopIfAgreed(now);
}

void Session::On(const OutcomeTaken&, Instant) {
  // Later news cannot change what the loop was told.
  lease_.Answered();
  open_.Close();
}

void Session::On(const SnapshotTaken&, Instant now) {
  snapshot_due_.reset();
  StopIfAgreed(now);
}

void Session::StopIfAgreed(Instant now) {
  if (!stop_due_ || !started_ || !Running(started_->generation)) return;
  stop_due_ = false;
  stopped_ = true;
  stopped_at_ = now;
  Send(Stopped{started_->generation, committed_});
}

void Session::On(const FormingBegun&, Instant now) {
  stage_ = Stage::kForming;
  if (link_ == Link::kUp) SendHeartbeat(now);
}

const std::string* Session::group_id() const {
  if (!assigned_ || !group_id_) return nullptr;
  const bool of_it = group_id_->generation == assigned_->generation;
  return of_it || Planted(Mutant::kGroupIdStale) ? &group_id_->id : nullptr;
}

bool Session::mints_group_id() const {
  if (identity_.spec.backend != Backend::kNccl || !assigned_) return false;
  if (assigned_->world_size() == 1 || group_id() != nullptr) return false;
  if (Planted(Mutant::kGroupIdOfOldRank) && started_) return true;
  return RankIn(*assigned_) == Rank(0);
}

void Session::On(const IdMinted& input, Instant) {
  if (!assigned_ || assigned_->generation != input.generation || group_id() != nullptr) return;
  MUSTER_CHECK(mints_group_id(), "only rank 0 of a generation over NCCL mints its id");
  group_id_ = GroupId{input.generation, input.id};
  Send(*group_id_);
}

void Session::On(const FormedHere& input, Instant) {
  if (!assigned_ || assigned_->generation != input.generation || formed_) return;
  lease_.Answered();
  Formed& formed = formed_.emplace();
  formed.generation = input.generation;
  formed.form_ms = input.form_ms;
  formed.restore_ms = input.restore_ms;
  formed.restored_bytes = input.restored_bytes;
  if (Planted(Mutant::kOldCutDroppedEarly)) started_ = assigned_;
  Send(formed);
}

void Session::On(const FormBroke& input, Instant) {
  if (!assigned_ || assigned_->generation != input.failure.generation || formed_) {
    // Given up meanwhile; but of damage nobody else may tell.
    const bool last = last_record_ && last_record_->generation == input.failure.generation;
    if (last && input.failure.bad_checkpoint) Send(input.failure);
    return;
  }
  form_failed_ = input.failure;
  Send(*form_failed_);
  Notice("generation " + std::to_string(input.failure.generation.value()) +
         " could not be formed: " + input.failure.reason);
  // What this process lacks, no further round will give it; a fresh process has it.
  if (input.failure.code == Code::kFailedPrecondition) {
    Fail(FailedPrecondition(input.failure.reason));
  }
}

void Session::On(const StepOpened&, Instant) {
  MUSTER_CHECK(started_ && Running(started_->generation), "a step needs a running generation");
  open_.Open(started_->generation, committed_.Next());
  stage_ = Stage::kCompute;
}

void Session::On(const ReduceBegun&, Instant) { stage_ = Stage::kReduce; }

void Session::On(const Prepare& input, Instant) {
  if (broken_ || !open_.Prepare(input.step, input.vote, input.wishes)) return;
  open_loss_ = input.loss;
  stage_ = Stage::kVote;
}

void Session::On(const VoteDone& input, Instant now) {
  // An assignment may have decided it meanwhile; the first decision stands.
  if (!open_.prepared() || open_.step() != input.step) return;
  CommitStep(open_.vote(), input.agreed, now);
}

void Session::CommitStep(Outcome outcome, Wishes agreed, Instant now) {
  const Step step = open_.step();
  if (!open_.Decide(outcome, agreed)) return;
  MUSTER_CHECK(committed_.Next() == step, "steps are committed one after the other");
  committed_ = step;
  agreed_ = agreed;
  boundary_due_ = true;
  loss_ = open_loss_;
  skips_ = outcome == Outcome::kSkip ? skips_ + 1 : 0;
  stage_ = Stage::kApply;
  effects_.wake = true;
  // The first step of a generation ends an incident: the coordinator hears of it at once.
  if (++commits_here_ == 1 && link_ == Link::kUp) SendHeartbeat(now);
}

void Session::On(const OperationBroke& input, Instant) {
  if (!Running(input.generation)) return;
  OperationFailed& failed = broken_.emplace();
  failed.generation = input.generation;
  failed.step = input.step;
  failed.code = input.code;
  failed.reason = input.reason;
  failed.peer = input.peer;
  Send(failed);
  Notice("step " + std::to_string(input.step.value()) + ": " + input.reason);
}

void Session::On(const StepsDone&, Instant) {
  if (finished_ || !started_) return;
  finished_ = Finished{started_->generation, committed_};
  Send(*finished_);
  if (Planted(Mutant::kLeaveBeforeEndDurable)) Fail(Status());
}

void Session::On(const PhaseBegun& input, Instant now) {
  phases_.push_back({input.name, input.until});
  if (link_ == Link::kUp) SendHeartbeat(now);
}

void Session::On(const PhaseDone&, Instant now) {
  if (!phases_.empty()) phases_.pop_back();
  if (link_ == Link::kUp) SendHeartbeat(now);
}

void Session::On(const LeaveWanted& input, Instant now) {
  if (leave_) return;
  if (!joined_)
    return Fail(Interrupted("asked to leave before it was welcomed by the coordinator"));
  leave_ = Leave{input.reason, false, {}};
  if (input.within > Duration()) leave_by_ = now + input.within;
  SendLeave(now);
  Notice("leaving at the next step boundary: " + input.reason);
}

void Session::On(const Unfit& input, Instant) {
  // What the coordinator is to show; the closed session then says the rest.
  Send(Leave{input.why.message().substr(0, kMaxReasonBytes), false, Duration::Millis(1)});
  Fail(input.why);
}

void Session::SendLeave(Instant now) {
  // What is left of the notice; at least something, for zero means that there is none.
  if (leave_by_) leave_->within = std::max(Duration::Millis(1), *leave_by_ - now);
  Send(*leave_);
}

void Session::On(const FinishCalled& input, Instant now) {
  if (leave_ && leave_->finish) return;
  leave_ = Leave{input.reason, true, {}};
  SendLeave(now);
}

void Session::On(const Report& input, Instant now) {
  if (reports_.size() == kMaxReports) reports_.erase(reports_.begin());
  reports_.push_back({input.message, KeyOf(input.message), false});
  FlushReports(now);
}

}  // namespace muster::worker
