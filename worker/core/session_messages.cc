// What the coordinator says.
#include <fmt/format.h>

#include <algorithm>

#include "protocol/mutants.h"
#include "worker/core/session.h"

namespace muster::worker {

namespace {

bool HasShards(const JobSpec& spec) {
  return std::ranges::any_of(spec.tensors, [](const TensorSpec& t) { return t.sharded(); });
}

const char* Describe(RestoreSource source) {
  switch (source) {
    case RestoreSource::kInitial: return "the initial state";
    case RestoreSource::kLive: return "live memory";
    case RestoreSource::kCheckpoint: return "a checkpoint";
  }
  return "";
}

}  // namespace

void Session::OnMessage(const Welcome& message, Instant now) {
  if (link_ != Link::kGreeting) return;
  link_ = Link::kUp;
  lease_.OnWelcome(message.lease, message.autonomy, message.heartbeat_interval, greeted_, now,
                   prng_);
  progress_timeout_ = message.progress_timeout;
  forming_timeout_ = message.forming_timeout;
  observed_address_ = message.observed_address;
  if (!last_record_) lineage_ = message.lineage;
  Notice(fmt::format("{} to the coordinator at {} as worker {}",
                     joined_ ? "connected again" : "connected", identity_.url,
                     member_.worker.value()));
  joined_ = true;
  effects_.wake = true;
  // What may have been lost with the last connection. All of it is true still, and nothing is done
  // twice by hearing it twice.
  if (interrupted() && aborted_ && !assigned_) SendReady();
  if (group_id() != nullptr && RankIn(*assigned_) == Rank(0)) Send(*group_id_);
  if (assigned_ && formed_) Send(*formed_);
  if (form_failed_) Send(*form_failed_);
  if (broken_ && !interrupted()) Send(*broken_);
  if (finished_) Send(*finished_);
  // Said between the hello and the welcome, it was in neither.
  if (able_ && !greeted_able_) Send(Able());
  if (stopped_ && !greeted_stopped_ && !interrupted()) {
    Send(Stopped{started_->generation, committed_});
  }
  if (leave_) SendLeave(now);
  for (PendingReport& report : reports_) report.sent = false;
  FlushReports(now);
}

void Session::OnMessage(const Refused& message, Instant now) {
  if (message.code == Code::kFenced) return Fence(message.reason, now);
  const Status why(message.code, message.reason);
  // It has no room or is about to stop: another attempt may find it otherwise.
  if (message.code == Code::kUnavailable || message.code == Code::kResourceExhausted) {
    effects_.close = true;
    link_ = Link::kGreeting;  // so that the next dial waits, longer each time
    return Lost(why, false, now);
  }
  Notice(
      fmt::format("the coordinator at {} refuses this worker: {}", identity_.url, message.reason));
  Fail(why);
}

void Session::OnMessage(const Ack& message, Instant now) {
  if (link_ != Link::kUp) return;
  // Not at the welcome already: two workers of one name would fence each other without a pause.
  backoff_.Reset();
  lease_.OnAck(message.sequence, message.interval, now);
  effects_.wake = true;
  FlushReports(now);
}

void Session::OnMessage(const Interrupt& message, Instant) {
  if (link_ != Link::kUp) return;
  if (message.generation == forming_ && interrupted()) {
    // Asked again, after a reconnection: the answer has not changed unless an assignment came.
    if (aborted_ && !assigned_) SendReady();
    return;
  }
  if (message.generation <= highest_ && !Planted(Mutant::kLowerAssignAccepted)) return;
  if (stage_ == Stage::kApply && Planted(Mutant::kInterruptIgnoredInApply)) return;
  highest_ = message.generation;
  forming_ = message.generation;
  aborted_ = false;
  assigned_.reset();  // half-made; the cut of the last started generation is still held
  if (!Planted(Mutant::kGroupIdStale)) group_id_.reset();
  formed_.reset();
  form_failed_.reset();
  initial_pending_.reset();
  if (Planted(Mutant::kReadyBeforeAbort)) {
    aborted_ = true;
    SendReady();
  } else {
    open_.Freeze();
  }
  effects_.abort = true;
  effects_.wake = true;
  Notice(fmt::format("interrupted to form generation {}: {}", message.generation.value(),
                     message.reason));
}

void Session::SendReady() {
  Ready ready;
  ready.forming = forming_;
  ready.generation = started_ ? started_->generation : Generation();
  ready.committed = committed_;
  ready.wishes = agreed_;
  ready.open = open_.Report();
  ready.holds_state = holds_state_;
  ready.lineage = lineage_;
  ready.abort_ms = abort_ms_;
  Send(std::move(ready));
}

void Session::OnMessage(const Assign& message, Instant now) {
  const GenerationRecord& record = *message.record;
  // Only for the last interrupt, only once, and only after Ready has been answered for it.
  if (link_ != Link::kUp || !interrupted() || !aborted_) return;
  const bool lower = Planted(Mutant::kLowerAssignAccepted) && record.generation < forming_;
  if (record.generation != forming_ && !lower) return;
  if (assigned_) return;
  const Rank rank = RankIn(record);
  effects_.wake = true;
  if (rank.value() < 0) {
    DropState();
    forming_ = Generation();
    Notice(fmt::format("not a member of generation {}: waiting as a spare",
                       record.generation.value()));
    return;
  }
  TakeDecision(record, now);
  const MemberEntry& entry = record.members[static_cast<std::size_t>(rank.value())];
  const bool holder =
      record.restore.source == RestoreSource::kLive && entry.previous_rank.value() >= 0;
  const bool holds = holds_state_ && started_ && started_->generation == record.restore.base &&
                     committed_ == record.restore.step;
  holds_state_ = holder && holds;
  assigned_ = record;
  last_record_ = record;
  lineage_ = record.lineage;
  Notice(fmt::format("generation {}: rank {} of {}, at step {} from {}", record.generation.value(),
                     rank.value(), record.world_size(), record.restore.step.value(),
                     Describe(record.restore.source)));
  if (!holder || holds) return;
  // Nobody may take for the job's state what is not: better another round.
  form_failed_.emplace();
  form_failed_->generation = record.generation;
  form_failed_->reason =
      fmt::format("counted on for step {} of generation {}, but this worker holds another state",
                  record.restore.step.value(), record.restore.base.value());
  Send(*form_failed_);
  Notice("generation cannot be formed: " + form_failed_->reason);
}

// Resolves the open step, and forgets what a rollback made void.
void Session::TakeDecision(const GenerationRecord& record, Instant now) {
  const StepDecision& decision = record.decision;
  const bool live = record.restore.source == RestoreSource::kLive;
  if (open_.undecided()) {
    const bool named = decision.generation == open_.generation() && decision.step == open_.step();
    if (!live || record.restore.step < open_.step() || !open_.prepared() ||
        (named && decision.outcome == Outcome::kVoid)) {
      open_.Decide(Outcome::kVoid, {});
    } else {
      // The state goes on from this step or a later one, so it was committed. All votes agree, so
      // without a word about it this rank's own vote is the outcome.
      const bool told = named && decision.outcome != Outcome::kNone;
      Outcome outcome = told ? decision.outcome : open_.vote();
      if (Planted(Mutant::kSkipAppliedAfterDecision)) outcome = Outcome::kApply;
      CommitStep(outcome, told ? decision.wishes : open_.wishes(), now);
    }
  }
  if (record.restore.step < committed_ || !live) {
    if (record.restore.step < committed_) {
      Notice(
          fmt::format("going back from step {} to step {}: steps above it are void and are taken "
                      "again",
                      committed_.value(), record.restore.step.value()));
    }
    open_.Close();  // an outcome that Commit() has not returned yet is void too
    committed_ = record.restore.step;
    holds_state_ = false;  // the memory is that of a later step
    agreed_ = Wishes();
    boundary_due_ = stop_due_ = false;
    snapshot_due_.reset();
    finished_.reset();
  }
}

// The coordinator tells it after the assignment, and again after a reconnection.
void Session::OnMessage(const GroupId& message, Instant) {
  if (link_ != Link::kUp || !assigned_ || message.generation != assigned_->generation) return;
  if (group_id() != nullptr) return;
  group_id_ = message;
  effects_.wake = true;
}

void Session::OnMessage(const Start& message, Instant) {
  if (link_ != Link::kUp || !assigned_ || !formed_) return;
  if (message.generation != assigned_->generation) return;
  started_ = std::exchange(assigned_, std::nullopt);
  group_id_.reset();
  formed_.reset();
  form_failed_.reset();
  forming_ = Generation();
  aborted_ = false;
  broken_.reset();
  open_ = StepTransaction();
  committed_ = started_->restore.step;
  holds_state_ = true;
  stopped_ = stop_due_ = boundary_due_ = false;
  wished_ = Wishes();
  agreed_ = Wishes();
  commits_here_ = 0;
  finished_.reset();
  stage_ = Stage::kBoundary;
  effects_.wake = true;
  if (started_->restore.source == RestoreSource::kInitial && HasShards(identity_.spec)) {
    snapshot_due_ = initial_pending_ = CheckpointKey{Step(), started_->generation};
  }
  Notice(fmt::format("generation {} has started with {} workers", started_->generation.value(),
                     started_->world_size()));
}

void Session::OnMessage(const Wish& message, Instant) {
  if (!started_ || !Running(message.generation)) return;
  wished_.checkpoint = wished_.checkpoint || message.wishes.checkpoint;
  wished_.reform = wished_.reform || message.wishes.reform;
}

void Session::OnMessage(const WriteManifest& message, Instant) {
  effects_.manifests.push_back(message);
}

void Session::OnMessage(const RemoveCheckpoint& message, Instant) {
  effects_.removals.push_back(message);
}

void Session::OnMessage(const SweepCheckpoints& message, Instant) {
  effects_.sweeps.push_back(message);
}

void Session::OnMessage(const CheckpointAnnounced& message, Instant) {
  DropReports(message.key);
  last_announced_ = message.key;
  if (initial_pending_ == message.key) initial_pending_.reset();
  effects_.wake = true;
}

void Session::OnMessage(const CheckpointAborted& message, Instant) {
  DropReports(message.key);
  last_aborted_ = message.key;
  effects_.wake = true;
  Notice(fmt::format("the checkpoint of step {} was given up: {}", message.key.step.value(),
                     message.reason));
  if (initial_pending_ == message.key) {
    Fail(FailedPrecondition(fmt::format(
        "no first checkpoint could be written to {}, and sharded state cannot do without: {}",
        identity_.spec.checkpoint_directory, message.reason)));
  }
}

void Session::OnMessage(const Ended& message, Instant) {
  if (message.left) {
    Notice("left the job as planned");
  } else {
    Notice(fmt::format("the job has ended at step {}: {}", message.end.step.value(),
                       message.end.reason));
  }
  const bool good = message.left || message.end.kind == EndKind::kFinished;
  Fail(good ? Status() : FailedPrecondition("the job has ended: " + message.end.reason));
}

}  // namespace muster::worker
