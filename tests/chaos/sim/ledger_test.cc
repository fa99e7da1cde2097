#include "chaos/sim/ledger.h"

#include <gtest/gtest.h>

namespace muster::sim {
namespace {

const Member kA{WorkerId("a"), Incarnation(1)};
const Member kB{WorkerId("b"), Incarnation(2)};

// Two workers, two steps: nothing to complain about.
Ledger TwoSteps() {
  Ledger ledger;
  ledger.OnOutcome(kA, Generation(1), Step(1), Outcome::kApply, 0);
  ledger.OnOutcome(kB, Generation(1), Step(1), Outcome::kApply, 0);
  ledger.OnOutcome(kA, Generation(1), Step(2), Outcome::kSkip, NextState(0, Step(1)));
  EXPECT_EQ(ledger.violation(), "");
  return ledger;
}

JobRecord BackTo(std::int64_t step, std::int64_t generation) {
  JobRecord record;
  record.rollbacks.push_back({Generation(generation), Step(step)});
  return record;
}

TEST(LedgerTest, SkipLeavesTheState) {
  Ledger ledger = TwoSteps();
  EXPECT_EQ(ledger.StateAt(Step(2)), ledger.StateAt(Step(1)));
  EXPECT_EQ(ledger.last(), Step(2));
}

TEST(LedgerTest, GapIsAViolation) {
  Ledger ledger = TwoSteps();
  ledger.OnOutcome(kA, Generation(1), Step(4), Outcome::kApply, 7);
  EXPECT_NE(ledger.violation(), "");
}

TEST(LedgerTest, OtherOutcomeIsAViolation) {
  Ledger ledger = TwoSteps();
  ledger.OnOutcome(kB, Generation(1), Step(2), Outcome::kApply, NextState(0, Step(1)));
  EXPECT_NE(ledger.violation(), "");
}

TEST(LedgerTest, StepTakenInTwoGenerationsIsAViolation) {
  Ledger ledger = TwoSteps();
  ledger.OnOutcome(kB, Generation(2), Step(2), Outcome::kSkip, NextState(0, Step(1)));
  EXPECT_NE(ledger.violation(), "");
}

TEST(LedgerTest, OtherStateIsAViolation) {
  Ledger ledger = TwoSteps();
  ledger.OnOutcome(kA, Generation(1), Step(3), Outcome::kApply, 12345);
  EXPECT_NE(ledger.violation(), "");
}

TEST(LedgerTest, RollbackCutsTheChainAndVoidsWhatOlderGenerationsDo) {
  Ledger ledger = TwoSteps();
  ledger.OnRecord(BackTo(1, 2));
  EXPECT_EQ(ledger.last(), Step(1));
  ledger.OnOutcome(kA, Generation(2), Step(2), Outcome::kApply, NextState(0, Step(1)));
  EXPECT_EQ(ledger.violation(), "");
  // A worker that no one can reach shows its user a step that counts for nothing.
  ledger.OnOutcome(kB, Generation(1), Step(5), Outcome::kApply, 77);
  EXPECT_EQ(ledger.violation(), "");
  EXPECT_EQ(ledger.last(), Step(2));
}

TEST(LedgerTest, OlderGenerationAboveANewerOneIsAViolation) {
  Ledger ledger = TwoSteps();
  ledger.OnOutcome(kA, Generation(2), Step(3), Outcome::kApply, *ledger.StateAt(Step(2)));
  ledger.OnOutcome(kB, Generation(1), Step(4), Outcome::kApply, *ledger.StateAt(Step(3)));
  EXPECT_NE(ledger.violation(), "");
}

TEST(LedgerTest, RestoredStateIsTheChains) {
  Ledger ledger = TwoSteps();
  ledger.OnRestored(kB, Step(1), NextState(0, Step(1)));
  EXPECT_EQ(ledger.violation(), "");
  ledger.OnRestored(kB, Step(1), 0);
  EXPECT_NE(ledger.violation(), "");
}

}  // namespace
}  // namespace muster::sim
