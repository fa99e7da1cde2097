// The connection: joining, leases, reconnecting, fencing.
#include <gtest/gtest.h>

#include "tests/worker/core/session_harness.h"

namespace muster::worker {
namespace {

TEST(SessionConnection, HelloSaysWhoItIsAndAbleOnlyOnceTheLoopHasBegun) {
  SessionHarness h;
  h.Accept();
  const auto hello = h.Take<Hello>();
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->member, h.session().member());
  EXPECT_EQ(hello->pid, 4711);
  EXPECT_FALSE(hello->able);
  EXPECT_FALSE(hello->attachment);
  EXPECT_FALSE(h.session().joined());
  h.Greet();
  EXPECT_TRUE(h.session().joined());
  EXPECT_FALSE(h.Take<Able>());
  h.Hand(AtBoundary{});
  EXPECT_TRUE(h.Take<Able>());
  EXPECT_EQ(h.next(), Directive::kWait);
}

TEST(SessionConnection, ACoordinatorThatIsNotThereIsTriedUntilTheTimeoutThenNamed) {
  SessionHarness h;
  int dials = 0;
  while (!h.session().ended() && dials < 1000) {
    if (h.dialing()) {
      h.RefuseDial();
      ++dials;
    }
    h.Run(Duration::Millis(50));
  }
  EXPECT_EQ(h.session().status().code(), Code::kUnavailable);
  EXPECT_NE(h.session().status().message().find("http://c:1"), std::string::npos);
  EXPECT_GT(dials, 50);
  EXPECT_LT(dials, 200);
  EXPECT_LT(h.notices().size(), 10U);  // one line each ten seconds, not one for each attempt
}

TEST(SessionConnection, WhatAnotherAttemptWouldMeetAgainEndsTheJoin) {
  for (const Code code : {Code::kPermissionDenied, Code::kInvalidArgument}) {
    SessionHarness h;
    h.Hand(Disconnected{1, Status(code, "no")});
    EXPECT_EQ(h.session().status().code(), code);
  }
  SessionHarness h;
  h.Accept();
  h.Say(Refused{Code::kAlreadyExists, "taken"});
  EXPECT_EQ(h.session().status(), Status(Code::kAlreadyExists, "taken"));
}

TEST(SessionConnection, HeartbeatsGoAtTheIntervalThatTheAcknowledgementAsksFor) {
  SessionHarness h;
  h.Join();
  h.Run(Duration::Seconds(1));
  const auto fast = h.TakeAll<Heartbeat>();
  EXPECT_GE(fast.size(), 5U);
  EXPECT_LE(fast.size(), 6U);
  h.Say(Ack{fast.back().sequence, Duration::Millis(500)});
  h.Run(Duration::Millis(200));
  h.Ack();
  h.Forget();
  h.Say(Ack{fast.back().sequence + 1, Duration::Millis(500)});
  h.Run(Duration::Millis(1000));
  EXPECT_LE(h.TakeAll<Heartbeat>().size(), 3U);
}

TEST(SessionConnection, ASilentConnectionIsGivenUpAndDialedAgain) {
  SessionHarness h;
  h.Join();
  h.Run(Duration::Seconds(3));
  EXPECT_TRUE(h.TakeClose());
  EXPECT_TRUE(h.dialing());
}

TEST(SessionConnection, MessagesOfAnOldConnectionCountForNothing) {
  SessionHarness h;
  h.StartFirst();
  h.Hand(Received{0, Interrupt{Generation(5), Cause::kGrowth, ""}});
  EXPECT_FALSE(h.session().interrupted());
  h.Hand(Disconnected{0, Unavailable("late")});
  EXPECT_EQ(h.next(), Directive::kTrain);
}

TEST(SessionConnection, ReconnectsAtOnceAndSaysWhereItStands) {
  SessionHarness h;
  h.StartFirst();
  h.TakeStep(1);
  h.Cut();
  h.Run(Duration::Millis(1));
  h.Accept();
  const auto hello = h.Take<Hello>();
  ASSERT_TRUE(hello && hello->attachment);
  EXPECT_TRUE(hello->able);
  EXPECT_EQ(hello->attachment->record.generation, Generation(1));
  EXPECT_EQ(hello->attachment->record.members.size(), 2U);
  EXPECT_TRUE(hello->attachment->started);
  EXPECT_EQ(hello->attachment->committed, Step(1));
  EXPECT_EQ(hello->attachment->aborted_for, Generation());
  EXPECT_FALSE(hello->attachment->stopped);
  EXPECT_EQ(hello->highest, Generation(1));
  EXPECT_EQ(h.next(), Directive::kTrain);  // all the while
}

// Rule 5.
TEST(SessionConnection, AfterAnAbortTheHelloSaysForWhichGeneration) {
  SessionHarness h;
  h.StartFirst();
  h.SayInterrupt(2);
  h.FinishAbort();
  h.Cut();
  h.Run(Duration::Millis(1));
  h.Accept();
  auto hello = h.Take<Hello>();
  ASSERT_TRUE(hello && hello->attachment);
  EXPECT_EQ(hello->attachment->aborted_for, Generation(2));
  EXPECT_EQ(hello->highest, Generation(2));
}

// Rule 5.
TEST(SessionConnection, AtAnAgreedStopTheHelloSaysSo) {
  SessionHarness h;
  h.StartFirst();
  h.TakeStep(1, {.checkpoint = false, .reform = true});
  const auto stopped = h.Take<Stopped>();
  ASSERT_TRUE(stopped);
  EXPECT_EQ(stopped->step, Step(1));
  EXPECT_EQ(h.next(), Directive::kWait);
  h.Cut();
  h.Run(Duration::Millis(1));
  h.Accept();
  auto hello = h.Take<Hello>();
  ASSERT_TRUE(hello && hello->attachment);
  EXPECT_TRUE(hello->attachment->stopped);
}

TEST(SessionConnection, FencedDropsEverythingAndComesAsAFreshIncarnation) {
  SessionHarness h;
  h.StartFirst();
  h.TakeStep(1);
  h.OpenStep();  // in the middle of its computation
  const Member before = h.session().member();
  h.Say(Refused{Code::kFenced, "silent for too long"});
  EXPECT_TRUE(h.TakeAbort());
  EXPECT_TRUE(h.TakeClose());
  EXPECT_EQ(h.session().member().worker, before.worker);
  EXPECT_NE(h.session().member().incarnation, before.incarnation);
  EXPECT_EQ(h.session().started_record(), nullptr);
  EXPECT_EQ(h.next(), Directive::kWait);
  h.Run(Duration::Millis(100));
  h.Accept();
  const auto hello = h.Take<Hello>();
  ASSERT_TRUE(hello);
  EXPECT_FALSE(hello->attachment);
  EXPECT_FALSE(hello->able);
  EXPECT_EQ(hello->member, h.session().member());
  h.Greet();
  h.Hand(AtBoundary{});
  EXPECT_TRUE(h.Take<Able>());
  h.SayInterrupt(7);
  h.FinishAbort();
  const auto ready = h.Take<Ready>();
  ASSERT_TRUE(ready);
  EXPECT_FALSE(ready->holds_state);
  EXPECT_EQ(ready->generation, Generation());
  EXPECT_EQ(ready->committed, Step());
}

// The interrupt came first, so the training thread was back in BeginStep() when the fence fell.
TEST(SessionConnection, FencedWhileTheTrainingThreadWaitsItIsStillAble) {
  SessionHarness h;
  h.StartFirst();
  h.OpenStep();
  h.SayInterrupt(2);
  h.FinishAbort();
  h.Hand(AtBoundary{});
  for (int times = 0; times < 2; ++times) {
    h.Say(Refused{Code::kFenced, "silent for too long"});
    h.Run(Duration::Millis(500));
    h.Accept();
    const auto hello = h.Take<Hello>();
    ASSERT_TRUE(hello);
    EXPECT_TRUE(hello->able);
    h.Greet();
  }
}

TEST(SessionConnection, AnOutcomeThatWaitsForTheLeaseIsVoidOnceFenced) {
  SessionHarness h;
  h.StartFirst();
  h.OpenStep();
  h.PrepareStep(1);
  h.Pass(Duration::Seconds(60));  // stopped for a minute
  h.Hand(VoteDone{Step(1), {}});
  EXPECT_EQ(h.decided(), std::nullopt);
  h.Say(Refused{Code::kFenced, "silent for too long"});
  EXPECT_EQ(h.decided(), Outcome::kVoid);
}

TEST(SessionConnection, AfterAPauseOneRoundTripComesBeforeTheOutcome) {
  SessionHarness h;
  h.StartFirst();
  h.Run(Duration::Millis(200));
  const auto old = h.Take<Heartbeat>();
  ASSERT_TRUE(old);
  h.OpenStep();
  h.PrepareStep(1);
  h.Pass(Duration::Seconds(60));
  h.Hand(VoteDone{Step(1), {}});
  EXPECT_EQ(h.decided(), std::nullopt);
  const auto fresh = h.Take<Heartbeat>();
  ASSERT_TRUE(fresh);
  // An old acknowledgement that lay in the socket does not count: its heartbeat left long ago.
  h.Say(Ack{old->sequence, Duration::Millis(200)});
  EXPECT_EQ(h.decided(), std::nullopt);
  h.Say(Ack{fresh->sequence, Duration::Millis(200)});
  EXPECT_EQ(h.decided(), Outcome::kApply);
}

TEST(SessionConnection, WithTheCoordinatorOutOfReachTheOutcomeNeedsNoAnswer) {
  SessionHarness h;
  h.StartFirst();
  h.Cut();
  for (int i = 0; i < 100; ++i) {
    h.Run(Duration::Millis(100));
    if (h.dialing()) h.RefuseDial();
  }
  for (std::int64_t step = 1; step < 5; ++step) h.TakeStep(step);
  EXPECT_EQ(h.session().committed(), Step(4));
}

TEST(SessionConnection, ThatItWasOutOfReachBeforeAPauseSaysNothingAfterIt) {
  SessionHarness h;
  h.StartFirst();
  h.Cut();
  h.Run(Duration::Millis(1));
  h.RefuseDial();
  h.OpenStep();
  h.PrepareStep(1);
  h.Pass(Duration::Seconds(60));
  h.Hand(VoteDone{Step(1), {}});
  EXPECT_EQ(h.decided(), std::nullopt);
  EXPECT_TRUE(h.dialing());  // it asks at once
  h.RefuseDial();
  EXPECT_EQ(h.decided(), Outcome::kApply);
}

// Rule 8.
TEST(SessionConnection, OutOfTouchForAutonomyNoOutcomeIsReturnedUntilTheCoordinatorIsBack) {
  SessionHarness h;
  h.StartFirst();
  h.Cut();
  for (int i = 0; i < 610; ++i) {
    h.Run(Duration::Seconds(1));
    if (h.dialing()) h.RefuseDial();
  }
  EXPECT_EQ(h.next(), Directive::kWait);
  for (int i = 0; i < 20 && !h.dialing(); ++i) h.Run(Duration::Millis(100));
  h.Accept();
  h.Greet();
  EXPECT_EQ(h.next(), Directive::kTrain);
}

// Rule 8: also when the votes came in while it had no contact.
TEST(SessionConnection, AutonomyEndsInCommit) {
  SessionHarness h;
  h.StartFirst();
  h.OpenStep();
  h.PrepareStep(1);
  h.Cut();
  for (int i = 0; i < 610; ++i) {
    h.Run(Duration::Seconds(1));
    if (h.dialing()) h.RefuseDial();
  }
  h.Hand(VoteDone{Step(1), {}});
  EXPECT_EQ(h.decided(), std::nullopt);
  for (int i = 0; i < 20 && !h.dialing(); ++i) h.Run(Duration::Millis(100));
  h.Accept();
  h.Greet();
  EXPECT_EQ(h.decided(), Outcome::kApply);
}

TEST(SessionConnection, PhasesAndTheirTimeLeftGoWithTheHeartbeats) {
  SessionHarness h;
  h.Join();
  h.Forget();
  h.Hand(PhaseBegun{"evaluate", h.now() + Duration::Seconds(60)});
  auto beat = h.Take<Heartbeat>();
  ASSERT_TRUE(beat);
  EXPECT_EQ(beat->phase, "evaluate");
  EXPECT_EQ(beat->phase_left, Duration::Seconds(60));
  h.Live(Duration::Seconds(61));
  h.Run(Duration::Millis(200));
  beat = h.Take<Heartbeat>();
  ASSERT_TRUE(beat);
  EXPECT_EQ(beat->phase, "");
  h.Hand(PhaseDone{});
  EXPECT_EQ(h.Take<Heartbeat>()->phase, "");
}

TEST(SessionConnection, TheSaversReportsWaitForTheConnectionAndAreSaidAgainUntilTheyMatterNoMore) {
  SessionHarness h;
  h.StartFirst();
  h.Cut();
  ShardWritten shard;
  shard.key = {Step(4), Generation(1)};
  h.Hand(Report{shard});
  EXPECT_FALSE(h.Take<ShardWritten>());
  for (int again = 0; again < 2; ++again) {
    h.Run(Duration::Millis(1));
    h.Accept();
    h.Greet();
    EXPECT_EQ(h.TakeAll<ShardWritten>().size(), 1U);
    h.Cut();
  }
  h.Run(Duration::Millis(1));
  h.Accept();
  h.Greet();
  h.Forget();
  h.Say(CheckpointAnnounced{shard.key});
  EXPECT_EQ(h.session().last_announced(), shard.key);
  h.Cut();
  h.Run(Duration::Millis(1));
  h.Accept();
  h.Greet();
  EXPECT_FALSE(h.Take<ShardWritten>());
}

TEST(SessionConnection, AFileIsReportedOnlyWithAValidLease) {
  SessionHarness h;
  h.StartFirst();
  h.Pass(Duration::Seconds(60));
  ShardWritten shard;
  shard.key = {Step(4), Generation(1)};
  h.Hand(Report{shard});
  EXPECT_FALSE(h.Take<ShardWritten>());
  const auto beat = h.Take<Heartbeat>();
  ASSERT_TRUE(beat);
  h.Say(Ack{beat->sequence, Duration::Millis(200)});
  EXPECT_TRUE(h.Take<ShardWritten>());
}

TEST(SessionConnection, EndedIsTheEnd) {
  struct Row {
    Ended ended;
    Code code;
  };
  for (const Row& row :
       {Row{{{EndKind::kFinished, Step(9), "done"}, false}, Code::kOk},
        Row{{{EndKind::kFinished, Step(9), "left"}, true}, Code::kOk},
        Row{{{EndKind::kFailed, Step(9), "bad"}, false}, Code::kFailedPrecondition}}) {
    SessionHarness h;
    h.StartFirst();
    h.Say(row.ended);
    EXPECT_EQ(h.next(), Directive::kEnd);
    EXPECT_EQ(h.session().status().code(), row.code);
    EXPECT_EQ(h.session().NextDeadline(), Instant::Never());
  }
}

TEST(SessionConnection, AskedToLeaveBeforeItWasWelcomedItJustEnds) {
  SessionHarness h;
  h.Hand(LeaveWanted{"SIGTERM"});
  EXPECT_EQ(h.next(), Directive::kEnd);
  EXPECT_EQ(h.session().status().code(), Code::kInterrupted);
}

TEST(SessionConnection, LeaveIsSaidAgainAfterAReconnection) {
  SessionHarness h;
  h.StartFirst();
  h.Hand(LeaveWanted{"SIGTERM"});
  EXPECT_TRUE(h.Take<Leave>());
  EXPECT_EQ(h.next(), Directive::kTrain);  // it goes on to the agreed boundary
  h.Cut();
  h.Run(Duration::Millis(1));
  h.Accept();
  h.Greet();
  EXPECT_TRUE(h.Take<Leave>());
}

TEST(SessionConnection, LeaveTellsHowMuchOfItsNoticeIsLeft) {
  SessionHarness h;
  h.StartFirst();
  h.Hand(LeaveWanted{"spot notice", Duration::Seconds(30)});
  EXPECT_EQ(h.Take<Leave>()->within, Duration::Seconds(30));
  h.Cut();
  h.Run(Duration::Seconds(1));
  h.Accept();
  h.Greet();
  const auto again = h.Take<Leave>();
  ASSERT_TRUE(again);
  EXPECT_GT(again->within, Duration::Seconds(28));
  EXPECT_LE(again->within, Duration::Seconds(29));
}

// A device that is lost, or an abort that never ends: nothing of it gets better by waiting.
TEST(SessionConnection, AWorkerThatIsOfNoUseSaysWhyAndEnds) {
  SessionHarness h;
  h.StartFirst();
  h.Hand(Unfit{Internal("GPU 0 is lost")});
  const auto leave = h.Take<Leave>();
  ASSERT_TRUE(leave);
  EXPECT_EQ(leave->reason, "GPU 0 is lost");
  EXPECT_EQ(leave->within, Duration::Millis(1));
  EXPECT_EQ(h.next(), Directive::kEnd);
  EXPECT_EQ(h.session().status().code(), Code::kInternal);
  EXPECT_EQ(h.session().status().message(), "GPU 0 is lost");
  EXPECT_EQ(h.session().NextDeadline(), Instant::Never());
  h.Hand(Unfit{Internal("again")});
  EXPECT_EQ(h.session().status().message(), "GPU 0 is lost");
}

}  // namespace
}  // namespace muster::worker
