// Boundaries: agreed stops, checkpoints, the end.
#include <gtest/gtest.h>

#include "tests/worker/core/session_harness.h"

namespace muster::worker {
namespace {

constexpr Wishes kReform{.checkpoint = false, .reform = true};
constexpr Wishes kCheckpoint{.checkpoint = true, .reform = false};

JobSpec Sharded() {
  JobSpec spec = SpecOf();
  spec.checkpoint_directory = "/ckpt";
  spec.checkpoint_every = 10;
  TensorSpec moments;
  moments.name = "adam.m";
  moments.shape = {8};
  moments.cut_dimension = 0;
  spec.tensors.push_back(moments);
  return spec;
}

// Rule 6.
// Said after the hello and before the welcome it is in neither: the members would wait for ever.
TEST(SessionBoundary, WhatIsSaidWhileGreetingIsSaidAgainAtTheWelcome) {
  SessionHarness h;
  h.StartFirst();
  h.Cut();
  h.Run(Duration::Millis(1));
  h.Accept();
  ASSERT_TRUE(h.Take<Hello>());
  Wishes agreed;
  agreed.reform = true;
  h.TakeStep(1, agreed);
  EXPECT_FALSE(h.Take<Stopped>());
  h.Greet();
  const auto stopped = h.Take<Stopped>();
  ASSERT_TRUE(stopped);
  EXPECT_EQ(stopped->step, Step(1));

  SessionHarness fresh;
  fresh.Accept();
  fresh.Hand(AtBoundary{});
  EXPECT_FALSE(fresh.Take<Able>());
  fresh.Greet();
  EXPECT_TRUE(fresh.Take<Able>());
}

TEST(SessionBoundary, StoppedAsAgreedItGoesOnWhenTheCoordinatorCannotBeReached) {
  SessionHarness h;
  h.StartFirst();
  h.TakeStep(1, kReform);
  EXPECT_EQ(h.next(), Directive::kWait);
  h.Cut();
  for (int i = 0; i < 30; ++i) {
    h.Run(Duration::Millis(100));
    if (h.dialing()) h.RefuseDial();
  }
  EXPECT_EQ(h.next(), Directive::kTrain);
  h.TakeStep(2);
  h.TakeStep(3);
  EXPECT_EQ(h.session().committed(), Step(3));
}

// Rule 6: only without an interrupt.
TEST(SessionBoundary, OnceInterruptedItStaysWhereItIs) {
  SessionHarness h;
  h.StartFirst();
  h.TakeStep(1, kReform);
  h.SayInterrupt(2, Cause::kGrowth);
  h.FinishAbort();
  h.Cut();
  for (int i = 0; i < 50; ++i) {
    h.Run(Duration::Millis(100));
    if (h.dialing()) h.RefuseDial();
  }
  EXPECT_EQ(h.next(), Directive::kWait);
}

TEST(SessionBoundary, WhileTheCoordinatorAnswersItWaitsForItsWord) {
  SessionHarness h;
  h.StartFirst();
  h.TakeStep(1, kReform);
  h.Live(Duration::Seconds(20));
  EXPECT_EQ(h.next(), Directive::kWait);
}

TEST(SessionBoundary, WishesOfTheCoordinatorGoIntoTheVoteUntilAgreed) {
  SessionHarness h;
  h.StartFirst();
  h.Say(Wish{Generation(9), kReform});  // of another generation
  EXPECT_FALSE(h.session().WishesFor(Step(1)).reform);
  h.Say(Wish{Generation(1), kReform});
  EXPECT_TRUE(h.session().WishesFor(Step(1)).reform);
  h.TakeStep(1);  // a vote in which it was missing
  EXPECT_TRUE(h.session().WishesFor(Step(2)).reform);
  h.TakeStep(2, kReform);
  EXPECT_FALSE(h.session().WishesFor(Step(3)).reform);
}

TEST(SessionBoundary, ThePolicyWishesForCheckpoints) {
  SessionHarness h(Sharded());
  for (const std::int64_t step : {10, 20, 100}) {
    EXPECT_TRUE(h.session().WishesFor(Step(step)).checkpoint) << step;
  }
  for (const std::int64_t step : {1, 9, 11, 99}) {
    EXPECT_FALSE(h.session().WishesFor(Step(step)).checkpoint) << step;
  }
  JobSpec uneven = Sharded();
  uneven.steps = 95;  // the last step counts too
  EXPECT_TRUE(SessionHarness(uneven).session().WishesFor(Step(95)).checkpoint);
  EXPECT_FALSE(SessionHarness().session().WishesFor(Step(10)).checkpoint);
}

TEST(SessionBoundary, AnAgreedCheckpointIsDueAtTheBoundaryAndComesBeforeTheStop) {
  SessionHarness h;
  h.StartFirst();
  h.OpenStep();
  h.PrepareStep(1);
  h.Hand(VoteDone{Step(1), {.checkpoint = true, .reform = true}});
  h.Hand(OutcomeTaken{});
  EXPECT_FALSE(h.session().snapshot_due());  // the loop is still applying
  h.Hand(AtBoundary{});
  EXPECT_EQ(h.session().snapshot_due(), (CheckpointKey{Step(1), Generation(1)}));
  EXPECT_TRUE(h.session().snapshot_needed());  // what leaves may be in no other place
  EXPECT_FALSE(h.Take<Stopped>());
  h.Hand(SnapshotTaken{});
  EXPECT_FALSE(h.session().snapshot_due());
  EXPECT_TRUE(h.Take<Stopped>());
}

TEST(SessionBoundary, AnInterruptDoesNotCancelAnAgreedCheckpoint) {
  SessionHarness h;
  h.StartFirst();
  h.OpenStep();
  h.PrepareStep(1);
  h.Hand(VoteDone{Step(1), kCheckpoint});
  h.Hand(OutcomeTaken{});
  h.SayInterrupt(2, Cause::kGrowth);
  h.FinishAbort();
  h.Hand(AtBoundary{});
  EXPECT_EQ(h.session().snapshot_due(), (CheckpointKey{Step(1), Generation(1)}));
}

TEST(SessionBoundary, ARollbackDoes) {
  SessionHarness h;
  h.StartFirst();
  h.OpenStep();
  h.PrepareStep(1);
  h.Hand(VoteDone{Step(1), kCheckpoint});
  h.Hand(OutcomeTaken{});
  h.SayInterrupt(2);
  h.FinishAbort();
  h.Say(Assign{h.RecordOf(2, 0, 2, 0, RestoreSource::kCheckpoint)});
  h.Hand(AtBoundary{});
  EXPECT_FALSE(h.session().snapshot_due());
}

TEST(SessionBoundary, ShardedStateIsSavedBeforeTheFirstStep) {
  SessionHarness h(Sharded());
  h.StartFirst();
  const CheckpointKey key{Step(0), Generation(1)};
  EXPECT_EQ(h.session().snapshot_due(), key);
  EXPECT_TRUE(h.session().snapshot_needed());
  h.Hand(SnapshotTaken{});
  EXPECT_EQ(h.next(), Directive::kWait);
  h.Say(CheckpointAnnounced{{Step(0), Generation(7)}});
  EXPECT_EQ(h.next(), Directive::kWait);
  h.Say(CheckpointAnnounced{key});
  EXPECT_EQ(h.next(), Directive::kTrain);
}

TEST(SessionBoundary, WithoutAFirstCheckpointShardedStateDoesNotTrain) {
  SessionHarness h(Sharded());
  h.StartFirst();
  h.Hand(SnapshotTaken{});
  h.Say(CheckpointAborted{{Step(0), Generation(1)}, "No space left on device"});
  EXPECT_EQ(h.next(), Directive::kEnd);
  EXPECT_NE(h.session().status().message().find("/ckpt"), std::string::npos);
  EXPECT_NE(h.session().status().message().find("No space left"), std::string::npos);
}

TEST(SessionBoundary, AnAbortedCheckpointLaterIsOnlyAnnounced) {
  SessionHarness h;
  h.StartFirst();
  h.Say(CheckpointAborted{{Step(4), Generation(1)}, "busy"});
  EXPECT_EQ(h.next(), Directive::kTrain);
  EXPECT_EQ(h.session().last_aborted(), (CheckpointKey{Step(4), Generation(1)}));
}

TEST(SessionBoundary, TheSaverGetsManifestsRemovalsAndSweeps) {
  SessionHarness h;
  h.StartFirst();
  h.Say(WriteManifest{});
  h.Say(RemoveCheckpoint{{Step(1), Generation(1)}, "s1"});
  EXPECT_EQ(h.manifests.size(), 1U);
  EXPECT_EQ(h.removals.size(), 1U);
  h.Say(SweepCheckpoints{Generation(1), Step(3), {}});
  EXPECT_EQ(h.sweeps.size(), 1U);
}

// Rule 10.
TEST(SessionBoundary, AfterTheLastStepItWaitsForTheDurableEnd) {
  SessionHarness h(SpecOf(2));
  h.StartFirst();
  h.TakeStep(1);
  h.TakeStep(2);
  EXPECT_EQ(h.next(), Directive::kFinish);
  h.Hand(StepsDone{});
  EXPECT_EQ(h.Take<Finished>()->step, Step(2));
  EXPECT_EQ(h.next(), Directive::kWait);
  h.Cut();
  h.Run(Duration::Millis(1));
  h.Accept();
  h.Greet();
  EXPECT_TRUE(h.Take<Finished>());
  // A failure at the very end: the others form again, and it is asked once more.
  h.Form(h.RecordOf(2, 0, 1, 2));
  EXPECT_EQ(h.next(), Directive::kFinish);
  h.Hand(StepsDone{});
  h.Say(Ended{{EndKind::kFinished, Step(2), "all steps are done"}, false});
  EXPECT_EQ(h.next(), Directive::kEnd);
  EXPECT_TRUE(h.session().status().ok());
}

TEST(SessionBoundary, SkipsAreCountedUntilAStepIsApplied) {
  SessionHarness h;
  h.StartFirst();
  const auto skip = [&](std::int64_t step) {
    h.OpenStep();
    h.PrepareStep(step, Outcome::kSkip);
    h.Hand(VoteDone{Step(step), {}});
    EXPECT_EQ(h.decided(), Outcome::kSkip);
    h.Hand(OutcomeTaken{});
    h.Hand(AtBoundary{});
  };
  skip(1);
  // The first commit of a generation is told at once.
  auto beat = h.Take<Heartbeat>();
  ASSERT_TRUE(beat);
  EXPECT_EQ(beat->committed, Step(1));
  EXPECT_EQ(beat->skips, 1);
  skip(2);
  h.Run(Duration::Millis(200));
  EXPECT_EQ(h.Take<Heartbeat>()->skips, 2);
  h.TakeStep(3);
  h.Run(Duration::Millis(200));
  EXPECT_EQ(h.Take<Heartbeat>()->skips, 0);
}

TEST(SessionBoundary, AStepThatTheLoopGaveUpIsVoid) {
  SessionHarness h;
  h.StartFirst();
  h.OpenStep();
  h.Hand(AtBoundary{});
  EXPECT_EQ(h.decided(), Outcome::kVoid);
  EXPECT_EQ(h.session().committed(), Step(0));
}

}  // namespace
}  // namespace muster::worker
