// Every call to the file system is a place to fail, to die, or to lose power.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/format.h"
#include "checkpoint/posix_file_system.h"
#include "checkpoint/reader.h"
#include "checkpoint/retention.h"
#include "checkpoint/writer.h"
#include "tests/checkpoint/faulty_file_system.h"
#include "tests/checkpoint/memory_disk.h"
#include "tests/checkpoint/support.h"

namespace muster::checkpoint {
namespace {

using Fault = FaultyFileSystem::Fault;

constexpr std::int32_t kWorldSize = 2;
const CheckpointKey kOld = Key(10, 1);
const CheckpointKey kNew = Key(20, 1);

State OldState() {
  return MakeState({{"a", DType::kFloat32, {5, 3}, 0}, {"step", DType::kI64, {}, -1}}, 1);
}
State NewState() {
  return MakeState({{"a", DType::kFloat32, {5, 3}, 0}, {"step", DType::kI64, {}, -1}}, 2);
}

// Loads by manifest alone, as after a move of the directory; kNotFound when there is none.
Status LoadByManifest(FileSystem& fs, const std::string& root, const CheckpointKey& key,
                      const State& state) {
  const Result<Manifest> manifest = ReadManifest(fs, root, DirectoryName(key));
  if (!manifest.ok()) return manifest.status();
  return LoadAndCompare(fs, root, manifest->record, state, 3);
}

// What must hold on the disk after anything: the old checkpoint loads; the new one loads if its
// manifest was acknowledged, and whenever there is a manifest at all (S07).
void ExpectSound(FileSystem& fs, const std::string& root, bool acknowledged,
                 const std::string& when) {
  const Status old = LoadByManifest(fs, root, kOld, OldState());
  EXPECT_TRUE(old.ok()) << when << ": " << old.ToString();
  const Status recent = LoadByManifest(fs, root, kNew, NewState());
  if (acknowledged || recent.code() != Code::kNotFound) {
    EXPECT_TRUE(recent.ok()) << when << ": " << recent.ToString();
  }
}

// A disk with the old checkpoint on it.
std::unique_ptr<MemoryDisk> DiskWithOld() {
  auto disk = std::make_unique<MemoryDisk>();
  EXPECT_TRUE(CheckRoot(*disk, "/c").ok());
  EXPECT_TRUE(Save(*disk, "/c", OldState(), kOld, kWorldSize).ok());
  return disk;
}

// How many calls `action` makes when nothing fails.
std::int64_t CountCalls(const std::function<Status(FileSystem&)>& action) {
  const auto disk = DiskWithOld();
  FaultyFileSystem faulty(*disk);
  EXPECT_TRUE(action(faulty).ok());
  return faulty.calls();
}

Status SaveNew(FileSystem& fs) { return Save(fs, "/c", NewState(), kNew, kWorldSize).status(); }

// S01, S03: an error in any call makes the save fail, with that error, and leaves nothing that
// hinders the next one. The disk is full, breaks, or takes half of a write.
TEST(Crash, FailAtEveryCall) {
  const std::int64_t calls = CountCalls(SaveNew);
  ASSERT_GT(calls, 20);
  for (const Fault fault : {Fault::kFail, Fault::kFailTorn}) {
    for (const Code code : {Code::kResourceExhausted, Code::kInternal, Code::kPermissionDenied}) {
      for (std::int64_t k = 1; k <= calls; ++k) {
        const std::string when = "call " + std::to_string(k);
        const auto disk = DiskWithOld();
        FaultyFileSystem faulty(*disk);
        faulty.Set(fault, k, Status(code, "injected"));
        const Status status = SaveNew(faulty);
        EXPECT_EQ(status.code(), code) << when;
        ExpectSound(*disk, "/c", false, when);
        // The same save again, in the same generation, succeeds and leaves its files alone.
        EXPECT_TRUE(SaveNew(*disk).ok()) << when;
        ExpectSound(*disk, "/c", true, when + ", again");
      }
    }
  }
}

// A failed save of one shard leaves no file behind (S19), as far as the disk still works.
TEST(Crash, FailedShardsLeaveNothing) {
  const AlignedBuffer data = ShardData(NewState(), Rank(0), kWorldSize);
  const auto write = [&](FileSystem& fs) {
    return WriteAlone(fs, "/c", PlanOf(NewState(), kNew, Rank(0), kWorldSize), data).status();
  };
  const std::int64_t calls = CountCalls(write);
  for (std::int64_t k = 1; k <= calls; ++k) {
    const auto disk = DiskWithOld();
    FaultyFileSystem faulty(*disk);
    faulty.Set(Fault::kFailTorn, k, Internal("injected"));
    EXPECT_FALSE(write(faulty).ok());
    const Result<std::vector<std::string>> names = disk->List("/c/" + DirectoryName(kNew));
    if (!names.ok()) continue;
    EXPECT_TRUE(names->empty()) << "call " << k << " left " << names->front();
  }
}

// S01: killed at any call, also in the middle of a write.
TEST(Crash, StopAtEveryCall) {
  const std::int64_t calls = CountCalls(SaveNew);
  for (const Fault fault : {Fault::kStop, Fault::kStopTorn}) {
    for (std::int64_t k = 1; k <= calls; ++k) {
      const std::string when = "call " + std::to_string(k);
      const auto disk = DiskWithOld();
      FaultyFileSystem faulty(*disk);
      faulty.Set(fault, k, Internal("killed"));
      EXPECT_FALSE(SaveNew(faulty).ok());
      ExpectSound(*disk, "/c", false, when);
      EXPECT_TRUE(SaveNew(*disk).ok()) << when;
      ExpectSound(*disk, "/c", true, when + ", again");
      EXPECT_TRUE(RemoveCheckpoint(*disk, "/c", DirectoryName(kNew)).ok()) << when;
      EXPECT_EQ(disk->List("/c")->size(), 1U) << when;
    }
  }
}

// S07: the power goes at any call, and any part of what was not synced is lost with it. Returns how
// often the disk was found unsound, for the sake of the test below.
int PowerCuts(MemoryDisk::Lies lies, int rounds, const std::function<Status(FileSystem&)>& action,
              const std::function<bool(MemoryDisk&, bool acknowledged)>& sound) {
  const std::int64_t calls = CountCalls(action);
  int unsound = 0;
  Prng prng(99);
  for (std::int64_t k = 1; k <= calls + 1; ++k) {
    for (int round = 0; round < rounds; ++round) {
      const auto disk = DiskWithOld();
      disk->Lie(lies);
      FaultyFileSystem faulty(*disk);
      faulty.Set(Fault::kStopTorn, k, Internal("no power"));
      const bool acknowledged = action(faulty).ok();
      if (round == 0) {
        disk->LosePower();
      } else {
        disk->LosePower(prng);
      }
      if (!sound(*disk, acknowledged)) ++unsound;
    }
  }
  return unsound;
}

bool SaveIsSound(MemoryDisk& disk, bool acknowledged) {
  const bool old = LoadByManifest(disk, "/c", kOld, OldState()).ok();
  const Status recent = LoadByManifest(disk, "/c", kNew, NewState());
  return old && (recent.ok() || (!acknowledged && recent.code() == Code::kNotFound));
}

TEST(Crash, PowerCutAtEveryCallOfASave) { EXPECT_EQ(PowerCuts({}, 12, SaveNew, SaveIsSound), 0); }

// The check above can fail: with either kind of sync missing, it does.
TEST(Crash, PowerCutsShowMissingSyncs) {
  EXPECT_GT(PowerCuts({.file_sync = true, .directory_sync = false}, 8, SaveNew, SaveIsSound), 0);
  EXPECT_GT(PowerCuts({.file_sync = false, .directory_sync = true}, 8, SaveNew, SaveIsSound), 0);
}

Status RemoveOld(FileSystem& fs) { return RemoveCheckpoint(fs, "/c", DirectoryName(kOld)); }

// While a checkpoint is removed, its manifest is there only as long as everything else is.
bool RemovalIsSound(MemoryDisk& disk, bool /*acknowledged*/) {
  const Status old = LoadByManifest(disk, "/c", kOld, OldState());
  const bool sound = old.ok() || old.code() == Code::kNotFound;
  // Called again it finishes, from whatever was left.
  return RemoveOld(disk).ok() && disk.List("/c")->empty() && sound;
}

TEST(Crash, PowerCutAtEveryCallOfARemoval) {
  EXPECT_EQ(PowerCuts({}, 12, RemoveOld, RemovalIsSound), 0);
  EXPECT_GT(PowerCuts({.file_sync = false, .directory_sync = true}, 8, RemoveOld, RemovalIsSound),
            0);
}

TEST(Crash, FailAtEveryCallOfARemoval) {
  const std::int64_t calls = CountCalls(RemoveOld);
  for (std::int64_t k = 1; k <= calls; ++k) {
    const auto disk = DiskWithOld();
    FaultyFileSystem faulty(*disk);
    faulty.Set(Fault::kFail, k, Internal("injected"));
    EXPECT_FALSE(RemoveOld(faulty).ok());
    EXPECT_TRUE(RemovalIsSound(*disk, false)) << "call " << k;
  }
}

// S01 with real processes and a real file system: SIGKILL at the k-th call for all k.
TEST(Crash, KilledProcessAtEveryCall) {
  const std::int64_t calls = CountCalls(SaveNew);
  const State old_state = OldState();
  const State new_state = NewState();
  for (std::int64_t k = 1; k <= calls; ++k) {
    const TemporaryDirectory root;
    PosixFileSystem fs;
    ASSERT_TRUE(Save(fs, root.path(), old_state, kOld, kWorldSize).ok());
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      FaultyFileSystem deadly(fs);
      deadly.SetAction(k, [] { kill(getpid(), SIGKILL); });
      const bool saved = Save(deadly, root.path(), new_state, kNew, kWorldSize).ok();
      _exit(saved ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "call " << k;
    ExpectSound(fs, root.path(), false, "call " + std::to_string(k));
    EXPECT_TRUE(Save(fs, root.path(), new_state, kNew, kWorldSize).ok());
    ExpectSound(fs, root.path(), true, "call " + std::to_string(k) + ", again");
  }
}

}  // namespace
}  // namespace muster::checkpoint
