#include "checkpoint/sweep.h"

#include <gtest/gtest.h>

#include <vector>

#include "checkpoint/format.h"
#include "checkpoint/retention.h"
#include "tests/checkpoint/faulty_file_system.h"
#include "tests/checkpoint/memory_disk.h"
#include "tests/checkpoint/support.h"

namespace muster::checkpoint {
namespace {

using Names = std::vector<std::string>;

class Sweep : public testing::Test {
 protected:
  Sweep() {
    EXPECT_TRUE(disk_.MakeDirectory("/c").ok());
    EXPECT_TRUE(disk_.SyncDirectory("/").ok());
  }
  static std::string Path(const CheckpointKey& key) { return "/c/" + DirectoryName(key); }
  // A save of which a rank is missing.
  void Leave(const CheckpointKey& key) {
    ASSERT_TRUE(disk_.MakeDirectory(Path(key)).ok());
    disk_.Overwrite(Path(key) + "/r00000.safetensors", "zeros");
    disk_.Overwrite(Path(key) + "/r00001-01.safetensors", "zeros");
  }
  SweepReport Run(std::int64_t generation, std::int64_t step, std::vector<CheckpointKey> known = {},
                  Names probes = {}) {
    Result<SweepReport> report = SweepLeftovers(
        disk_, "/c", {Generation(generation), Step(step), std::move(known), std::move(probes)});
    EXPECT_TRUE(report.ok()) << report.status().ToString();
    return report.ok() ? *report : SweepReport();
  }
  Names Left() { return *disk_.List("/c"); }

  MemoryDisk disk_;
};

// S19, and S01: what a dead save left is removed, durably.
TEST_F(Sweep, RemovesWhatDeadSavesLeft) {
  Leave(Key(10, 1));
  Leave(Key(20, 2));
  ASSERT_TRUE(disk_.MakeDirectory(Path(Key(5, 1))).ok());
  const SweepReport report = Run(3, 0);
  EXPECT_EQ(report.directories, 3);
  EXPECT_EQ(report.files, 4);
  EXPECT_EQ(Left(), Names{});
  disk_.LosePower();
  EXPECT_EQ(Left(), Names{});
}

// What is not stale may be live: a later step of the generation, a later generation.
TEST_F(Sweep, LeavesLiveSavesAlone) {
  for (const CheckpointKey& key : {Key(10, 3), Key(11, 3), Key(12, 3), Key(1, 4)}) Leave(key);
  (void)Run(3, 11);
  EXPECT_EQ(Left(), (Names{DirectoryName(Key(1, 4)), DirectoryName(Key(11, 3)),
                           DirectoryName(Key(12, 3))}));
  (void)Run(4, 9, {Key(12, 3)});  // a slow rank of the generation before is still writing
  EXPECT_EQ(Left(), Names{DirectoryName(Key(12, 3))});
}

TEST_F(Sweep, LeavesForeignOnesAlone) {
  for (const char* name : {"notes", "s10-g1", "s000000000010-g00000001.bak", "lost+found"}) {
    ASSERT_TRUE(disk_.MakeDirectory(std::string("/c/") + name).ok());
  }
  disk_.Overwrite("/c/manifest.json", "mine");
  for (std::int64_t step = 1; step <= 4; ++step) Leave(Key(step, 1));
  disk_.Overwrite(Path(Key(1, 1)) + "/notes.txt", "mine");
  ASSERT_TRUE(disk_.MakeDirectory(Path(Key(2, 1)) + "/mine").ok());
  disk_.Overwrite(Path(Key(3, 1)) + "/" + std::string(kPinnedName), "");
  disk_.Overwrite(Path(Key(4, 1)) + "/r0.safetensors", "mine");
  const Names before = Left();
  const SweepReport report = Run(9, 0);
  EXPECT_EQ(report.files, 0);
  EXPECT_EQ(Left(), before);
  EXPECT_EQ(disk_.List(Path(Key(1, 1)))->size(), 3U);
}

// L26: files that the manifest does not name go, the checkpoint stays.
TEST_F(Sweep, CleansUpInsideOfAnnouncedOnes) {
  const State state = MakeState(VariedTensors(), 1);
  const Result<CheckpointRecord> record = Save(disk_, "/c", state, Key(7, 1), 3);
  ASSERT_TRUE(record.ok());
  const Names whole = *disk_.List(Path(Key(7, 1)));
  const auto litter = [&] {
    disk_.Overwrite(Path(Key(7, 1)) + "/r00001-01.safetensors", "an attempt");
    disk_.Overwrite(Path(Key(7, 1)) + "/manifest.json.03.tmp", "{");
    disk_.Overwrite(Path(Key(7, 1)) + "/notes.txt", "mine");
  };
  litter();
  EXPECT_EQ(Run(1, 7).files, 0);  // not stale yet
  EXPECT_EQ(Run(2, 0, {Key(7, 1)}).files, 2);
  ASSERT_TRUE(disk_.Unlink(Path(Key(7, 1)) + "/notes.txt").ok());
  EXPECT_EQ(*disk_.List(Path(Key(7, 1))), whole);
  EXPECT_TRUE(LoadAndCompare(disk_, "/c", *record, state, 2).ok());
  // A manifest that is not whole names nothing for certain.
  litter();
  disk_.Overwrite(Path(Key(7, 1)) + "/manifest.json", "{}");
  EXPECT_EQ(Run(2, 0).files, 1);  // the temporary one alone
  EXPECT_EQ(disk_.List(Path(Key(7, 1)))->size(), whole.size() + 2);
}

TEST_F(Sweep, TakesProbesThatItHasSeenBefore) {
  disk_.Overwrite("/c/.muster-probe-00", "muster");
  const SweepReport first = Run(1, 0);
  EXPECT_EQ(first.probes, Names{".muster-probe-00"});
  disk_.Overwrite("/c/.muster-probe-01", "");
  const SweepReport second = Run(1, 0, {}, first.probes);
  EXPECT_EQ(second.probes, Names{".muster-probe-01"});
  EXPECT_EQ(Left(), Names{".muster-probe-01"});
}

// S10: a sweep that fails or is cut off at any call is done by the next one, and never touches what
// counts.
TEST_F(Sweep, MayFailAtAnyCall) {
  const State state = MakeState(VariedTensors(), 1);
  const Result<CheckpointRecord> record = Save(disk_, "/c", state, Key(7, 1), 2);
  ASSERT_TRUE(record.ok());
  const SweepRule rule{Generation(2), Step(), {Key(7, 1)}, {}};
  using Fault = FaultyFileSystem::Fault;
  for (const Fault fault : {Fault::kFail, Fault::kStop}) {
    bool all = false;
    for (std::int64_t call = 1; !all; ++call) {
      ASSERT_LT(call, 100);
      Leave(Key(8, 1));
      FaultyFileSystem faulty(disk_);
      faulty.Set(fault, call, Unavailable("input/output error"));
      all = SweepLeftovers(faulty, "/c", rule).ok();
      EXPECT_TRUE(SweepLeftovers(disk_, "/c", rule).ok());
      EXPECT_EQ(Left(), Names{DirectoryName(Key(7, 1))}) << "call " << call;
      EXPECT_TRUE(LoadAndCompare(disk_, "/c", *record, state, 3).ok());
    }
  }
}

}  // namespace
}  // namespace muster::checkpoint
