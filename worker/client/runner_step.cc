// One step: add, reduce, vote.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>

#include "protocol/transport/steady_clock.h"
#include "worker/client/runner.h"

namespace muster::worker {

namespace {

// Sets the flag that heartbeats carry: this rank waits in an operation of the data plane.
class InOperation {
 public:
  explicit InOperation(ControlThread& control) : control_(control) { control_.in_operation = true; }
  ~InOperation() { control_.in_operation = false; }
  InOperation(const InOperation&) = delete;
  InOperation& operator=(const InOperation&) = delete;

 private:
  ControlThread& control_;
};

}  // namespace

void Runner::Misuse(TrainingStep& step, Status status) {
  std::fprintf(stderr, "muster: %s\n", status.message().c_str());
  step.status_ = status;
  misuse_ = std::move(status);
  progress_ = Progress::kOver;
  // The others would wait for this rank.
  GiveUpStep(misuse_.message());
}

bool Runner::CheckTurn(TrainingStep& step, const MicroBatch& batch) {
  const auto number = step.number().value();
  if (&step != step_.get() || progress_ != Progress::kAdding) {
    Misuse(step, FailedPrecondition(fmt::format(
                     "step {}: Add() after Reduce(): add all micro-batches before", number)));
    return false;
  }
  const auto expected = dealt_.lo + static_cast<std::int64_t>(added_);
  if (expected >= dealt_.hi || batch.index() != expected) {
    Misuse(step,
           InvalidArgument(fmt::format(
               "step {}: micro-batch {} was added, but {}: add each of micro_batches() once, in "
               "their order",
               number, batch.index(),
               expected >= dealt_.hi ? std::string("all have been added already")
                                     : fmt::format("it is the turn of {}", expected))));
    return false;
  }
  return true;
}

bool Runner::CheckContribution(TrainingStep& step, const MicroBatch& batch,
                               const Contribution& contribution) {
  if (contribution.weight >= 0 && !std::isinf(contribution.weight)) return true;
  Misuse(step, InvalidArgument(fmt::format(
                   "step {}: the weight {} of micro-batch {} must be a number of samples or tokens",
                   step.number().value(), contribution.weight, batch.index())));
  return false;
}

void Runner::AddScalars(TrainingStep& step, const MicroBatch& batch,
                        const Contribution& contribution) {
  const double scalars[] = {contribution.loss, contribution.weight};
  if (Status status = scalars_->Add(batch.index(), scalars); !status.ok()) {
    return Misuse(step, std::move(status));
  }
  ++added_;
  part_added_ = 0;
}

void Runner::Add(TrainingStep& step, const MicroBatch& batch, std::span<const float> gradient,
                 Contribution contribution) {
  if (!step.status_.ok() || !CheckTurn(step, batch)) return;
  if (static_cast<std::int64_t>(gradient.size()) != gradient_elements_) {
    return Misuse(step, InvalidArgument(fmt::format(
                            "step {}: the gradient has {} elements, not {}: give "
                            "WorkerOptions::gradient_elements, which is by default the number of "
                            "float32 elements in replicated and derived tensors",
                            step.number().value(), gradient.size(), gradient_elements_)));
  }
  if (!CheckContribution(step, batch, contribution)) return;
  if (Status status = gradient_->Add(batch.index(), gradient); !status.ok()) {
    return Misuse(step, std::move(status));
  }
  AddScalars(step, batch, contribution);
}

void Runner::AddPart(TrainingStep& step, const MicroBatch& batch, std::int64_t first,
                     DeviceSpan<const float> part, DeviceStream& stream) {
  if (!step.status_.ok() || (&step == step_.get() && broke_adding_)) return;
  if (!CheckTurn(step, batch)) return;
  Status status = gradient_->AddPart(batch.index(), first, part, stream);
  if (status.ok()) {
    part_added_ += static_cast<std::int64_t>(part.size());
  } else if (status.code() == Code::kInvalidArgument ||
             status.code() == Code::kFailedPrecondition) {
    Misuse(step, std::move(status));
  } else {
    progress_ = Progress::kOver;
    broke_adding_ = true;
    OperationFailedWith(status);
  }
}

void Runner::Complete(TrainingStep& step, const MicroBatch& batch, Contribution contribution) {
  if (!step.status_.ok() || (&step == step_.get() && broke_adding_)) return;
  if (!CheckTurn(step, batch) || !CheckContribution(step, batch, contribution)) return;
  if (part_added_ != gradient_elements_) {
    return Misuse(step,
                  FailedPrecondition(fmt::format(
                      "step {}: {} of the {} elements of micro-batch {}'s gradient were "
                      "added: add its parts before (AddPart)",
                      step.number().value(), part_added_, gradient_elements_, batch.index())));
  }
  AddScalars(step, batch, contribution);
}

bool Runner::Reduce(TrainingStep& step) {
  if (!step.status_.ok()) return false;
  const auto number = step.number().value();
  if (&step != step_.get() || progress_ == Progress::kReduced || progress_ == Progress::kNone) {
    Misuse(step, FailedPrecondition(fmt::format(
                     "step {}: Reduce() was called twice: once, after all Add()", number)));
    return false;
  }
  if (progress_ == Progress::kOver) return false;
  {
    const ControlThread::Lock lock = control_->Acquire();
    // Cut off already; then it does not matter what was added.
    if (!control_->session().Running(record_.generation)) {
      progress_ = Progress::kOver;
      return false;
    }
    control_->Hand(ReduceBegun{});
  }
  if (added_ != step.micro_batches_.size()) {
    Misuse(step,
           FailedPrecondition(fmt::format(
               "step {}: {} of {} micro-batches were added: add each of micro_batches() before "
               "Reduce()",
               number, added_, step.micro_batches_.size())));
    return false;
  }
  if (const Status status = ReduceAll(step); !status.ok()) {
    progress_ = Progress::kOver;
    OperationFailedWith(status);
    return false;
  }
  progress_ = Progress::kReduced;
  return true;
}

Status Runner::ReduceAll(TrainingStep& step) {
  const InOperation inside(*control_);
  // The gradient first: parts of it may be on their way already.
  MUSTER_RETURN_IF_ERROR(gradient_->Reduce());
  double scalars[2] = {0, 0};
  MUSTER_RETURN_IF_ERROR(
      ReduceTree<double>(*communicator_, ranges_, *scalars_, std::span<double>(scalars)));
  const double weight = scalars[1];
  // Nothing to divide by: no sample had a weight, and the step is skipped by all.
  const double scale = weight > 0 ? 1 / weight : 0;
  const Result<double> norm = gradient_->Mean(scale);
  if (!norm.ok()) return norm.status();
  step.gradient_ = gradient_->host();
  step.device_gradient_ = gradient_->device();
  step.gradient_norm_ = *norm;
  step.loss_ = scalars[0] * scale;
  step.weight_ = weight;
  // All of this comes from the same bytes on every rank, so all ranks judge alike.
  finite_ = weight > 0 && std::isfinite(step.gradient_norm_) && std::isfinite(step.loss_);
  if (records_.active()) {
    const Result<std::uint64_t> digest = gradient_->Digest();
    if (!digest.ok()) return digest.status();
    digest_ = *digest;
  }
  return {};
}

Outcome Runner::Commit(TrainingStep& step) {
  if (!step.status_.ok()) return Outcome::kVoid;
  if (&step != step_.get() || progress_ == Progress::kAdding || progress_ == Progress::kNone) {
    Misuse(step, FailedPrecondition(
                     fmt::format("step {}: Commit() needs a Reduce() before it that returned true",
                                 step.number().value())));
    return Outcome::kVoid;
  }
  if (progress_ == Progress::kOver) return Outcome::kVoid;
  progress_ = Progress::kOver;
  const Outcome vote = finite_ ? Outcome::kApply : Outcome::kSkip;
  Wishes wishes;
  {
    const ControlThread::Lock lock = control_->Acquire();
    wishes = control_->session().WishesFor(step.number());
    // Before the vote leaves: from then on others may know the outcome.
    control_->Hand(Prepare{step.number(), vote, wishes, step.loss()});
    // Refused: interrupted before anybody can have all votes.
    if (!control_->session().prepared()) return Outcome::kVoid;
  }
  (void)Vote(step, vote, wishes);
  Outcome outcome = Outcome::kVoid;
  {
    ControlThread::Lock lock = control_->Acquire();
    std::optional<Outcome> decided;
    while (!(decided = control_->session().Decided(MonotonicNow()))) control_->Wait(lock);
    outcome = *decided;
    control_->Hand(OutcomeTaken{});
  }
  if (outcome == Outcome::kVoid) return outcome;
  if (outcome == Outcome::kApply) table_->MarkTrained();
  WriteRecord(step, outcome);
  return outcome;
}

bool Runner::Vote(TrainingStep& step, Outcome vote, Wishes wishes) {
  const std::int64_t size = record_.world_size();
  const std::int64_t generation = record_.generation.value();
  std::int64_t sums[] = {1, vote == Outcome::kApply ? 1 : 0, wishes.checkpoint ? 1 : 0,
                         wishes.reform ? 1 : 0, generation};
  Status status;
  {
    const InOperation inside(*control_);
    status = communicator_->AllReduce(std::as_writable_bytes(std::span(sums)), ElementType::kInt64,
                                      ReduceOp::kSum);
  }
  const bool same = sums[0] == size && sums[4] == size * generation && sums[1] % size == 0;
  if (status.ok() && !same) {
    status =
        Internal(fmt::format("the votes on step {} do not fit: {} of {} ranks, {} of them apply",
                             step.number().value(), sums[0], size, sums[1]));
  }
  if (!status.ok()) {
    OperationFailedWith(status);
    return false;
  }
  const ControlThread::Lock lock = control_->Acquire();
  control_->Hand(VoteDone{step.number(), {sums[2] > 0, sums[3] > 0}});
  return true;
}

StepEntry Runner::EntryOf(Step step) const {
  StepEntry entry;
  entry.member = member_;
  entry.generation = record_.generation;
  entry.step = step;
  entry.rank = rank_;
  entry.world_size = record_.world_size();
  return entry;
}

void Runner::WriteRecord(const TrainingStep& step, Outcome outcome) {
  if (!records_.active()) return;
  StepEntry entry = EntryOf(step.number());
  entry.epoch = batch_.epoch;
  if (dealt_.size() > 0) {
    entry.samples.push_back({PositionsOf(batch_, static_cast<std::int32_t>(dealt_.lo)).lo,
                             PositionsOf(batch_, static_cast<std::int32_t>(dealt_.hi - 1)).hi});
  }
  entry.outcome = outcome;
  entry.loss = step.loss();
  entry.digest = digest_;
  if (const Status status = records_.Write(entry); !status.ok()) {
    std::fprintf(stderr, "muster: %s\n", status.message().c_str());
  }
}

}  // namespace muster::worker
