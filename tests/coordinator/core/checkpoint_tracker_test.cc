#include "coordinator/core/checkpoint_tracker.h"

#include <gtest/gtest.h>

#include "coordinator/core/durable_state.h"

namespace muster::coordinator {
namespace {

constexpr Instant kSoon = Instant::FromNanos(1'000);

Member Worker(int rank) {
  return {WorkerId(std::string(1, static_cast<char>('a' + rank))), Incarnation(1)};
}

class Tracker : public testing::Test {
 protected:
  Tracker() {
    record_.job = JobName("job");
    record_.lineage = Lineage(9);
    record_.spec.checkpoint_keep = 2;
    record_.spec.tensors = {{"model", DType::kFloat32, {8}, -1},
                            {"moments", DType::kFloat32, {7}, 0}};
    writing_ = Generation4(4);
  }
  GenerationRecord Generation4(std::int64_t number) {
    GenerationRecord writing;
    writing.generation = Generation(number);
    writing.lineage = Lineage(9);
    for (int r = 0; r < 3; ++r) {
      writing.members.push_back({Worker(r), Rank(r), NodeName("n"), "", Rank(-1)});
    }
    return writing;
  }
  CheckpointKey Key(std::int64_t step) { return {Step(step), writing_.generation}; }
  CheckpointTracker::Progress Shard(std::int64_t step, int rank) {
    ShardWritten shard;
    shard.key = Key(step);
    shard.lineage = Lineage(9);
    shard.world_size = 3;
    shard.file = {"r" + std::to_string(rank), 100, 5, Rank(rank)};
    return tracker_.OnShardWritten(record_, writing_, shard, kSoon, &effects_);
  }
  void Complete(std::int64_t step) {
    for (int r = 0; r < 3; ++r) (void)Shard(step, r);
  }
  CheckpointTracker::Progress Manifest(std::int64_t step, Code code = Code::kOk,
                                       std::optional<CheckpointKey> in_use = std::nullopt) {
    return tracker_.OnManifestWritten(record_, {Key(step), 7, code, ""}, in_use, &effects_);
  }
  void Announce(std::int64_t step) {
    Complete(step);
    EXPECT_TRUE(Manifest(step).announced);
  }
  using Removal = CheckpointTracker::Removal;
  Removal Removed(std::int64_t step, bool pinned = false) {
    return tracker_.OnRemoved(record_, {Key(step), pinned}, &effects_);
  }
  // The last durable change.
  CheckpointState LastPut() {
    const auto* put = std::get_if<PutCheckpoint>(&effects_.persist.back());
    EXPECT_NE(put, nullptr);
    return put == nullptr ? CheckpointState::kComplete : put->entry.state;
  }
  void RollBack(std::int64_t generation, std::int64_t step) {
    AddRollback(record_, Generation(generation), Step(step));
  }

  JobRecord record_;
  GenerationRecord writing_;
  CheckpointTracker tracker_{{}};
  Effects effects_;
};

// A worker that was out of touch repeats its report of a checkpoint that has counted, been
// overtaken and removed meanwhile.
TEST_F(Tracker, RemovedOneIsNotSavedAgain) {
  Announce(5);
  Announce(6);
  Announce(7);  // two are kept
  EXPECT_EQ(Removed(5), Removal::kGone);
  for (int r = 0; r < 3; ++r) {
    const auto progress = Shard(5, r);
    EXPECT_FALSE(progress.completed);
    EXPECT_NE(progress.problem, "");
  }
  EXPECT_EQ(tracker_.FateOf(Key(5)), CheckpointTracker::Fate::kUnknown);
}

TEST_F(Tracker, CompleteWithTheLastShardThenManifestThenAnnounced) {
  EXPECT_FALSE(Shard(5, 0).completed);
  EXPECT_FALSE(Shard(5, 2).completed);
  EXPECT_TRUE(effects_.persist.empty());
  EXPECT_EQ(tracker_.ManifestDue(), nullptr);
  EXPECT_EQ(Shard(5, 1).completed, Key(5));
  EXPECT_EQ(LastPut(), CheckpointState::kComplete);
  ASSERT_NE(tracker_.ManifestDue(), nullptr);
  EXPECT_EQ(tracker_.ManifestDue()->bytes, 300);
  EXPECT_EQ(tracker_.ManifestDue()->files.size(), 3U);
  EXPECT_TRUE(tracker_.AnyPending());
  EXPECT_EQ(Manifest(5).announced, Key(5));
  EXPECT_EQ(LastPut(), CheckpointState::kAnnounced);
  EXPECT_FALSE(tracker_.AnyPending());
  EXPECT_EQ(tracker_.entries().at(0).manifest_digest, 7U);
  EXPECT_FALSE(Manifest(5).announced);  // once
}

TEST_F(Tracker, ARepeatedShardCountsOnce) {
  (void)Shard(5, 0);
  (void)Shard(5, 0);
  (void)Shard(5, 0);
  EXPECT_FALSE(tracker_.AnyPending() && tracker_.ManifestDue() != nullptr);
}

TEST_F(Tracker, NonsenseIsRefused) {
  for (const int rank : {-1, 3}) EXPECT_NE(Shard(5, rank).problem, "");
  writing_.members.pop_back();
  EXPECT_NE(Shard(5, 0).problem, "");  // another world size
  writing_ = Generation4(4);
  writing_.lineage = Lineage(8);
  EXPECT_NE(Shard(5, 0).problem, "");
  EXPECT_FALSE(tracker_.AnyPending());
}

// By step alone, shards of two generations would make one checkpoint.
TEST_F(Tracker, TheKeyIsStepAndGeneration) {
  (void)Shard(5, 0);
  (void)Shard(5, 1);
  writing_ = Generation4(6);
  EXPECT_FALSE(Shard(5, 2).completed);
  EXPECT_EQ(tracker_.FateOf({Step(5), Generation(4)}), CheckpointTracker::Fate::kUnderWay);
}

TEST_F(Tracker, VoidAtTheShard) {
  (void)Shard(60, 0);
  RollBack(5, 50);
  EXPECT_NE(Shard(60, 1).problem, "");
}

TEST_F(Tracker, VoidAtTheRollback) {
  (void)Shard(60, 0);
  Announce(50);
  Announce(55);
  RollBack(5, 50);
  const auto given_up = tracker_.MarkVoid(record_, &effects_);
  ASSERT_EQ(given_up.size(), 1U);
  EXPECT_EQ(given_up[0].aborted->key, Key(60));
  EXPECT_EQ(LastPut(), CheckpointState::kVoid);
  EXPECT_EQ(tracker_.FateOf(Key(55)), CheckpointTracker::Fate::kGivenUp);
  EXPECT_EQ(tracker_.FateOf(Key(50)), CheckpointTracker::Fate::kAnnounced);
}

// Files complete but unannounced; then a rollback goes below them; then the manifest arrives.
TEST_F(Tracker, VoidAtTheAnnouncement) {
  Complete(60);
  RollBack(5, 50);
  const auto progress = Manifest(60);
  EXPECT_FALSE(progress.announced);
  EXPECT_NE(progress.problem, "");
  EXPECT_EQ(LastPut(), CheckpointState::kVoid);
}

TEST_F(Tracker, AFailedShardGivesTheSaveUpForAll) {
  (void)Shard(5, 0);
  EXPECT_EQ(
      tracker_.OnShardFailed({Key(5), Rank(1), Code::kResourceExhausted, "disk full"}).aborted->key,
      Key(5));
  EXPECT_FALSE(tracker_.OnShardFailed({Key(5), Rank(2), Code::kInternal, ""}).aborted);
  (void)Shard(5, 2);
  EXPECT_FALSE(tracker_.AnyPending());
  EXPECT_EQ(tracker_.aborted(), 1);
}

TEST_F(Tracker, AFailureCanBeTheFirstReport) {
  EXPECT_TRUE(tracker_.OnShardFailed({Key(5), Rank(1), Code::kResourceExhausted, ""}).aborted);
  EXPECT_FALSE(Shard(5, 0).completed);
  EXPECT_FALSE(tracker_.AnyPending());
}

TEST_F(Tracker, AFailedManifest) {
  Complete(5);
  EXPECT_TRUE(Manifest(5, Code::kResourceExhausted).aborted);
  EXPECT_TRUE(std::holds_alternative<DropCheckpoint>(effects_.persist.back()));
  EXPECT_TRUE(tracker_.entries().empty());
}

TEST_F(Tracker, SilenceEndsASave) {
  (void)Shard(5, 0);
  EXPECT_EQ(tracker_.NextDeadline(), kSoon);
  EXPECT_TRUE(tracker_.OnTime(Instant::FromNanos(999)).empty());
  const auto given_up = tracker_.OnTime(kSoon);
  ASSERT_EQ(given_up.size(), 1U);
  EXPECT_NE(given_up[0].aborted->reason.find("rank 1 (worker b)"), std::string::npos);
  EXPECT_EQ(tracker_.NextDeadline(), Instant::Never());
}

TEST_F(Tracker, AnExpectedSave) {
  tracker_.Expect(record_, Key(5), writing_, kSoon);
  EXPECT_TRUE(tracker_.AnyPending());
  EXPECT_TRUE(tracker_.Owes(Worker(1)));
  EXPECT_TRUE(tracker_.Pending(Key(5), {Rank(0), Rank(1), Rank(2)}));
  EXPECT_FALSE(tracker_.Pending(Key(5), {Rank(0), Rank(2)}));
  (void)Shard(5, 1);
  EXPECT_FALSE(tracker_.Owes(Worker(1)));
  EXPECT_TRUE(tracker_.Pending(Key(5), {Rank(0), Rank(2)}));
  Complete(5);
  EXPECT_TRUE(tracker_.Pending(Key(5), {}));  // the manifest is all that is missing
  EXPECT_TRUE(Manifest(5).announced);
  EXPECT_FALSE(tracker_.Pending(Key(5), {}));
  tracker_.Expect(record_, Key(5), writing_, kSoon);  // made already
  EXPECT_FALSE(tracker_.AnyPending());
}

// One worker has missed that a checkpoint was announced by a coordinator that lost its store: it
// reports its shard again, and the others never will.
TEST_F(Tracker, NobodyOwesASaveThatALaterOneMakesUpFor) {
  (void)Shard(5, 1);
  EXPECT_TRUE(tracker_.Owes(Worker(0)));
  Complete(6);
  EXPECT_FALSE(tracker_.Owes(Worker(0)));
}

TEST_F(Tracker, AVoidCheckpointMakesUpForNothing) {
  Complete(6);
  RollBack(5, 3);
  (void)tracker_.MarkVoid(record_, &effects_);
  writing_ = Generation4(5);
  (void)Shard(4, 1);
  EXPECT_TRUE(tracker_.Owes(Worker(0)));
}

TEST_F(Tracker, AnExpectedSaveThatWasGivenUpIsNotExpected) {
  (void)tracker_.OnShardFailed({Key(5), Rank(1), Code::kInternal, "busy"});
  tracker_.Expect(record_, Key(5), writing_, kSoon);
  EXPECT_FALSE(tracker_.AnyPending());
}

TEST_F(Tracker, ALostWriterEndsItsSaves) {
  (void)Shard(5, 1);
  EXPECT_TRUE(tracker_.GiveUpLost({Worker(0), Worker(2)}).empty());  // its shard is there
  EXPECT_EQ(tracker_.GiveUpLost({Worker(0)}).size(), 1U);
  EXPECT_FALSE(tracker_.AnyPending());
}

TEST_F(Tracker, RetentionCountsAnnouncedOnesAlone) {
  Announce(1);
  Announce(2);
  Complete(3);
  EXPECT_TRUE(tracker_.RemovalsDue(record_, &effects_).empty());  // complete is not announced
  const auto progress = Manifest(3);
  ASSERT_EQ(progress.remove.size(), 1U);
  EXPECT_EQ(progress.remove[0].key, Key(1));
  EXPECT_EQ(Removed(2), Removal::kNotAsked);
  EXPECT_EQ(Removed(1), Removal::kGone);
  EXPECT_TRUE(tracker_.RemovalsDue(record_, &effects_).empty());
  EXPECT_EQ(tracker_.entries().size(), 2U);
}

// Struck ones do not count as kept: else there might be none that loads.
TEST_F(Tracker, RetentionKeepsGoodOnes) {
  Announce(1);
  Announce(2);
  EXPECT_TRUE(tracker_.Strike(record_, Key(2), true, &effects_));
  Complete(3);
  const auto progress = Manifest(3);
  ASSERT_EQ(progress.remove.size(), 1U);
  EXPECT_EQ(progress.remove[0].key, Key(2));
}

// It counts again, is asked for after each announcement, and goes once it is unpinned.
TEST_F(Tracker, APinnedOneStays) {
  Announce(1);
  Announce(2);
  Complete(3);
  ASSERT_EQ(Manifest(3).remove.size(), 1U);
  EXPECT_EQ(Removed(1, true), Removal::kPinned);
  EXPECT_EQ(LastPut(), CheckpointState::kAnnounced);
  EXPECT_EQ(tracker_.FateOf(Key(1)), CheckpointTracker::Fate::kAnnounced);
  EXPECT_TRUE(tracker_.entries().at(0).pinned);
  EXPECT_TRUE(tracker_.RemovalsDue(record_, &effects_).empty());
  EXPECT_EQ(Removed(1, true), Removal::kNotAsked);
  Complete(4);
  const auto progress = Manifest(4);
  ASSERT_EQ(progress.remove.size(), 2U);
  EXPECT_EQ(progress.remove[0].key, Key(1));
  EXPECT_EQ(Removed(1, true), Removal::kStillPinned);
  // It is unpinned, and an order that was given before its pin was reported is carried out now.
  EXPECT_EQ(tracker_.FateOf(Key(1)), CheckpointTracker::Fate::kAnnounced);
  EXPECT_EQ(Removed(1), Removal::kGone);
  EXPECT_EQ(tracker_.FateOf(Key(1)), CheckpointTracker::Fate::kUnknown);
}

// Pinned or not, what a rollback went below does not come back.
TEST_F(Tracker, APinnedOneThatIsVoidStaysVoid) {
  Announce(1);
  Announce(55);
  RollBack(5, 50);
  (void)tracker_.MarkVoid(record_, &effects_);
  writing_ = Generation4(5);
  Complete(51);
  ASSERT_EQ(Manifest(51).remove.size(), 1U);
  DropMootRollbacks(record_, Generation(9));  // long ago
  EXPECT_EQ(tracker_.OnRemoved(record_, {{Step(55), Generation(4)}, true}, &effects_),
            Removal::kPinned);
  EXPECT_EQ(LastPut(), CheckpointState::kVoid);
}

TEST_F(Tracker, APinnedOneThatBecameVoidMeanwhileIsVoid) {
  for (const int step : {52, 53, 54}) Announce(step);
  RollBack(5, 50);
  (void)tracker_.MarkVoid(record_, &effects_);
  DropMootRollbacks(record_, Generation(9));
  EXPECT_EQ(Removed(52, true), Removal::kPinned);
  EXPECT_EQ(LastPut(), CheckpointState::kVoid);
  EXPECT_EQ(tracker_.FateOf(Key(52)), CheckpointTracker::Fate::kGivenUp);
}

TEST_F(Tracker, RetentionSparesTheOneBeingRead) {
  Announce(1);
  Announce(2);
  Complete(3);
  EXPECT_TRUE(Manifest(3, Code::kOk, Key(1)).remove.empty());
}

TEST_F(Tracker, VoidOnesThatWereAnnouncedStayUntilTheNextIs) {
  Announce(5);
  AddRollback(record_, Generation(6), Step(2));
  (void)tracker_.MarkVoid(record_, &effects_);
  EXPECT_TRUE(tracker_.RemovalsDue(record_, &effects_).empty());
  EXPECT_EQ(tracker_.entries().size(), 1U);
}

TEST_F(Tracker, VoidOnesThatWereNeverAnnouncedAreRemoved) {
  Complete(5);
  AddRollback(record_, Generation(6), Step(2));
  (void)tracker_.MarkVoid(record_, &effects_);
  ASSERT_EQ(tracker_.RemovalsDue(record_, &effects_).size(), 1U);
  EXPECT_EQ(LastPut(), CheckpointState::kDeleting);
  EXPECT_EQ(tracker_.FateOf(Key(5)), CheckpointTracker::Fate::kGivenUp);
  EXPECT_EQ(Removed(5), Removal::kGone);
  EXPECT_TRUE(tracker_.entries().empty());
}

TEST_F(Tracker, RemembersABoundedNumberOfRemovals) {
  const auto most = static_cast<std::int64_t>(kMaxRemovals);
  for (std::int64_t step = 1; step <= most + 3; ++step) Complete(step);
  AddRollback(record_, Generation(6), Step());
  (void)tracker_.MarkVoid(record_, &effects_);
  const auto due = tracker_.RemovalsDue(record_, &effects_);
  ASSERT_EQ(due.size(), kMaxRemovals);
  EXPECT_EQ(due.back().key, Key(most + 3));
  EXPECT_EQ(tracker_.entries().size(), kMaxRemovals);
  EXPECT_EQ(std::get<DropCheckpoint>(effects_.persist.back()).key, Key(3));
}

TEST_F(Tracker, ABoundedNumberOfSavesIsUnderWay) {
  const auto most = static_cast<std::int64_t>(kMaxSaves);
  for (std::int64_t step = 1; step <= most; ++step) EXPECT_EQ(Shard(step, 0).problem, "");
  EXPECT_NE(Shard(most + 1, 0).problem.find("too many"), std::string::npos);
  EXPECT_EQ(tracker_.FateOf(Key(most + 1)), CheckpointTracker::Fate::kUnknown);
  EXPECT_EQ(Shard(most, 1).problem, "");
}

// What is swept can never count afterwards; a save that is under way is left alone and does.
TEST_F(Tracker, ASweepLeavesWhatMayStillCount) {
  (void)Shard(5, 0);  // under way
  Announce(6);
  const GenerationRecord before = writing_;
  writing_ = Generation4(6);
  Complete(8);
  const SweepCheckpoints sweep = tracker_.Sweep(Generation(6), Step(9));
  EXPECT_EQ(sweep.generation, Generation(6));
  EXPECT_EQ(sweep.step, Step(9));
  EXPECT_EQ(sweep.known, (std::vector<CheckpointKey>{
                             {Step(6), Generation(4)}, Key(8), {Step(5), Generation(4)}}));
  EXPECT_NE(Shard(7, 0).problem, "");
  tracker_.Expect(record_, Key(7), writing_, kSoon);
  EXPECT_EQ(tracker_.FateOf(Key(7)), CheckpointTracker::Fate::kUnknown);
  EXPECT_EQ(Shard(9, 0).problem, "");
  writing_ = before;
  EXPECT_NE(Shard(9, 0).problem, "");
  (void)Shard(5, 1);
  EXPECT_EQ(Shard(5, 2).completed, Key(5));
  // An order of an earlier point does not take that back.
  EXPECT_TRUE(tracker_.Sweep(Generation(3), Step()).known.empty());
  EXPECT_NE(Shard(9, 0).problem, "");
}

TEST_F(Tracker, FoundOnesCountAsAnnounced) {
  tracker_.TakeUp(record_, {{Key(5), Lineage(3), 2, 7, 99}, {Key(9), Lineage(3), 2, 8, 99}},
                  &effects_);
  ASSERT_EQ(tracker_.entries().size(), 2U);
  EXPECT_EQ(effects_.persist.size(), 2U);
  EXPECT_EQ(tracker_.FateOf(Key(9)), CheckpointTracker::Fate::kAnnounced);
  EXPECT_EQ(tracker_.entries()[1].manifest_digest, 8U);
  EXPECT_EQ(tracker_.entries()[1].record.directory, CheckpointDirectory(Key(9)));
  EXPECT_EQ(tracker_.ManifestDue(), nullptr);
}

TEST_F(Tracker, StrikesAreDurable) {
  Announce(1);
  EXPECT_FALSE(tracker_.Strike(record_, Key(1), false, &effects_));
  EXPECT_EQ(std::get<PutCheckpoint>(effects_.persist.back()).entry.strikes, 1);
  EXPECT_TRUE(tracker_.Strike(record_, Key(1), false, &effects_));
  EXPECT_FALSE(tracker_.Strike(record_, Key(9), true, &effects_));   // unknown
  EXPECT_FALSE(tracker_.Strike(record_, Key(1), false, &effects_));  // counted, and no news
  EXPECT_TRUE(tracker_.Strike(record_, Key(1), true, &effects_));
  // Each rank that meets the damage reports it: that it is out is said and stored once.
  const std::size_t stored = effects_.persist.size();
  EXPECT_FALSE(tracker_.Strike(record_, Key(1), true, &effects_));
  EXPECT_EQ(effects_.persist.size(), stored);
}

}  // namespace
}  // namespace muster::coordinator
