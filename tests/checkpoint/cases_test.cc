// Cases that other engines got wrong and that no single part of this one answers for.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/catalog.h"
#include "checkpoint/discover.h"
#include "checkpoint/format.h"
#include "checkpoint/layout.h"
#include "checkpoint/match.h"
#include "checkpoint/reader.h"
#include "checkpoint/retention.h"
#include "checkpoint/writer.h"
#include "tests/checkpoint/faulty_file_system.h"
#include "tests/checkpoint/memory_disk.h"
#include "tests/checkpoint/support.h"

namespace muster::checkpoint {
namespace {

using Fault = FaultyFileSystem::Fault;

const CheckpointKey kOld = Key(10, 1);
const CheckpointKey kNew = Key(20, 1);

State SmallState(std::uint64_t seed) {
  return MakeState({{"w", DType::kFloat32, {9, 3}, 0},
                    {"scale", DType::kFloat32, {9}, 0},
                    {"step", DType::kI64, {}, -1}},
                   seed);
}

void ExpectLoss(const Status& status, const std::vector<std::string>& words) {
  EXPECT_EQ(status.code(), Code::kDataLoss) << status.ToString();
  EXPECT_FALSE(status.message().starts_with("WRONG")) << status.message();
  for (const std::string& word : words) {
    EXPECT_NE(status.message().find(word), std::string::npos) << word << ": " << status.message();
  }
}

// A disk, or a cable to it, that changes one byte of one file on its way, and says nothing.
class FlippingDisk : public MemoryDisk {
 public:
  FlippingDisk(std::string file, std::int64_t at) : file_(std::move(file)), at_(at) {}
  [[nodiscard]] Result<std::unique_ptr<WritableFile>> CreateExclusively(
      const std::string& path) override {
    Result<std::unique_ptr<WritableFile>> file = MemoryDisk::CreateExclusively(path);
    if (!file.ok() || BaseNameOf(path) != file_) return file;
    return std::unique_ptr<WritableFile>(std::make_unique<File>(std::move(file).value(), at_));
  }

 private:
  class File : public WritableFile {
   public:
    File(std::unique_ptr<WritableFile> base, std::int64_t at) : base_(std::move(base)), at_(at) {}
    Status WriteAt(std::int64_t offset, std::span<const std::byte> bytes) override {
      Bytes copy(bytes.begin(), bytes.end());
      if (at_ >= offset && at_ < offset + std::ssize(copy)) {
        copy[static_cast<std::size_t>(at_ - offset)] ^= std::byte{0x10};
      }
      return base_->WriteAt(offset, copy);
    }
    Status SetSize(std::int64_t bytes) override { return base_->SetSize(bytes); }
    Status Sync() override { return base_->Sync(); }
    Status Close() override { return base_->Close(); }

   private:
    std::unique_ptr<WritableFile> base_;
    std::int64_t at_;
  };
  const std::string file_;
  const std::int64_t at_;
};

// S17: the digests are made of the memory that is saved, so what changes on the way to the disk is
// found, with its file and block.
TEST(Cases, ByteChangedOnItsWayToTheDisk) {
  const std::int64_t block = BlockBytes(0);
  const State state =
      MakeState({{"data", DType::kU8, {6 * block}, 0}, {"scale", DType::kFloat32, {64}, -1}}, 17);
  const std::string name = ShardFileName(Rank(1), 0);
  const auto save_and_load = [&](std::int64_t at) {
    FlippingDisk disk(name, at);
    EXPECT_TRUE(CheckRoot(disk, "/c").ok());
    const Result<CheckpointRecord> record = Save(disk, "/c", state, kNew, 2);
    EXPECT_TRUE(record.ok()) << "nobody noticed yet: " << record.status().ToString();
    EXPECT_EQ(VerifyCheckpoint(disk, "/c", *record).ok(), at < 0);
    return LoadAndCompare(disk, "/c", *record, state, 1);
  };
  EXPECT_TRUE(save_and_load(-1).ok());
  // Behind a header as small as this: half of the scales, then three blocks of data.
  ExpectLoss(save_and_load(4096), {name, "block 0"});
  const std::int64_t data = 4096 + 128;
  for (std::int64_t i = 0; i < 3; ++i) {
    for (const std::int64_t at : {i * block, (i + 1) * block - 1}) {
      ExpectLoss(save_and_load(data + at), {name, "block " + std::to_string(i + 1)});
    }
  }
  for (const std::int64_t at : {0, 9, 300, 4095}) ExpectLoss(save_and_load(at), {name});
}

// What a process that knows nothing but the root loads: the newest checkpoint there.
std::string LoadNewest(FileSystem& fs) {
  const auto found = DiscoverCheckpoints(fs, "/c", JobName("test-job"));
  if (!found.ok()) return found.status().ToString();
  if (!found->has_value() || (*found)->checkpoints.empty()) return "none";
  const CheckpointKey key = (*found)->checkpoints.back().key;
  const Result<Manifest> manifest = ReadManifest(fs, "/c", DirectoryName(key));
  if (!manifest.ok()) return manifest.status().ToString();
  const Status status =
      LoadAndCompare(fs, "/c", manifest->record, SmallState(key == kOld ? 1 : 2), 3);
  if (!status.ok()) return status.ToString();
  return key == kOld ? "old" : "new";
}

// S21: another process that loads while a save is under way gets the previous checkpoint, whole,
// and from one moment on the new one: at every call that the save makes.
TEST(Cases, LoadWhileASaveIsUnderWay) {
  std::string before = "old";
  for (std::int64_t k = 1;; ++k) {
    MemoryDisk disk;
    ASSERT_TRUE(CheckRoot(disk, "/c").ok());
    ASSERT_TRUE(Save(disk, "/c", SmallState(1), kOld, 2).ok());
    FaultyFileSystem faulty(disk);
    std::string loaded;
    faulty.SetAction(k, [&] { loaded = LoadNewest(disk); });
    ASSERT_TRUE(Save(faulty, "/c", SmallState(2), kNew, 2).ok());
    EXPECT_EQ(LoadNewest(disk), "new");
    if (faulty.calls() < k) {
      EXPECT_GT(k, 20);
      break;
    }
    if (before == "old" && loaded == "new") before = "new";
    EXPECT_EQ(loaded, before) << "call " << k;
  }
}

// S02: of one that is kept, the last one goes only once the next one is durable, so wherever saver
// and power stop, one is there whole.
TEST(Cases, KeepingOneThereIsAlwaysOne) {
  const auto save_then_remove = [](FileSystem& fs) -> Status {
    MUSTER_RETURN_IF_ERROR(Save(fs, "/c", SmallState(2), kNew, 2).status());
    return RemoveCheckpoint(fs, "/c", DirectoryName(kOld));
  };
  Prng prng(2);
  bool done = false;
  for (std::int64_t k = 1; !done; ++k) {
    for (int round = 0; round < 8; ++round) {
      MemoryDisk disk;
      ASSERT_TRUE(CheckRoot(disk, "/c").ok());
      ASSERT_TRUE(Save(disk, "/c", SmallState(1), kOld, 2).ok());
      FaultyFileSystem faulty(disk);
      faulty.Set(Fault::kStopTorn, k, Internal("killed"));
      done = save_then_remove(faulty).ok();
      if (round > 0) disk.LosePower(prng);
      const std::string loaded = LoadNewest(disk);
      EXPECT_TRUE(loaded == "old" || loaded == "new") << "call " << k << ": " << loaded;
      EXPECT_TRUE(save_then_remove(disk).ok()) << "call " << k;
      EXPECT_EQ(LoadNewest(disk), "new") << "call " << k;
    }
  }
}

// S08: the directory of a save goes away under it, at any of its calls. The previous checkpoint is
// kept, what is left is not taken for the new one, and the next save works.
TEST(Cases, DirectoryRemovedUnderASave) {
  const std::string directory = "/c/" + DirectoryName(kNew);
  for (std::int64_t k = 1;; ++k) {
    MemoryDisk disk;
    ASSERT_TRUE(CheckRoot(disk, "/c").ok());
    ASSERT_TRUE(Save(disk, "/c", SmallState(1), kOld, 4).ok());
    FaultyFileSystem faulty(disk);
    faulty.SetAction(k, [&] {
      const Result<std::vector<std::string>> names = disk.List(directory);
      if (!names.ok()) return;
      for (const std::string& name : *names)
        EXPECT_TRUE(disk.Unlink(JoinPath(directory, name)).ok());
      EXPECT_TRUE(disk.RemoveDirectory(directory).ok());
    });
    const Result<CheckpointRecord> record = Save(faulty, "/c", SmallState(2), kNew, 4);
    if (faulty.calls() < k) break;
    // A later file makes the directory anew, but the manifest finds that earlier ones are gone.
    if (record.ok()) {
      EXPECT_TRUE(LoadAndCompare(disk, "/c", *record, SmallState(2), 1).ok()) << "call " << k;
    }
    const CheckpointRecord old = ReadManifest(disk, "/c", DirectoryName(kOld))->record;
    EXPECT_TRUE(LoadAndCompare(disk, "/c", old, SmallState(1), 3).ok()) << "call " << k;
    const Result<CheckpointRecord> next = Save(disk, "/c", SmallState(3), Key(30, 1), 4);
    ASSERT_TRUE(next.ok()) << "call " << k << ": " << next.status().ToString();
    EXPECT_TRUE(LoadAndCompare(disk, "/c", *next, SmallState(3), 3).ok()) << "call " << k;
  }
}

// S08: a writer that never finishes: no manifest can be written without its file.
TEST(Cases, NoManifestWithoutARank) {
  MemoryDisk disk;
  ASSERT_TRUE(CheckRoot(disk, "/c").ok());
  CheckpointRecord record = *SaveShards(disk, "/c", SmallState(1), kNew, 4);
  record.bytes -= record.files[2].bytes;
  record.files.erase(record.files.begin() + 2);
  EXPECT_EQ(WriteManifest(disk, "/c", record).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ReadManifest(disk, "/c", record.directory).status().code(), Code::kNotFound);
}

// L20: one of three parameters had no optimizer state when the checkpoint was saved. Whoever wants
// it is told so by name, whether the tensor is not there or is there and empty.
TEST(Cases, AbsentStateIsNamed) {
  std::vector<TensorSpec> wanted;
  for (const char* name : {"a", "b", "c"}) {
    wanted.push_back({name, DType::kFloat32, {4}, 0});
    wanted.push_back({std::string(name) + ".exp_avg", DType::kFloat32, {4}, 0});
  }
  MemoryDisk disk;
  ASSERT_TRUE(CheckRoot(disk, "/c").ok());
  const auto problem = [&](const std::vector<TensorSpec>& saved, std::int64_t step) {
    const CheckpointRecord record = *Save(disk, "/c", MakeState(saved, 1), Key(step, 1), 2);
    const Manifest manifest = *ReadManifest(disk, "/c", record.directory);
    return CheckStrictMatch(MatchTensors(manifest.record.tensors, wanted));
  };
  EXPECT_TRUE(problem(wanted, 1).ok());
  std::vector<TensorSpec> lacking = wanted;
  lacking.erase(lacking.begin() + 3);
  const Status missing = problem(lacking, 2);
  EXPECT_EQ(missing.code(), Code::kFailedPrecondition);
  EXPECT_NE(missing.message().find("1 missing: b.exp_avg"), std::string::npos) << missing.message();
  std::vector<TensorSpec> hollow = wanted;
  hollow[3].shape = {0};
  const Status empty = problem(hollow, 3);
  EXPECT_EQ(empty.code(), Code::kFailedPrecondition);
  EXPECT_NE(empty.message().find("b.exp_avg"), std::string::npos) << empty.message();
}

// L20: a rank that left a tensor out of its file, which the record lists all the same.
TEST(Cases, FileWithoutATensorOfTheRecord) {
  MemoryDisk disk;
  ASSERT_TRUE(CheckRoot(disk, "/c").ok());
  const State state = SmallState(1);
  State lacking = state;
  lacking.tensors.erase(lacking.tensors.begin() + 1);
  lacking.bytes.erase(lacking.bytes.begin() + 1);
  CheckpointRecord record = *SaveShards(disk, "/c", state, kNew, 2);
  const Result<FileRecord> file =
      WriteAlone(disk, "/c", PlanOf(lacking, kNew, Rank(1), 2), ShardData(lacking, Rank(1), 2));
  ASSERT_TRUE(file.ok());
  record = RecordOf(state, kNew, {record.files[0], *file});
  ASSERT_TRUE(WriteManifest(disk, "/c", record).ok());
  ExpectLoss(LoadAndCompare(disk, "/c", record, state, 1), {file->name});
}

// L24: each node wrote to a disk of its own, where the others' files are not. That is refused with
// the file that is missing, for whichever rank, and never loaded in part; an older checkpoint that
// is whole still loads. With all files in one place it does not matter which rank runs where.
TEST(Cases, FilesOnTheDisksOfOtherNodes) {
  const State state = SmallState(2);
  MemoryDisk disks[2];
  std::vector<FileRecord> files;
  for (std::int32_t r = 0; r < 2; ++r) {
    ASSERT_TRUE(CheckRoot(disks[r], "/c").ok());
    ASSERT_TRUE(Save(disks[r], "/c", SmallState(1), kOld, 2).ok());
    files.push_back(
        *WriteAlone(disks[r], "/c", PlanOf(state, kNew, Rank(r), 2), ShardData(state, Rank(r), 2)));
  }
  const CheckpointRecord record = RecordOf(state, kNew, files);
  for (std::size_t r = 0; r < 2; ++r) {
    MemoryDisk& disk = disks[r];
    const std::string& missing = files[1 - r].name;
    // Not even committed.
    const Status refused = WriteManifest(disk, "/c", record).status();
    EXPECT_EQ(refused.code(), Code::kNotFound);
    EXPECT_NE(refused.message().find(missing), std::string::npos) << refused.message();
    for (const std::int32_t world_size : {1, 2, 3}) {
      ExpectLoss(LoadAndCompare(disk, "/c", record, state, world_size), {missing});
    }
    ExpectLoss(VerifyCheckpoint(disk, "/c", record), {missing});
    const CheckpointRecord old = ReadManifest(disk, "/c", DirectoryName(kOld))->record;
    EXPECT_TRUE(LoadAndCompare(disk, "/c", old, SmallState(1), 3).ok());
    const std::string path = "/c/" + record.directory + "/";
    disk.Overwrite(path + missing, *ReadWhole(disks[1 - r], path + missing, 1 << 20));
    EXPECT_TRUE(LoadAndCompare(disk, "/c", record, state, 3).ok());
    ASSERT_TRUE(disk.Unlink(path + missing).ok());
  }
}

}  // namespace
}  // namespace muster::checkpoint
