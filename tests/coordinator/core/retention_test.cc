#include "coordinator/core/retention.h"

#include <gtest/gtest.h>

#include "coordinator/core/durable_state.h"

namespace muster::coordinator {
namespace {

using Phase = CheckpointState;
using Steps = std::vector<std::int64_t>;

CheckpointEntry Entry(std::int64_t step, Phase state = Phase::kAnnounced, int generation = 1) {
  CheckpointEntry entry;
  entry.record.key = {Step(step), Generation(generation)};
  entry.state = state;
  return entry;
}
CheckpointEntry Pinned(std::int64_t step) {
  CheckpointEntry entry = Entry(step);
  entry.pinned = true;
  return entry;
}
CheckpointEntry Struck(std::int64_t step) {
  CheckpointEntry entry = Entry(step);
  entry.strikes = kCheckpointStrikes;
  return entry;
}

// The steps that go, when `keep` are to stay.
Steps Chosen(const std::vector<CheckpointEntry>& entries, std::int32_t keep,
             std::int64_t keep_every = 0, std::optional<CheckpointKey> in_use = std::nullopt) {
  JobRecord record;
  record.spec.checkpoint_keep = keep;
  record.spec.checkpoint_keep_every = keep_every;
  Steps steps;
  for (const CheckpointKey& key : ChooseRemovals(record, entries, in_use)) {
    steps.push_back(key.step.value());
  }
  return steps;
}

TEST(Retention, KeepsTheNewestAnnounced) {
  const std::vector<CheckpointEntry> entries = {Entry(10), Entry(20), Entry(30)};
  EXPECT_EQ(Chosen(entries, 1), (Steps{10, 20}));
  EXPECT_EQ(Chosen(entries, 2), (Steps{10}));
  EXPECT_EQ(Chosen(entries, 3), Steps{});
  EXPECT_EQ(Chosen(entries, 9), Steps{});
  EXPECT_EQ(Chosen({}, 1), Steps{});
}

// S02: what is not announced yet neither goes nor lets anything go.
TEST(Retention, WaitsForTheAnnouncement) {
  EXPECT_EQ(Chosen({Entry(10), Entry(20, Phase::kComplete)}, 1), Steps{});
  EXPECT_EQ(Chosen({Entry(10, Phase::kComplete), Entry(20, Phase::kComplete)}, 1), Steps{});
}

// S11: the order is that of commits, a rolled-back job's new checkpoint has a lower step. 500 is
// pinned as the best one, 700 turned out damaged.
TEST(Retention, GoesByCommitOrder) {
  EXPECT_EQ(Chosen({Entry(500), Entry(600), Entry(700), Entry(100, Phase::kAnnounced, 2)}, 3),
            (Steps{500}));
  EXPECT_EQ(Chosen({Entry(500), Entry(600), Entry(700), Entry(100, Phase::kAnnounced, 2)}, 1),
            (Steps{500, 600, 700}));
  EXPECT_EQ(Chosen({Pinned(500), Entry(600), Struck(700), Entry(100, Phase::kAnnounced, 2)}, 3),
            (Steps{700}));
}

// What is void or struck out does not count as good, so that the last good one stays.
TEST(Retention, BadOnesDoNotPushOutGoodOnes) {
  EXPECT_EQ(Chosen({Entry(10), Entry(20, Phase::kVoid)}, 1), (Steps{20}));
  EXPECT_EQ(Chosen({Entry(10), Struck(20), Struck(30)}, 1), (Steps{20, 30}));
  EXPECT_EQ(Chosen({Entry(10, Phase::kDeleting), Entry(20)}, 5), (Steps{10}));
  JobRecord record;
  record.spec.checkpoint_keep = 1;
  AddRollback(record, Generation(2), Step(10));  // not marked yet
  EXPECT_EQ(ChooseRemovals(record, {Entry(10), Entry(20)}, std::nullopt),
            (std::vector<CheckpointKey>{{Step(20), Generation(1)}}));
}

TEST(Retention, SparesTheOneBeingRead) {
  const std::vector<CheckpointEntry> entries = {Entry(10), Entry(20, Phase::kVoid), Entry(30)};
  EXPECT_EQ(Chosen(entries, 1, 0, CheckpointKey{Step(10), Generation(1)}), (Steps{20}));
  EXPECT_EQ(Chosen(entries, 1, 0, CheckpointKey{Step(10), Generation(2)}), (Steps{10, 20}));
}

TEST(Retention, KeepsEachMthForGood) {
  const std::vector<CheckpointEntry> entries = {Entry(0),  Entry(10), Entry(20),
                                                Entry(30), Entry(40), Entry(50)};
  EXPECT_EQ(Chosen(entries, 1, 20), (Steps{0, 10, 30}));  // the initial state is no milestone
  EXPECT_EQ(Chosen(entries, 2, 50), (Steps{0, 10, 20, 30}));
  // Only good ones do.
  EXPECT_EQ(Chosen({Entry(20, Phase::kVoid), Struck(40), Entry(45)}, 1, 20), (Steps{20, 40}));
}

TEST(Retention, PinnedOnesDoNotCount) {
  // Asked for all the same, for it may be unpinned by now.
  EXPECT_EQ(Chosen({Pinned(10), Entry(20), Entry(30)}, 1), (Steps{10, 20}));
  EXPECT_EQ(Chosen({Entry(10), Pinned(20), Entry(30)}, 2), Steps{});
  // Not while it is one of the last good ones: were it gone, there would be too few.
  EXPECT_EQ(Chosen({Pinned(10), Struck(20), Entry(30)}, 2), (Steps{20}));
}

}  // namespace
}  // namespace muster::coordinator
