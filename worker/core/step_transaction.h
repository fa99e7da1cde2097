// The open step of one worker. It is prepared before its vote leaves, decided once, and never
// prepared after the interrupt of the next generation was taken: what `ready` reported stays true.
#pragma once

#include <optional>

#include "protocol/ids.h"
#include "protocol/messages.h"
#include "protocol/records.h"

namespace muster::worker {

class StepTransaction {
 public:
  // A new step in `generation`. REQUIRES: nothing undecided is open.
  void Open(Generation generation, Step step);
  // The fully reduced gradient is in memory, and the vote may leave from now on. False, and nothing
  // changes, when the step is not open any more or an interrupt was taken: then nobody can commit
  // it, and the step is void.
  [[nodiscard]] bool Prepare(Step step, Outcome vote, Wishes wishes);
  // An interrupt was taken: no preparing from now on.
  void Freeze() { frozen_ = true; }
  // The first decision stands. True when it was this one.
  bool Decide(Outcome outcome, Wishes wishes);
  // Nothing is open any more. A step that was not decided is void.
  void Close();

  [[nodiscard]] bool undecided() const { return state_ == State::kOpen || prepared(); }
  [[nodiscard]] bool prepared() const { return state_ == State::kPrepared; }
  [[nodiscard]] Generation generation() const { return generation_; }
  [[nodiscard]] Step step() const { return step_; }
  [[nodiscard]] Outcome vote() const { return vote_; }
  [[nodiscard]] Wishes wishes() const { return wishes_; }
  // kApply, kSkip or kVoid once decided, else kNone.
  [[nodiscard]] Outcome outcome() const { return outcome_; }
  // What `ready` says of it; nothing when it is decided or there is none.
  [[nodiscard]] std::optional<OpenStep> Report() const;
  // All of its state, for those who compare states.
  template <class Visit>
  void VisitState(Visit&& visit) const {
    visit(state_, frozen_, generation_, step_, vote_, wishes_, outcome_);
  }

 private:
  enum class State { kNone, kOpen, kPrepared, kDecided };
  State state_ = State::kNone;
  bool frozen_ = false;
  Generation generation_;
  Step step_;
  Outcome vote_ = Outcome::kNone;
  Wishes wishes_;
  Outcome outcome_ = Outcome::kNone;
};

}  // namespace muster::worker
