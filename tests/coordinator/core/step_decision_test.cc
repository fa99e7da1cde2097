// The open step: each row is one constellation of answers, and names the wrong rule that it would
// catch.
#include "coordinator/core/step_decision.h"

#include <gtest/gtest.h>

namespace muster::coordinator {
namespace {

constexpr Generation kBroken{3};

Ready At(std::int64_t committed) {
  Ready ready;
  ready.generation = kBroken;
  ready.committed = Step(committed);
  return ready;
}

Ready Open(std::int64_t committed, bool prepared, Outcome vote = Outcome::kApply,
           Wishes wishes = {}) {
  Ready ready = At(committed);
  ready.open = OpenStep{Step(committed + 1), prepared, prepared ? vote : Outcome::kNone, wishes};
  return ready;
}

Ready Knows(std::int64_t committed, Wishes wishes) {
  Ready ready = At(committed);
  ready.wishes = wishes;
  return ready;
}

constexpr Wishes kCheckpoint{true, false};
constexpr Wishes kReform{false, true};
constexpr Wishes kBoth{true, true};

StepDecision Decided(std::int64_t step, Outcome outcome, Wishes wishes = {}) {
  return {kBroken, Step(step), outcome, wishes};
}

struct Row {
  const char* name;
  const char* catches;  // the wrong rule under which this row fails
  std::vector<Ready> survivors;
  std::optional<StepDecision> inherited;
  StepReason reason;
  StepDecision decision;
  std::int64_t committed;
  Wishes wishes;
};

std::vector<Row> OpenRows() {
  return {
      {"nothing open", "invents a step", {At(5), At(5)}, {}, StepReason::kNothingOpen, {}, 5, {}},
      {"all prepared",
       "never commits an open step",
       {Open(5, true), Open(5, true)},
       {},
       StepReason::kAllPrepared,
       Decided(6, Outcome::kApply),
       6,
       {}},
      {"all prepared to skip",
       "commits with apply",
       {Open(5, true, Outcome::kSkip)},
       {},
       StepReason::kAllPrepared,
       Decided(6, Outcome::kSkip),
       6,
       {}},
      {"one of two not prepared",
       "commits when any is prepared",
       {Open(5, true), Open(5, false)},
       {},
       StepReason::kNotAllPrepared,
       Decided(6, Outcome::kVoid),
       5,
       {}},
      {"two of three prepared",
       "commits when a majority is prepared",
       {Open(5, true), Open(5, true), Open(5, false)},
       {},
       StepReason::kNotAllPrepared,
       Decided(6, Outcome::kVoid),
       5,
       {}},
      {"one has not opened it",
       "counts only those that opened it",
       {Open(5, true), At(5)},
       {},
       StepReason::kNotAllPrepared,
       Decided(6, Outcome::kVoid),
       5,
       {}},
  };
}

std::vector<Row> KnownRows() {
  return {
      {"one knows the outcome",
       "an applied member counts as not prepared",
       {At(6), Open(5, true)},
       {},
       StepReason::kOutcomeKnown,
       Decided(6, Outcome::kApply),
       6,
       {}},
      {"one knows, in the other order",
       "the first answer rules",
       {Open(5, true), At(6)},
       {},
       StepReason::kOutcomeKnown,
       Decided(6, Outcome::kApply),
       6,
       {}},
      {"the greatest committed step wins",
       "takes the least of the committed steps",
       {At(6), Open(5, true), At(6)},
       {},
       StepReason::kOutcomeKnown,
       Decided(6, Outcome::kApply),
       6,
       {}},
      {"one knows, and has opened the next",
       "abandons the known step with the next",
       {Open(6, false), Open(5, true)},
       {},
       StepReason::kOutcomeKnown,
       Decided(6, Outcome::kApply),
       6,
       {}},
  };
}

std::vector<Row> WishRows() {
  return {
      {"wishes of all votes",
       "takes the wishes of one vote",
       {Open(5, true, Outcome::kApply, kCheckpoint), Open(5, true, Outcome::kApply, kReform)},
       {},
       StepReason::kAllPrepared,
       Decided(6, Outcome::kApply, kBoth),
       6,
       kBoth},
      {"wishes agreed by the whole generation",
       "takes wishes from survivors' votes only",
       {Knows(6, kBoth), Open(5, true, Outcome::kApply, {})},
       {},
       StepReason::kOutcomeKnown,
       Decided(6, Outcome::kApply, kBoth),
       6,
       kBoth},
      {"a vote is no agreement once the outcome is known",
       "merges votes into what was agreed",
       {Knows(6, {}), Open(5, true, Outcome::kApply, kReform)},
       {},
       StepReason::kOutcomeKnown,
       Decided(6, Outcome::kApply, {}),
       6,
       {}},
  };
}

std::vector<Row> InheritedRows() {
  return {
      {"a commit is inherited",
       "forgets the decision",
       {Open(5, false)},
       Decided(6, Outcome::kApply, kCheckpoint),
       StepReason::kInherited,
       Decided(6, Outcome::kApply, kCheckpoint),
       6,
       kCheckpoint},
      {"an abandonment is inherited",
       "only commits are final",
       {Open(5, true)},
       Decided(6, Outcome::kVoid),
       StepReason::kInherited,
       Decided(6, Outcome::kVoid),
       5,
       {}},
      {"what was open follows a committed step",
       "takes the word of those that are left alone",
       {Open(4, true)},
       Decided(6, Outcome::kVoid),
       StepReason::kInherited,
       Decided(6, Outcome::kVoid),
       5,
       {}},
      {"a decision on another generation is not inherited",
       "inherits by step alone",
       {Open(5, true)},
       StepDecision{Generation(2), Step(6), Outcome::kVoid, {}},
       StepReason::kAllPrepared,
       Decided(6, Outcome::kApply),
       6,
       {}},
      {"an empty decision is not inherited",
       "inherits that nothing was open",
       {Open(5, true)},
       StepDecision{},
       StepReason::kAllPrepared,
       Decided(6, Outcome::kApply),
       6,
       {}},
      {"no survivor, decision kept",
       "forgets the decision with the last survivor",
       {},
       Decided(6, Outcome::kApply),
       StepReason::kNoSurvivor,
       Decided(6, Outcome::kApply),
       0,
       {}},
      {"no survivor", "takes silence for consent", {}, {}, StepReason::kNoSurvivor, {}, 0, {}},
  };
}

class StepDecisionRows : public testing::TestWithParam<std::vector<Row>> {};

TEST_P(StepDecisionRows, AsTheyAre) {
  for (const Row& row : GetParam()) {
    const StepResolution got = ResolveOpenStep(kBroken, row.survivors, row.inherited);
    EXPECT_EQ(got.reason, row.reason) << row.name << " (catches: " << row.catches << ")";
    EXPECT_EQ(got.decision, row.decision) << row.name << " (catches: " << row.catches << ")";
    EXPECT_EQ(got.committed, Step(row.committed)) << row.name;
    EXPECT_EQ(got.wishes, row.wishes) << row.name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, StepDecisionRows,
                         testing::Values(OpenRows(), KnownRows(), WishRows(), InheritedRows()));

}  // namespace
}  // namespace muster::coordinator
