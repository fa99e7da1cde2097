#include "checkpoint/retention.h"

#include <gtest/gtest.h>

#include <vector>

#include "checkpoint/format.h"
#include "checkpoint/memory_index.h"
#include "tests/checkpoint/memory_disk.h"
#include "tests/checkpoint/support.h"

namespace muster::checkpoint {
namespace {

using Phase = CheckpointState;

CheckpointEntry Entry(std::int64_t step, Phase state, std::int64_t generation = 1) {
  CheckpointEntry entry;
  entry.record.job = "job";
  entry.record.key = Key(step, generation);
  entry.record.directory = DirectoryName(entry.record.key);
  entry.state = state;
  return entry;
}

std::vector<std::int64_t> Steps(const std::vector<CheckpointEntry>& entries, std::int64_t keep,
                                const std::vector<CheckpointKey>& pinned = {}) {
  std::vector<std::int64_t> steps;
  for (const CheckpointKey& key : ChooseDeletions(entries, keep, pinned)) {
    steps.push_back(key.step.value());
  }
  return steps;
}

using Chosen = std::vector<std::int64_t>;

TEST(Retention, KeepsTheNewestAnnounced) {
  const std::vector<CheckpointEntry> entries = {
      Entry(10, Phase::kAnnounced), Entry(20, Phase::kAnnounced), Entry(30, Phase::kAnnounced)};
  EXPECT_EQ(Steps(entries, 1), (Chosen{10, 20}));
  EXPECT_EQ(Steps(entries, 2), (Chosen{10}));
  EXPECT_EQ(Steps(entries, 3), Chosen{});
  EXPECT_EQ(Steps(entries, 9), Chosen{});
  EXPECT_EQ(Steps({}, 1), Chosen{});
}

// S02: what is not announced yet neither goes nor lets anything go.
TEST(Retention, WaitsForTheAnnouncement) {
  EXPECT_EQ(Steps({Entry(10, Phase::kAnnounced), Entry(20, Phase::kComplete)}, 1), Chosen{});
  EXPECT_EQ(Steps({Entry(10, Phase::kComplete), Entry(20, Phase::kComplete)}, 1), Chosen{});
}

// S11: the order is that of commits, a rolled-back job's new checkpoint has a lower step.
TEST(Retention, GoesByCommitOrder) {
  const std::vector<CheckpointEntry> entries = {
      Entry(500, Phase::kAnnounced), Entry(600, Phase::kAnnounced), Entry(700, Phase::kAnnounced),
      Entry(100, Phase::kAnnounced, 2)};
  EXPECT_EQ(Steps(entries, 3), (Chosen{500}));
  EXPECT_EQ(Steps(entries, 1), (Chosen{500, 600, 700}));
}

// Void ones do not count as good, so that the last good one stays.
TEST(Retention, BadOnesDoNotPushOutGoodOnes) {
  EXPECT_EQ(Steps({Entry(10, Phase::kAnnounced), Entry(20, Phase::kVoid)}, 1), (Chosen{20}));
  EXPECT_EQ(Steps({Entry(10, Phase::kDeleting), Entry(20, Phase::kAnnounced)}, 5), (Chosen{10}));
}

TEST(Retention, LeavesPinnedOnes) {
  const std::vector<CheckpointEntry> entries = {
      Entry(10, Phase::kAnnounced), Entry(20, Phase::kVoid), Entry(30, Phase::kAnnounced)};
  EXPECT_EQ(Steps(entries, 1, {Key(10, 1)}), (Chosen{20}));
  EXPECT_EQ(Steps(entries, 1, {Key(10, 1), Key(20, 1)}), Chosen{});
  EXPECT_EQ(Steps(entries, 1, {Key(10, 2)}), (Chosen{10, 20}));
}

TEST(RemoveCheckpoint, RemovesEverythingAndMayBeCalledAgain) {
  MemoryDisk disk;
  ASSERT_TRUE(disk.MakeDirectory("/c").ok());
  const State state = MakeState(VariedTensors(), 1);
  ASSERT_TRUE(Save(disk, "/c", state, Key(1, 1), 3).ok());
  ASSERT_TRUE(Save(disk, "/c", state, Key(2, 1), 3).ok());
  EXPECT_TRUE(RemoveCheckpoint(disk, "/c", DirectoryName(Key(1, 1))).ok());
  EXPECT_EQ(*disk.List("/c"), std::vector<std::string>{DirectoryName(Key(2, 1))});
  EXPECT_TRUE(RemoveCheckpoint(disk, "/c", DirectoryName(Key(1, 1))).ok());
  EXPECT_TRUE(RemoveCheckpoint(disk, "/d", DirectoryName(Key(1, 1))).ok());
}

TEST(RemoveCheckpoint, LeavesOtherDirectoriesAlone) {
  MemoryDisk disk;
  ASSERT_TRUE(disk.MakeDirectory("/c").ok());
  ASSERT_TRUE(disk.MakeDirectory("/c/mine").ok());
  for (const char* name : {"mine", "", ".", "..", "../c", "s000000000001-g00000001/.."}) {
    EXPECT_EQ(RemoveCheckpoint(disk, "/c", name).code(), Code::kInvalidArgument) << name;
  }
  EXPECT_EQ(disk.List("/c")->size(), 1U);
}

TEST(MemoryIndex, KeepsCommitOrderAndRecords) {
  MemoryIndex index;
  const JobName job("job");
  EXPECT_TRUE(index.List(job)->empty());
  EXPECT_EQ(index.Get(job, Key(500, 1)).status().code(), Code::kNotFound);
  ASSERT_TRUE(index.Put(Entry(500, Phase::kComplete)).ok());
  ASSERT_TRUE(index.Put(Entry(100, Phase::kComplete, 2)).ok());
  CheckpointEntry other = Entry(700, Phase::kComplete);
  other.record.job = "other";
  ASSERT_TRUE(index.Put(other).ok());

  ASSERT_TRUE(Announce(index, job, Key(500, 1), 77).ok());
  EXPECT_EQ(index.Get(job, Key(500, 1))->state, Phase::kAnnounced);
  EXPECT_EQ(index.Get(job, Key(500, 1))->manifest_digest, 77U);
  EXPECT_EQ(*AddStrike(index, job, Key(500, 1)), 1);
  EXPECT_EQ(*AddStrike(index, job, Key(500, 1)), 2);
  ASSERT_TRUE(SetState(index, job, Key(500, 1), Phase::kVoid).ok());

  const std::vector<CheckpointEntry> entries = *index.List(job);
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(entries[0].record.key, Key(500, 1));
  EXPECT_EQ(entries[0].state, Phase::kVoid);
  EXPECT_EQ(entries[0].strikes, 2);
  EXPECT_EQ(entries[1].record.key, Key(100, 2));

  CheckpointEntry changed = Entry(500, Phase::kAnnounced);
  changed.record.bytes = 1;
  EXPECT_EQ(index.Put(changed).code(), Code::kAlreadyExists);
  EXPECT_EQ(index.Get(job, Key(500, 1))->state, Phase::kVoid);

  EXPECT_TRUE(index.Remove(job, Key(500, 1)).ok());
  EXPECT_TRUE(index.Remove(job, Key(500, 1)).ok());
  EXPECT_EQ(index.List(job)->size(), 1U);
  EXPECT_EQ(index.List(JobName("other"))->size(), 1U);
  EXPECT_EQ(SetState(index, job, Key(500, 1), Phase::kVoid).code(), Code::kNotFound);
  EXPECT_EQ(AddStrike(index, job, Key(500, 1)).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace muster::checkpoint
