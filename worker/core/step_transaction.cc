#include "worker/core/step_transaction.h"

#include "protocol/check.h"
#include "protocol/mutants.h"

namespace muster::worker {

void StepTransaction::Open(Generation generation, Step step) {
  MUSTER_CHECK(!undecided(), "a step is opened while another one is undecided");
  *this = StepTransaction();
  state_ = State::kOpen;
  generation_ = generation;
  step_ = step;
}

bool StepTransaction::Prepare(Step step, Outcome vote, Wishes wishes) {
  MUSTER_CHECK(vote == Outcome::kApply || vote == Outcome::kSkip, "there is no vote for void");
  if (frozen_ || state_ != State::kOpen || step != step_) return false;
  state_ = State::kPrepared;
  vote_ = vote;
  wishes_ = wishes;
  return true;
}

bool StepTransaction::Decide(Outcome outcome, Wishes wishes) {
  MUSTER_CHECK(outcome != Outcome::kNone, "a decision has an outcome");
  if (!undecided()) return false;
  state_ = State::kDecided;
  outcome_ = outcome;
  wishes_ = wishes;
  return true;
}

void StepTransaction::Close() {
  const bool frozen = frozen_;
  *this = StepTransaction();
  frozen_ = frozen;
}

std::optional<OpenStep> StepTransaction::Report() const {
  if (!undecided()) return std::nullopt;
  OpenStep report;
  report.step = step_;
  report.prepared = prepared() && !Planted(Mutant::kVoteBeforePrepared);
  report.vote = vote_;
  report.wishes = wishes_;
  return report;
}

}  // namespace muster::worker
