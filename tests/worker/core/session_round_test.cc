// Forming a generation: interrupt, abort, ready, assign, formed, start; and what becomes of the
// step that was open.
#include <gtest/gtest.h>

#include "tests/worker/core/session_harness.h"

namespace muster::worker {
namespace {

TEST(SessionRound, ReadyComesOnlyAfterTheAbortHasTakenEffect) {
  SessionHarness h;
  h.StartFirst();
  h.SayInterrupt(2);
  EXPECT_TRUE(h.TakeAbort());
  EXPECT_FALSE(h.Take<Ready>());
  h.FinishAbort();
  const auto ready = h.Take<Ready>();
  ASSERT_TRUE(ready);
  EXPECT_EQ(ready->forming, Generation(2));
  EXPECT_EQ(ready->generation, Generation(1));
  EXPECT_TRUE(ready->holds_state);
  EXPECT_EQ(ready->abort_ms, 1.5);
}

TEST(SessionRound, InterruptsOfNumbersSeenBeforeAreIgnored) {
  SessionHarness h;
  h.StartFirst();
  h.SayInterrupt(1);
  EXPECT_FALSE(h.TakeAbort());
  h.SayInterrupt(5);
  h.FinishAbort();
  EXPECT_TRUE(h.TakeAbort());
  h.Forget();
  h.SayInterrupt(4);
  EXPECT_FALSE(h.TakeAbort());
  EXPECT_FALSE(h.Take<Ready>());
  h.SayInterrupt(5);  // asked again: answered again, nothing to abort
  EXPECT_FALSE(h.TakeAbort());
  EXPECT_EQ(h.Take<Ready>()->forming, Generation(5));
}

TEST(SessionRound, ALaterInterruptSupersedesAHalfMadeGeneration) {
  SessionHarness h;
  h.StartFirst();
  h.TakeStep(1);
  h.SayInterrupt(2);
  h.FinishAbort();
  h.Say(Assign{h.RecordOf(2, 0, 1, 1)});
  EXPECT_EQ(h.next(), Directive::kForm);
  (void)h.TakeAbort();
  h.Forget();
  h.SayInterrupt(3);
  EXPECT_TRUE(h.TakeAbort());
  EXPECT_EQ(h.next(), Directive::kWait);
  h.Hand(FormedHere{Generation(2), 1, 1, 0});  // too late
  EXPECT_FALSE(h.Take<Formed>());
  h.FinishAbort();
  const auto ready = h.Take<Ready>();
  ASSERT_TRUE(ready);
  EXPECT_EQ(ready->forming, Generation(3));
  EXPECT_EQ(ready->generation, Generation(1));  // the last started one, whose cut it still holds
  EXPECT_EQ(ready->committed, Step(1));
  EXPECT_TRUE(ready->holds_state);
  h.Say(Start{Generation(2)});
  EXPECT_TRUE(h.session().interrupted());
}

TEST(SessionRound, AStaleOrUnaskedAssignmentIsIgnored) {
  SessionHarness h;
  h.StartFirst();
  h.Say(Assign{h.RecordOf(2, 0, 2, 0)});  // no interrupt
  EXPECT_EQ(h.session().assigned(), nullptr);
  h.SayInterrupt(3);
  h.Say(Assign{h.RecordOf(3, 0, 2, 0)});  // before the abort has finished
  EXPECT_EQ(h.session().assigned(), nullptr);
  h.FinishAbort();
  h.Say(Assign{h.RecordOf(2, 0, 2, 0)});  // of another number
  EXPECT_EQ(h.session().assigned(), nullptr);
  h.Say(Assign{h.RecordOf(3, 1, 2, 0)});
  ASSERT_NE(h.session().assigned(), nullptr);
  h.Say(Assign{h.RecordOf(3, 0, 2, 0)});  // twice: the first stands
  EXPECT_EQ(h.session().RankIn(*h.session().assigned()), Rank(1));
}

TEST(SessionRound, AStartCountsOnlyForAFormedGeneration) {
  SessionHarness h;
  h.StartFirst();
  h.SayInterrupt(2);
  h.FinishAbort();
  h.Say(Assign{h.RecordOf(2, 0, 2, 0)});
  h.Say(Start{Generation(2)});
  EXPECT_TRUE(h.session().interrupted());
  h.Hand(FormedHere{Generation(2), 3, 4, 5});
  const auto formed = h.Take<Formed>();
  ASSERT_TRUE(formed);
  EXPECT_EQ(formed->restored_bytes, 5);
  h.Say(Start{Generation(1)});
  EXPECT_EQ(h.next(), Directive::kWait);
  h.Say(Start{Generation(2)});
  EXPECT_EQ(h.next(), Directive::kTrain);
  EXPECT_EQ(h.session().started_record()->generation, Generation(2));
}

TEST(SessionRound, AssignmentIsByIncarnationNotByName) {
  SessionHarness h;
  h.StartFirst();
  h.SayInterrupt(2);
  h.FinishAbort();
  GenerationRecord record = h.RecordOf(2, 0, 2, 0);
  record.members[0].member.incarnation = Incarnation(1234);
  h.Say(Assign{record});
  EXPECT_EQ(h.session().assigned(), nullptr);
  EXPECT_EQ(h.session().started_record(), nullptr);  // a spare: it holds nothing
  EXPECT_EQ(h.next(), Directive::kWait);
  h.SayInterrupt(3);
  h.FinishAbort();
  EXPECT_FALSE(h.Take<Ready>()->holds_state);
}

TEST(SessionRound, PreparedIsSetBeforeTheVoteLeavesAndReported) {
  SessionHarness h;
  h.StartFirst();
  h.OpenStep();
  h.PrepareStep(1, Outcome::kSkip, {.checkpoint = true, .reform = false});
  EXPECT_TRUE(h.session().prepared());
  h.SayInterrupt(2);
  h.FinishAbort();
  const auto ready = h.Take<Ready>();
  ASSERT_TRUE(ready && ready->open);
  EXPECT_TRUE(ready->open->prepared);
  EXPECT_EQ(ready->open->step, Step(1));
  EXPECT_EQ(ready->open->vote, Outcome::kSkip);
  EXPECT_TRUE(ready->open->wishes.checkpoint);
  EXPECT_EQ(ready->committed, Step(0));
  EXPECT_TRUE(ready->holds_state);
}

TEST(SessionRound, AfterAnInterruptNothingIsPrepared) {
  SessionHarness h;
  h.StartFirst();
  h.OpenStep();
  h.SayInterrupt(2);
  h.PrepareStep(1);
  EXPECT_FALSE(h.session().prepared());
  h.FinishAbort();
  const auto ready = h.Take<Ready>();
  ASSERT_TRUE(ready && ready->open);
  EXPECT_FALSE(ready->open->prepared);
  h.PrepareStep(1);
  EXPECT_FALSE(h.session().prepared());
}

// Rule 2.
TEST(SessionRound, AKnownOutcomeIsReportedWithItsWishes) {
  SessionHarness h;
  h.StartFirst();
  h.OpenStep();
  h.PrepareStep(1);
  h.Hand(VoteDone{Step(1), {.checkpoint = true, .reform = true}});
  h.SayInterrupt(2);
  h.FinishAbort();
  const auto ready = h.Take<Ready>();
  ASSERT_TRUE(ready);
  EXPECT_FALSE(ready->open);
  EXPECT_EQ(ready->committed, Step(1));
  EXPECT_TRUE(ready->wishes.checkpoint);
  EXPECT_TRUE(ready->wishes.reform);
  EXPECT_TRUE(ready->holds_state);  // or will be, once it has applied
}

struct DecisionRow {
  const char* name;
  bool prepared;
  StepDecision decision;
  std::int64_t restore_step;
  RestoreSource source;
  Outcome expected;
  std::int64_t committed;
};

TEST(SessionRound, DecisionsOnTheOpenStep) {
  const Generation g1(1);
  const DecisionRow rows[] = {
      {"apply",
       true,
       {g1, Step(1), Outcome::kApply, {}},
       1,
       RestoreSource::kLive,
       Outcome::kApply,
       1},
      {"skip", true, {g1, Step(1), Outcome::kSkip, {}}, 1, RestoreSource::kLive, Outcome::kSkip, 1},
      {"void", true, {g1, Step(1), Outcome::kVoid, {}}, 0, RestoreSource::kLive, Outcome::kVoid, 0},
      {"not prepared",
       false,
       {g1, Step(1), Outcome::kVoid, {}},
       0,
       RestoreSource::kLive,
       Outcome::kVoid,
       0},
      {"nothing said, but the state goes on from it",
       true,
       {},
       1,
       RestoreSource::kLive,
       Outcome::kApply,
       1},
      {"nothing said, the state is before it",
       true,
       {},
       0,
       RestoreSource::kLive,
       Outcome::kVoid,
       0},
      {"of another generation",
       true,
       {Generation(9), Step(1), Outcome::kVoid, {}},
       1,
       RestoreSource::kLive,
       Outcome::kApply,
       1},
      {"committed, but rolled back",
       true,
       {g1, Step(1), Outcome::kApply, {}},
       0,
       RestoreSource::kCheckpoint,
       Outcome::kVoid,
       0},
  };
  for (const DecisionRow& row : rows) {
    SCOPED_TRACE(row.name);
    SessionHarness h;
    h.StartFirst();
    h.OpenStep();
    if (row.prepared) h.PrepareStep(1);
    h.SayInterrupt(2);
    h.FinishAbort();
    EXPECT_EQ(h.decided(), std::nullopt);
    GenerationRecord record = h.RecordOf(2, 0, 1, row.restore_step, row.source);
    record.decision = row.decision;
    h.Say(Assign{record});
    EXPECT_EQ(h.decided(), row.expected);
    EXPECT_EQ(h.session().committed(), Step(row.committed));
    // The first decision stands: nothing the data plane still says changes it.
    h.Hand(VoteDone{Step(1), {}});
    EXPECT_EQ(h.decided(), row.expected);
  }
}

// Rule 1: inherited until a generation starts.
TEST(SessionRound, ADecisionThatIsRepeatedInTheNextRecordChangesNothing) {
  SessionHarness h;
  h.StartFirst();
  h.OpenStep();
  h.PrepareStep(1);
  h.SayInterrupt(2);
  h.FinishAbort();
  GenerationRecord record = h.RecordOf(2, 0, 2, 1);
  record.decision = {Generation(1), Step(1), Outcome::kApply, {}};
  h.Say(Assign{record});
  EXPECT_EQ(h.decided(), Outcome::kApply);
  h.Hand(OutcomeTaken{});
  h.SayInterrupt(3);
  h.FinishAbort();
  h.Forget();
  record.generation = Generation(3);
  h.Say(Assign{record});
  EXPECT_EQ(h.session().committed(), Step(1));
  h.Hand(AtBoundary{});
  h.FormAssigned(Generation(3));
  EXPECT_EQ(h.session().committed(), Step(1));
  EXPECT_EQ(h.next(), Directive::kTrain);
}

// Rule 1: a member that missed the first record learns it from the second.
TEST(SessionRound, ADecisionReachesAMemberThatMissedTheRecordInWhichItWasTaken) {
  SessionHarness h;
  h.StartFirst();
  h.OpenStep();
  h.PrepareStep(1);
  h.SayInterrupt(2);
  h.FinishAbort();
  h.Cut();
  h.Run(Duration::Millis(1));
  h.Accept();
  h.Greet();
  h.SayInterrupt(3);
  h.FinishAbort();
  GenerationRecord record = h.RecordOf(3, 0, 2, 1);
  record.decision = {Generation(1), Step(1), Outcome::kApply, {}};
  h.Say(Assign{record});
  EXPECT_EQ(h.decided(), Outcome::kApply);
}

// Rule 7.
TEST(SessionRound, ARollbackVoidsEveryStepAboveIt) {
  SessionHarness h;
  h.StartFirst();
  for (std::int64_t step = 1; step <= 5; ++step) h.TakeStep(step);
  h.OpenStep();
  h.SayInterrupt(2);
  h.FinishAbort();
  h.Say(Assign{h.RecordOf(2, 0, 2, 3, RestoreSource::kCheckpoint)});
  EXPECT_EQ(h.decided(), Outcome::kVoid);
  EXPECT_EQ(h.session().committed(), Step(3));
  h.Forget();
  h.SayInterrupt(3);  // before it could start
  h.FinishAbort();
  const auto ready = h.Take<Ready>();
  ASSERT_TRUE(ready);
  EXPECT_FALSE(ready->holds_state);
  EXPECT_FALSE(ready->open);
  EXPECT_EQ(ready->committed, Step(3));
  h.Say(Assign{h.RecordOf(3, 0, 2, 3, RestoreSource::kCheckpoint)});
  h.FormAssigned(Generation(3));
  h.Hand(AtBoundary{});
  EXPECT_EQ(h.next(), Directive::kTrain);
  h.OpenStep();
  h.PrepareStep(4);
  EXPECT_TRUE(h.session().prepared());
}

TEST(SessionRound, ARollbackAlsoVoidsAnOutcomeThatCommitHasNotReturned) {
  SessionHarness h;
  h.StartFirst();
  h.OpenStep();
  h.PrepareStep(1);
  h.Hand(VoteDone{Step(1), {}});
  h.SayInterrupt(2);
  h.FinishAbort();
  h.Say(Assign{h.RecordOf(2, 0, 2, 0, RestoreSource::kCheckpoint)});
  EXPECT_EQ(h.decided(), Outcome::kVoid);
}

// Rule 11.
TEST(SessionRound, AHolderThatTheRecordDoesNotCountAsOneHoldsNothingAnyMore) {
  SessionHarness h;
  h.StartFirst();
  h.SayInterrupt(2);
  h.FinishAbort();
  GenerationRecord record = h.RecordOf(2, 0, 2, 0);
  record.members[0].previous_rank = Rank(-1);
  h.Say(Assign{record});
  h.Forget();
  h.SayInterrupt(3);
  h.FinishAbort();
  EXPECT_FALSE(h.Take<Ready>()->holds_state);
}

TEST(SessionRound, OneThatIsTakenForAHolderOfWhatItDoesNotHoldSaysSo) {
  for (const std::int64_t wrong : {0, 2}) {
    SessionHarness h;
    h.StartFirst();
    h.TakeStep(1);
    h.SayInterrupt(2);
    h.FinishAbort();
    h.Forget();
    h.Say(Assign{h.RecordOf(2, 0, 2, wrong)});
    EXPECT_TRUE(h.Take<FormFailed>()) << wrong;
    EXPECT_EQ(h.next(), Directive::kWait);
  }
}

TEST(SessionRound, AJoinerHoldsTheStateFromTheStartOnNotBefore) {
  SessionHarness h;
  h.Join();
  h.SayInterrupt(4);
  h.FinishAbort();
  EXPECT_FALSE(h.Take<Ready>()->holds_state);
  GenerationRecord record = h.RecordOf(4, 2, 3, 17);
  record.members[2].previous_rank = Rank(-1);
  h.Say(Assign{record});
  h.Hand(FormedHere{Generation(4), 1, 1, 0});
  h.SayInterrupt(5);
  h.FinishAbort();
  auto ready = h.Take<Ready>();
  EXPECT_FALSE(ready->holds_state);
  EXPECT_EQ(ready->generation, Generation());  // a joiner of what never started is no holder
  record.generation = Generation(5);
  h.Say(Assign{record});
  h.FormAssigned(Generation(5));
  h.SayInterrupt(6);
  h.FinishAbort();
  ready = h.Take<Ready>();
  EXPECT_TRUE(ready->holds_state);
  EXPECT_EQ(ready->generation, Generation(5));
  EXPECT_EQ(ready->committed, Step(17));
}

TEST(SessionRound, AFailedOperationIsReportedOnceAndWaitsForAnInterrupt) {
  SessionHarness h;
  h.StartFirst();
  h.OpenStep();
  h.Hand(OperationBroke{Generation(1), Step(1), Code::kUnavailable, "reset", Rank(1)});
  const auto failed = h.Take<OperationFailed>();
  ASSERT_TRUE(failed);
  EXPECT_EQ(failed->peer, Rank(1));
  h.Hand(OperationBroke{Generation(1), Step(1), Code::kUnavailable, "reset", Rank(1)});
  EXPECT_FALSE(h.Take<OperationFailed>());
  h.PrepareStep(1);
  EXPECT_FALSE(h.session().prepared());
  h.Hand(AtBoundary{});
  EXPECT_EQ(h.next(), Directive::kWait);
  h.Cut();  // a failure while the coordinator is away waits for its return
  h.Run(Duration::Millis(1));
  h.Accept();
  h.Greet();
  EXPECT_TRUE(h.Take<OperationFailed>());
  h.SayInterrupt(2);
  h.FinishAbort();
  h.Forget();
  h.Hand(OperationBroke{Generation(1), Step(1), Code::kUnavailable, "late", Rank(1)});
  EXPECT_FALSE(h.Take<OperationFailed>());
}

TEST(SessionRound, AGenerationThatCannotBeFormedIsReportedAndAnotherOneComes) {
  SessionHarness h;
  h.StartFirst();
  h.SayInterrupt(2);
  h.FinishAbort();
  h.Say(Assign{h.RecordOf(2, 0, 2, 0)});
  FormFailed failure;
  failure.generation = Generation(2);
  failure.peer = Rank(1);
  h.Hand(FormBroke{failure});
  EXPECT_TRUE(h.Take<FormFailed>());
  EXPECT_EQ(h.next(), Directive::kWait);
  h.Form(h.RecordOf(3, 0, 1, 0));
  EXPECT_EQ(h.next(), Directive::kTrain);
}

TEST(SessionRound, BeforeFormingALeaseThatRanOutIsRenewed) {
  SessionHarness h;
  h.StartFirst();
  h.SayInterrupt(2);
  h.FinishAbort();
  h.Say(Assign{h.RecordOf(2, 0, 2, 0)});
  h.Pass(Duration::Seconds(60));
  EXPECT_EQ(h.next(), Directive::kWait);
  h.Forget();
  h.Hand(Tick{});
  const auto beat = h.Take<Heartbeat>();
  ASSERT_TRUE(beat || h.dialing());
}

TEST(SessionRound, DamageIsToldOfAlsoWhenAnotherRoundHasBegun) {
  SessionHarness h;
  h.StartFirst();
  h.SayInterrupt(2);
  h.FinishAbort();
  GenerationRecord record = h.RecordOf(2, 0, 2, 0, RestoreSource::kCheckpoint);
  record.restore.checkpoint = {Step(0), Generation(1)};
  h.Say(Assign{record});
  h.SayInterrupt(3);
  FormFailed failed;
  failed.generation = Generation(2);
  failed.code = Code::kUnavailable;
  h.Hand(FormBroke{failed});
  EXPECT_FALSE(h.Take<FormFailed>());  // of no interest any more
  failed.code = Code::kDataLoss;
  failed.bad_checkpoint = record.restore.checkpoint;
  h.Hand(FormBroke{failed});
  EXPECT_TRUE(h.Take<FormFailed>());
}

TEST(SessionRound, AProcessThatCannotBeginAgainEnds) {
  SessionHarness h;
  h.StartFirst();
  h.SayInterrupt(2);
  h.FinishAbort();
  h.Say(Assign{h.RecordOf(2, 0, 2, 0, RestoreSource::kInitial)});
  FormFailed failed;
  failed.generation = Generation(2);
  failed.code = Code::kFailedPrecondition;
  failed.reason = "its initial values are gone";
  h.Hand(FormBroke{failed});
  EXPECT_TRUE(h.session().ended());
  EXPECT_NE(h.session().status().message().find("initial values"), std::string::npos);
}

}  // namespace
}  // namespace muster::worker
