#include "checkpoint/writer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/format.h"
#include "checkpoint/posix_file_system.h"
#include "checkpoint/reader.h"
#include "tests/checkpoint/faulty_file_system.h"
#include "tests/checkpoint/memory_disk.h"
#include "tests/checkpoint/support.h"

namespace muster::checkpoint {
namespace {

void ExpectError(const Status& status, Code code, const std::string& text) {
  EXPECT_EQ(status.code(), code) << status.ToString();
  EXPECT_NE(status.message().find(text), std::string::npos) << status.ToString();
  EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.ToString();
}

TEST(CheckRoot, CreatesOneLevel) {
  PosixFileSystem fs;
  const TemporaryDirectory parent;
  const std::string root = JoinPath(parent.path(), "root");
  EXPECT_TRUE(CheckRoot(fs, root + "/").ok());
  EXPECT_TRUE(CheckRoot(fs, root).ok());
  EXPECT_TRUE(std::filesystem::is_empty(root)) << "the proof left something behind";
  ExpectError(CheckRoot(fs, JoinPath(parent.path(), "a/b")), Code::kNotFound,
              "neither does its parent");
  EXPECT_FALSE(std::filesystem::exists(JoinPath(parent.path(), "a")));
}

TEST(CheckRoot, SaysWhatIsWrong) {
  PosixFileSystem fs;
  const TemporaryDirectory parent;
  const std::string file = JoinPath(parent.path(), "file");
  WriteFileBytes(file, "");
  EXPECT_FALSE(CheckRoot(fs, file).ok());
  FaultyFileSystem faulty(fs);
  const std::string root = JoinPath(parent.path(), "root");
  ASSERT_TRUE(CheckRoot(faulty, root).ok());
  // The directory is there, its parent's sync does not matter then, the proof needs all the rest.
  const std::int64_t calls = faulty.calls();
  for (std::int64_t k = 3; k <= calls; ++k) {
    faulty.Set(FaultyFileSystem::Fault::kFail, k, PermissionDenied(root + ": read-only"));
    ExpectError(CheckRoot(faulty, root), Code::kPermissionDenied, root);
  }
}

TEST(CheckRoot, ByManyAtOnce) {
  const TemporaryDirectory parent;
  const std::string root = JoinPath(parent.path(), "root");
  std::vector<Status> statuses(8);
  {
    std::vector<std::jthread> ranks;
    for (Status& status : statuses) {
      ranks.emplace_back([&status, &root] {
        PosixFileSystem fs;
        for (int i = 0; i < 20 && status.ok(); ++i) status = CheckRoot(fs, root);
      });
    }
  }
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_TRUE(std::filesystem::is_empty(root));
}

class WriteShardTest : public testing::Test {
 protected:
  WriteShardTest() : state_(MakeState({{"a", DType::kFloat32, {3}, 0}}, 1)) {
    EXPECT_TRUE(CheckRoot(disk_, "/c").ok());
  }
  Result<FileRecord> Write(const std::string& root, const ShardPlan& plan) {
    return WriteAlone(disk_, root, plan, ShardData(state_, Rank(0), 2));
  }
  MemoryDisk disk_;
  State state_;
};

TEST_F(WriteShardTest, NamesAMissingRoot) {
  ExpectError(Write("/d", PlanOf(state_, Key(1, 1), Rank(0), 2)).status(), Code::kNotFound,
              "/d does not exist");
}

TEST_F(WriteShardTest, AsksForSpaceFirst) {
  disk_.set_free_bytes(4000);
  ExpectError(Write("/c", PlanOf(state_, Key(1, 1), Rank(0), 2)).status(), Code::kResourceExhausted,
              "/c has 4000 bytes free");
  EXPECT_TRUE(disk_.List("/c")->empty());
  disk_.set_free_bytes(1 << 20);
  EXPECT_TRUE(Write("/c", PlanOf(state_, Key(1, 1), Rank(0), 2)).ok());
}

TEST_F(WriteShardTest, RefusesPlansThatDoNotFit) {
  const ShardPlan good = PlanOf(state_, Key(1, 1), Rank(0), 2);
  std::vector<ShardPlan> bad(6, good);
  bad[0].rank = Rank(2);
  bad[1].rank = Rank(1);  // stores one element, and the bytes are of two
  bad[2].world_size = 0;
  bad[3].tensors.push_back({"b", DType::kU8, {2}, -1});
  bad[4].tensors[0].name = "\xff";
  bad[5].key.step = Step(-1);
  for (const ShardPlan& plan : bad) {
    EXPECT_EQ(Write("/c", plan).status().code(), Code::kInvalidArgument);
  }
  EXPECT_TRUE(disk_.List("/c")->empty());
}

// An abandoned file keeps its name, and the next attempt has another one.
TEST_F(WriteShardTest, NeverTouchesAnExistingFile) {
  const ShardPlan plan = PlanOf(state_, Key(1, 1), Rank(0), 2);
  EXPECT_EQ(Write("/c", plan)->name, "r00000.safetensors");
  EXPECT_EQ(Write("/c", plan)->name, "r00000-01.safetensors");
  for (int attempt = 2; attempt < kMaxAttempts; ++attempt) ASSERT_TRUE(Write("/c", plan).ok());
  ExpectError(Write("/c", plan).status(), Code::kResourceExhausted, "remove them");
}

// Data of several pieces, so that several threads write it.
constexpr std::int64_t kSeveralPieces = (std::int64_t{20} << 20U) + 77;

// S03: an error in any thread fails the whole, and leaves nothing.
TEST(WriteShards, FailWhicheverThreadMeetsTheError) {
  MemoryDisk disk;
  ASSERT_TRUE(CheckRoot(disk, "/c").ok());
  const State state = MakeState({{"a", DType::kU8, {kSeveralPieces}, 0}}, 1);
  const ShardPlan plan = PlanOf(state, Key(1, 1), Rank(0), 1);
  const AlignedBuffer data = ShardData(state, Rank(0), 1);
  IoPool pool(2);
  FaultyFileSystem faulty(disk);
  ASSERT_TRUE(WriteShard(faulty, "/c", plan, data, pool).ok());
  const std::int64_t calls = faulty.calls();
  ASSERT_TRUE(disk.Unlink("/c/" + DirectoryName(plan.key) + "/" + ShardFileName(Rank(0), 0)).ok());
  for (const Code code : {Code::kInternal, Code::kResourceExhausted}) {
    for (std::int64_t k = 1; k <= calls; ++k) {
      faulty.Set(FaultyFileSystem::Fault::kFailTorn, k, Status(code, "injected"));
      EXPECT_EQ(WriteShard(faulty, "/c", plan, data, pool).status().code(), code) << k;
      EXPECT_TRUE(disk.List("/c/" + DirectoryName(plan.key))->empty()) << k;
    }
  }
  EXPECT_TRUE(WriteShard(disk, "/c", plan, data, pool).ok());
}

// S04: the disk fills up while the file is written, although it had the space when it was asked.
TEST(WriteShards, ADiskThatFillsUpIsAnErrorWithARemedy) {
  constexpr std::size_t kBytes = std::size_t{8} << 20U;
  class SmallDisk : public SystemCalls {
   public:
    ssize_t PWrite(int descriptor, const void* bytes, std::size_t count, off_t offset) override {
      if (written += count; written > kBytes) {
        errno = ENOSPC;
        return -1;
      }
      return SystemCalls::PWrite(descriptor, bytes, count, offset);
    }
    std::atomic<std::size_t> written = 0;
  } calls;
  const TemporaryDirectory root;
  const State state = MakeState({{"a", DType::kU8, {kSeveralPieces}, 0}}, 1);
  const ShardPlan plan = PlanOf(state, Key(1, 1), Rank(0), 1);
  const AlignedBuffer data = ShardData(state, Rank(0), 1);
  IoPool pool(2);
  PosixFileSystem full(calls);
  ExpectError(WriteShard(full, root.path(), plan, data, pool).status(), Code::kResourceExhausted,
              "free space there");
  PosixFileSystem fs;
  EXPECT_TRUE(fs.List(JoinPath(root.path(), DirectoryName(plan.key)))->empty());
  EXPECT_TRUE(WriteShard(fs, root.path(), plan, data, pool).ok());
}

TEST(WriteShards, CanBeGivenUp) {
  MemoryDisk disk;
  ASSERT_TRUE(CheckRoot(disk, "/c").ok());
  const State state = MakeState({{"a", DType::kU8, {kSeveralPieces}, 0}}, 1);
  const ShardPlan plan = PlanOf(state, Key(1, 1), Rank(0), 1);
  const AlignedBuffer data = ShardData(state, Rank(0), 1);
  IoPool alone(1);
  FaultyFileSystem counted(disk);
  ASSERT_TRUE(WriteShard(counted, "/c", plan, data, alone).ok());
  const std::int64_t calls = counted.calls();
  // Before the header: afterwards the file may as well be finished.
  for (std::int64_t k = 1; k <= calls - 4; ++k) {
    std::atomic<bool> stop = false;
    counted.SetAction(k, [&stop] { stop = true; });
    EXPECT_EQ(WriteShard(counted, "/c", plan, data, alone, &stop).status().code(),
              Code::kInterrupted)
        << k;
    EXPECT_EQ(disk.List("/c/" + DirectoryName(plan.key))->size(), 1U) << k;
  }
}

// All ranks at once, each on its own, into a directory that none of them finds.
TEST(WriteShards, ByAllRanksAtOnce) {
  const TemporaryDirectory root;
  const State state = MakeState(VariedTensors(), 1);
  constexpr std::int32_t kWorldSize = 8;
  std::vector<Status> statuses(kWorldSize);
  std::vector<FileRecord> files(kWorldSize);
  {
    std::vector<std::jthread> ranks;
    for (std::int32_t r = 0; r < kWorldSize; ++r) {
      ranks.emplace_back([&, r] {
        PosixFileSystem fs;
        IoPool pool(2);
        const auto file = WriteShard(fs, root.path(), PlanOf(state, Key(1, 1), Rank(r), kWorldSize),
                                     ShardData(state, Rank(r), kWorldSize), pool);
        statuses[static_cast<std::size_t>(r)] = file.status();
        if (file.ok()) files[static_cast<std::size_t>(r)] = *file;
      });
    }
  }
  for (const Status& status : statuses) ASSERT_TRUE(status.ok()) << status.ToString();
  PosixFileSystem fs;
  const CheckpointRecord record = RecordOf(state, Key(1, 1), files);
  ASSERT_TRUE(WriteManifest(fs, root.path(), record).ok());
  EXPECT_TRUE(LoadAndCompare(fs, root.path(), record, state, 3).ok());
}

TEST_F(WriteShardTest, ManifestIsTheSameWhenWrittenAgain) {
  const auto record = SaveShards(disk_, "/c", state_, Key(1, 1), 2);
  ASSERT_TRUE(record.ok());
  const auto first = WriteManifest(disk_, "/c", *record);
  // Read and synced, and no file made that a sweep could meanwhile take for a leftover.
  FaultyFileSystem counting(disk_);
  const auto second = WriteManifest(counting, "/c", *record);
  EXPECT_LE(counting.calls(), 4);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(*first, *second);
  EXPECT_EQ(ReadManifest(disk_, "/c", record->directory, *first)->record, *record);
  EXPECT_EQ(disk_.List("/c/" + record->directory)->size(), 3U);
  CheckpointRecord incomplete = *record;
  incomplete.files.pop_back();
  EXPECT_EQ(WriteManifest(disk_, "/c", incomplete).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace muster::checkpoint
