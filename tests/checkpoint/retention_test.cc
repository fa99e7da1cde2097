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

// Nothing of a pinned one is touched, and it goes once the pin is gone.
TEST(RemoveCheckpoint, LeavesAPinnedOneWhole) {
  MemoryDisk disk;
  ASSERT_TRUE(disk.MakeDirectory("/c").ok());
  const State state = MakeState(VariedTensors(), 1);
  const Result<CheckpointRecord> record = Save(disk, "/c", state, Key(1, 1), 3);
  ASSERT_TRUE(record.ok());
  const std::string directory = DirectoryName(Key(1, 1));
  const std::string pin = "/c/" + directory + "/" + std::string(kPinnedName);
  disk.Overwrite(pin, "");
  const std::vector<std::string> names = *disk.List("/c/" + directory);
  const Status refused = RemoveCheckpoint(disk, "/c", directory);
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_NE(refused.message().find("PINNED"), std::string::npos);
  EXPECT_EQ(*disk.List("/c/" + directory), names);
  EXPECT_TRUE(ReadManifest(disk, "/c", directory).ok());
  EXPECT_TRUE(LoadAndCompare(disk, "/c", *record, state, 2).ok());
  ASSERT_TRUE(disk.Unlink(pin).ok());
  EXPECT_TRUE(RemoveCheckpoint(disk, "/c", directory).ok());
  EXPECT_TRUE(disk.List("/c")->empty());
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
