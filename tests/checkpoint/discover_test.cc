#include "checkpoint/discover.h"

#include <gtest/gtest.h>

#include <vector>

#include "checkpoint/digest.h"
#include "checkpoint/format.h"
#include "protocol/ids.h"
#include "protocol/limits.h"
#include "tests/checkpoint/memory_disk.h"
#include "tests/checkpoint/support.h"

namespace muster::checkpoint {
namespace {

class Discover : public testing::Test {
 protected:
  Discover() { EXPECT_TRUE(disk_.MakeDirectory("/c").ok()); }
  void Put(const CheckpointKey& key) {
    const Result<CheckpointRecord> record = Save(disk_, "/c", state_, key, 2);
    ASSERT_TRUE(record.ok());
    job_ = JobName(record->job);
  }
  std::optional<Found> Run(const JobName& job) {
    Result<std::optional<Found>> found = DiscoverCheckpoints(disk_, "/c", job);
    EXPECT_TRUE(found.ok()) << found.status().ToString();
    return found.ok() ? *found : std::nullopt;
  }
  static std::vector<CheckpointKey> KeysOf(const Found& found) {
    std::vector<CheckpointKey> keys;
    for (const FoundCheckpoint& one : found.checkpoints) keys.push_back(one.key);
    return keys;
  }
  std::string Manifest(const CheckpointKey& key) {
    return "/c/" + DirectoryName(key) + "/manifest.json";
  }

  MemoryDisk disk_;
  State state_ = MakeState(VariedTensors(), 1);
  JobName job_;
};

TEST_F(Discover, NothingInAnEmptyDirectory) {
  EXPECT_FALSE(Run(JobName("job")));
  ASSERT_TRUE(disk_.MakeDirectory("/c/notes").ok());
  EXPECT_FALSE(Run(JobName("job")));
  EXPECT_FALSE(DiscoverCheckpoints(disk_, "/gone", JobName("job")).ok());
}

// By (generation, step): after a rollback the later one has a lower step. L11: what is damaged, not
// finished or of another job is passed over, but its number is not used again.
TEST_F(Discover, TheWholeOnesInTheirOrder) {
  for (const CheckpointKey& key : {Key(60, 4), Key(50, 4), Key(55, 5), Key(70, 5)}) Put(key);
  disk_.Overwrite(Manifest(Key(70, 5)), *ReadWhole(disk_, Manifest(Key(70, 5)), 1 << 20) + " ");
  ASSERT_TRUE(disk_.MakeDirectory("/c/" + DirectoryName(Key(1, 9))).ok());
  const std::optional<Found> found = Run(job_);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->highest, Generation(9));
  EXPECT_EQ(KeysOf(*found), (std::vector<CheckpointKey>{Key(50, 4), Key(60, 4), Key(55, 5)}));
  EXPECT_EQ(found->checkpoints[0].world_size, 2);
  EXPECT_EQ(found->checkpoints[0].manifest_digest,
            ReadManifest(disk_, "/c", DirectoryName(Key(50, 4)))->digest);
  const std::optional<Found> other = Run(JobName("other"));
  ASSERT_TRUE(other);
  EXPECT_TRUE(other->checkpoints.empty());
  EXPECT_EQ(other->highest, Generation(9));
}

TEST_F(Discover, ABoundedNumberOfTheNewest) {
  const auto most = static_cast<std::int64_t>(kMaxFound);
  for (std::int64_t step = 1; step <= most + 3; ++step) Put(Key(step, 1));
  const std::optional<Found> found = Run(job_);
  ASSERT_TRUE(found);
  ASSERT_EQ(found->checkpoints.size(), kMaxFound);
  EXPECT_EQ(found->checkpoints.front().key, Key(4, 1));
  EXPECT_EQ(found->checkpoints.back().key, Key(most + 3, 1));
}

// A manifest of another version of the format is in the way only when nothing newer can be read,
// and a directory with a number that no coordinator gives is not counted.
TEST_F(Discover, WhatCannotBeRead) {
  for (const CheckpointKey& key : {Key(10, 1), Key(20, 1)}) Put(key);
  ASSERT_TRUE(disk_.MakeDirectory("/c/s000000000001-g9999999999999999").ok());
  std::string other = R"({"muster_manifest":99,"checkpoint":{},"digest":")";
  other += ToHex(DigestOf(other)) + "\"}\n";
  disk_.Overwrite(Manifest(Key(10, 1)), other);
  const std::optional<Found> found = Run(job_);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->highest, Generation(1));
  EXPECT_EQ(KeysOf(*found), std::vector<CheckpointKey>{Key(20, 1)});
  disk_.Overwrite(Manifest(Key(20, 1)), other);
  EXPECT_EQ(DiscoverCheckpoints(disk_, "/c", job_).status().code(), Code::kFailedPrecondition);
}

}  // namespace
}  // namespace muster::checkpoint
