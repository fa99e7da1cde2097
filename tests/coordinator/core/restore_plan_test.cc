#include "coordinator/core/restore_plan.h"

#include <gtest/gtest.h>

#include "coordinator/core/durable_state.h"

namespace muster::coordinator {
namespace {

CheckpointEntry Entry(std::int64_t step, std::int64_t generation,
                      CheckpointState state = CheckpointState::kAnnounced, int strikes = 0) {
  CheckpointEntry entry;
  entry.record.key = {Step(step), Generation(generation)};
  entry.record.directory = CheckpointDirectory(entry.record.key);
  entry.manifest_digest = 77;
  entry.state = state;
  entry.strikes = strikes;
  return entry;
}

class RestorePlan : public testing::Test {
 protected:
  RestorePlan() {
    broken_.generation = Generation(4);
    for (int r = 0; r < 3; ++r) {
      broken_.members.push_back(
          {{WorkerId(std::string(1, static_cast<char>('a' + r))), Incarnation(1)},
           Rank(r),
           NodeName("n"),
           "",
           Rank(-1)});
    }
    tensors_ = {{"model", DType::kFloat32, {8}, -1}};
  }
  void Shard(std::int64_t extent) { tensors_.push_back({"adam", DType::kFloat32, {extent}, 0}); }
  RestoreDecision Plan(std::int64_t committed, std::vector<Rank> holders, bool first = false) {
    RestoreView view;
    view.committed = Step(committed);
    view.broken = first ? nullptr : &broken_;
    view.holders = std::move(holders);
    view.tensors = &tensors_;
    view.checkpoints = &checkpoints_;
    view.record = &record_;
    return PlanRestore(view);
  }

  GenerationRecord broken_;
  std::vector<TensorSpec> tensors_;
  std::vector<CheckpointEntry> checkpoints_;
  JobRecord record_;
};

TEST_F(RestorePlan, FirstGeneration) {
  const RestoreDecision got = Plan(0, {}, true);
  EXPECT_EQ(got.reason, RestoreReason::kFirstGeneration);
  EXPECT_EQ(got.restore, Restore{});
  EXPECT_FALSE(got.rollback);
}

TEST_F(RestorePlan, OneHolderOfReplicatedStateIsEnough) {
  checkpoints_ = {Entry(50, 4)};
  const RestoreDecision got = Plan(60, {Rank(2)});
  EXPECT_EQ(got.reason, RestoreReason::kHoldersCoverAll);
  EXPECT_EQ(got.restore.source, RestoreSource::kLive);
  EXPECT_EQ(got.restore.step, Step(60));
  EXPECT_EQ(got.restore.base, Generation(4));
  EXPECT_EQ(got.restore.base_world_size, 3);
  EXPECT_FALSE(got.rollback);
}

TEST_F(RestorePlan, AllHoldersOfShards) {
  Shard(9);
  EXPECT_EQ(Plan(60, {Rank(0), Rank(1), Rank(2)}).reason, RestoreReason::kHoldersCoverAll);
}

TEST_F(RestorePlan, ALostShardGoesBackToTheNewestCheckpoint) {
  Shard(9);
  checkpoints_ = {Entry(0, 1), Entry(50, 4)};
  const RestoreDecision got = Plan(60, {Rank(0), Rank(2)});
  EXPECT_EQ(got.reason, RestoreReason::kShardLost);
  EXPECT_EQ(got.lost, Rank(1));
  EXPECT_EQ(got.restore.source, RestoreSource::kCheckpoint);
  EXPECT_EQ(got.restore.step, Step(50));
  EXPECT_EQ(got.restore.directory, CheckpointDirectory({Step(50), Generation(4)}));
  EXPECT_EQ(got.restore.manifest_digest, 77U);
  EXPECT_TRUE(got.rollback);
  EXPECT_EQ(got.steps_redone, 10);
}

TEST_F(RestorePlan, AnEmptyShardIsNoLoss) {
  Shard(2);  // over 3 ranks: rank 2 holds nothing
  EXPECT_EQ(Plan(60, {Rank(0), Rank(1)}).reason, RestoreReason::kHoldersCoverAll);
  EXPECT_EQ(Plan(60, {Rank(0), Rank(2)}).reason, RestoreReason::kNothingLeft);
}

TEST_F(RestorePlan, NoHolder) {
  checkpoints_ = {Entry(50, 4)};
  const RestoreDecision got = Plan(60, {});
  EXPECT_EQ(got.reason, RestoreReason::kNoHolder);
  EXPECT_EQ(got.restore.step, Step(50));
}

TEST_F(RestorePlan, NothingLeftIsTheInitialState) {
  const RestoreDecision got = Plan(60, {});
  EXPECT_EQ(got.reason, RestoreReason::kNothingLeft);
  EXPECT_EQ(got.restore.source, RestoreSource::kInitial);
  EXPECT_EQ(got.restore.step, Step(0));
  EXPECT_TRUE(got.rollback);
  EXPECT_EQ(got.steps_redone, 60);
}

TEST_F(RestorePlan, CheckpointOfTheCommittedStepLosesNothing) {
  Shard(9);
  checkpoints_ = {Entry(60, 4)};
  const RestoreDecision got = Plan(60, {Rank(0)});
  EXPECT_EQ(got.restore.step, Step(60));
  EXPECT_EQ(got.steps_redone, 0);
}

// Each row would restore from the first entry if one of the tests in NewestUsable were left out.
TEST_F(RestorePlan, OnlyUsableCheckpoints) {
  EXPECT_EQ(NewestUsable({}, record_), nullptr);
  for (const CheckpointEntry& bad :
       {Entry(90, 4, CheckpointState::kComplete), Entry(90, 4, CheckpointState::kVoid),
        Entry(90, 4, CheckpointState::kDeleting),
        Entry(90, 4, CheckpointState::kAnnounced, kCheckpointStrikes),
        Entry(90, 4, CheckpointState::kAnnounced, kDamagedStrikes)}) {
    checkpoints_ = {Entry(50, 4), bad};
    EXPECT_EQ(NewestUsable(checkpoints_, record_), &checkpoints_[0]);
  }
  checkpoints_ = {Entry(50, 4), Entry(90, 4, CheckpointState::kAnnounced, kCheckpointStrikes - 1)};
  EXPECT_EQ(NewestUsable(checkpoints_, record_), &checkpoints_[1]);
}

// Storage that is away makes start after start fail: the job must not begin anew for that.
TEST_F(RestorePlan, QuarantineIsTheLastResortBeforeTheInitialState) {
  const auto entry = [](std::int64_t step, int strikes) {
    return Entry(step, 4, CheckpointState::kAnnounced, strikes);
  };
  checkpoints_ = {entry(50, 3), entry(60, 2), entry(70, kDamagedStrikes)};
  EXPECT_EQ(NewestUsable(checkpoints_, record_), &checkpoints_[1]);
  checkpoints_[1].strikes = 4;
  EXPECT_EQ(NewestUsable(checkpoints_, record_), &checkpoints_[0]);
  checkpoints_ = {entry(50, kDamagedStrikes)};
  EXPECT_EQ(NewestUsable(checkpoints_, record_), nullptr);
}

TEST_F(RestorePlan, VoidCheckpointsStayVoid) {
  AddRollback(record_, Generation(5), Step(50));
  checkpoints_ = {Entry(50, 4), Entry(60, 4)};
  EXPECT_EQ(NewestUsable(checkpoints_, record_), &checkpoints_[0]);
}

// By step alone, the greater step of the older generation would win, although the lineage went on
// from a smaller one.
TEST_F(RestorePlan, TheOrderIsThatOfTheLineage) {
  checkpoints_ = {Entry(80, 4), Entry(60, 5)};
  EXPECT_EQ(NewestUsable(checkpoints_, record_), &checkpoints_[1]);
}

}  // namespace
}  // namespace muster::coordinator
