// What lies in a root, and how a manifest that is gone is put together again.
#include "checkpoint/catalog.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/format.h"
#include "checkpoint/reader.h"
#include "checkpoint/retention.h"
#include "checkpoint/writer.h"
#include "tests/checkpoint/faulty_file_system.h"
#include "tests/checkpoint/memory_disk.h"
#include "tests/checkpoint/random_layout.h"
#include "tests/checkpoint/support.h"

namespace muster::checkpoint {
namespace {

class Catalog : public testing::Test {
 protected:
  Catalog()
      : state_(MakeState({{"a", DType::kFloat32, {5, 3}, 0},
                          {"b", DType::kU8, {3, 7}, 1},
                          {"step", DType::kI64, {}, -1}},
                         1)) {
    EXPECT_TRUE(CheckRoot(fs_, "/c").ok());
  }
  [[nodiscard]] static std::string PathOf(const CheckpointRecord& record, const std::string& name) {
    return "/c/" + record.directory + "/" + name;
  }
  CheckpointRecord SaveAt(std::int64_t step, std::int64_t generation, std::int32_t ranks = 2) {
    return Save(fs_, "/c", state_, Key(step, generation), ranks).value();
  }
  CheckpointRecord Unfinished(std::int64_t step, std::int64_t generation, std::int32_t ranks = 2) {
    return SaveShards(fs_, "/c", state_, Key(step, generation), ranks).value();
  }
  Status Rebuild(const std::string& directory) {
    return RebuildManifest(fs_, "/c", directory).status();
  }
  [[nodiscard]] bool HasManifest(const std::string& directory) {
    return ReadManifest(fs_, "/c", directory).ok();
  }
  void Damage(const std::string& path, std::size_t at) {
    std::string content = *ReadWhole(fs_, path, 1 << 20);
    content[at] = static_cast<char>(content[at] ^ 1);
    fs_.Overwrite(path, content);
  }

  MemoryDisk fs_;
  State state_;
};

TEST_F(Catalog, ListsByCommitAndSaysWhatIsWrong) {
  const CheckpointRecord late = SaveAt(100, 2);  // after a rollback: committed after step 600
  const CheckpointRecord good = SaveAt(500, 1);
  const CheckpointRecord damaged = SaveAt(600, 1);
  Damage(PathOf(damaged, "manifest.json"), 40);
  const CheckpointRecord unfinished = Unfinished(300, 2);
  const CheckpointRecord robbed = SaveAt(400, 2);
  ASSERT_TRUE(fs_.Unlink(PathOf(robbed, robbed.files[1].name)).ok());
  ASSERT_TRUE(fs_.MakeDirectory("/c/other").ok());
  fs_.Overwrite("/c/.muster-owner", "text");
  ASSERT_TRUE(SetPinned(fs_, "/c", good.directory, true).ok());

  const std::vector<CatalogEntry> entries = ListCheckpoints(fs_, "/c").value();
  ASSERT_EQ(entries.size(), 5U);
  EXPECT_EQ(entries[0].key, good.key);
  EXPECT_TRUE(entries[0].pinned);
  EXPECT_EQ(entries[0].bytes, good.bytes);
  EXPECT_EQ(entries[0].manifest->record, good);
  EXPECT_EQ(entries[1].key, damaged.key);
  EXPECT_EQ(entries[1].manifest.status().code(), Code::kDataLoss);
  EXPECT_EQ(entries[1].bytes, damaged.bytes);
  EXPECT_EQ(entries[2].key, late.key);
  EXPECT_TRUE(entries[2].manifest.ok());
  EXPECT_FALSE(entries[2].pinned);
  EXPECT_EQ(entries[3].key, unfinished.key);
  EXPECT_EQ(entries[3].manifest.status().code(), Code::kNotFound);
  EXPECT_EQ(entries[3].bytes, unfinished.bytes);
  EXPECT_EQ(entries[4].manifest.status().code(), Code::kDataLoss);
  EXPECT_NE(entries[4].manifest.status().message().find(robbed.files[1].name), std::string::npos);
}

TEST_F(Catalog, ErrorsOfPlaces) {
  EXPECT_TRUE(ListCheckpoints(fs_, "/c")->empty());
  EXPECT_EQ(ListCheckpoints(fs_, "/nowhere").status().code(), Code::kNotFound);
  EXPECT_EQ(LookAt(fs_, "/c", "s000000000001-g00000001").status().code(), Code::kNotFound);
  EXPECT_EQ(LookAt(fs_, "/c", "../c").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(SetPinned(fs_, "/c", "..", true).code(), Code::kInvalidArgument);
  EXPECT_EQ(Rebuild("..").code(), Code::kInvalidArgument);
}

TEST_F(Catalog, PinsAreDurable) {
  const std::string directory = SaveAt(1, 1).directory;
  for (const bool pinned : {true, true, false, false}) {
    ASSERT_TRUE(SetPinned(fs_, "/c", directory, pinned).ok());
    fs_.LosePower();
    EXPECT_EQ(LookAt(fs_, "/c", directory)->pinned, pinned);
  }
}

// Whatever the layout, the manifest comes back to the byte.
TEST_F(Catalog, RebuildsTheSameManifest) {
  Prng prng(11);
  for (int round = 0; round < 60; ++round) {
    std::vector<TensorSpec> tensors = VariedTensors();
    const std::int64_t more = static_cast<std::int64_t>(prng.Below(7));
    for (std::int64_t i = 0; i < more; ++i) {
      tensors.push_back(RandomTensor("random." + std::to_string(i), prng));
    }
    tensors[1].logical_dtype = "F7";
    TensorSpec tied = tensors[0];
    tied.name = "tied";
    tied.alias_of = tensors[0].name;
    tensors.insert(tensors.begin(), tied);
    const State state = MakeState(tensors, 3);
    const auto ranks = static_cast<std::int32_t>(prng.Below(5) + 1);
    const CheckpointRecord record =
        SaveListed(fs_, "/c", state, Key(round, 1), RandomListedBoxes(tensors, ranks, prng))
            .value();
    const std::string path = PathOf(record, "manifest.json");
    const std::string before = *ReadWhole(fs_, path, 1 << 20);
    ASSERT_TRUE(fs_.Unlink(path).ok());
    EXPECT_EQ(AssembleRecord(fs_, "/c", record.directory).value(), record);
    const Status status = Rebuild(record.directory);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(*ReadWhole(fs_, path, 1 << 20), before);
    ASSERT_TRUE(RemoveCheckpoint(fs_, "/c", record.directory).ok());
  }
}

TEST_F(Catalog, RebuildsADamagedManifest) {
  const CheckpointRecord record = SaveAt(1, 1);
  Damage(PathOf(record, "manifest.json"), 100);
  ASSERT_FALSE(HasManifest(record.directory));
  ASSERT_TRUE(Rebuild(record.directory).ok());
  EXPECT_EQ(ReadManifest(fs_, "/c", record.directory)->record, record);
}

// L26: of several attempts the last one that is whole counts.
TEST_F(Catalog, TakesTheLastWholeAttempt) {
  const CheckpointRecord first = Unfinished(1, 1);
  const CheckpointRecord second = Unfinished(1, 1);
  EXPECT_EQ(second.files[0].name, ShardFileName(Rank(0), 1));
  const std::string torn = PathOf(second, ShardFileName(Rank(1), 2));
  fs_.Overwrite(torn, std::string(5000, '\0'));
  ASSERT_TRUE(Rebuild(second.directory).ok());
  EXPECT_EQ(ReadManifest(fs_, "/c", second.directory)->record, second);
}

TEST_F(Catalog, LeavesAReadableManifestAlone) {
  const CheckpointRecord record = SaveAt(1, 1);
  EXPECT_EQ(Rebuild(record.directory).code(), Code::kAlreadyExists);
}

TEST_F(Catalog, WritesNothingInADryRun) {
  const CheckpointRecord record = Unfinished(1, 1);
  RebuildOptions options;
  options.write = false;
  std::int64_t found = 0;
  std::int64_t read = 0;
  options.found = [&](const CheckpointRecord& seen) { found = seen.bytes; };
  options.progress = [&](std::int64_t bytes) { read += bytes; };
  const auto digest = RebuildManifest(fs_, "/c", record.directory, options);
  ASSERT_TRUE(digest.ok());
  EXPECT_EQ(found, record.bytes);
  EXPECT_GE(read, record.bytes);
  EXPECT_FALSE(HasManifest(record.directory));
  EXPECT_EQ(*RebuildManifest(fs_, "/c", record.directory), *digest);
}

// S01: a save that was never finished is none.
TEST_F(Catalog, RefusesWhatIsNotComplete) {
  const auto expect_not_found = [&](const CheckpointRecord& record, const std::string& what) {
    const Status status = Rebuild(record.directory);
    EXPECT_EQ(status.code(), Code::kNotFound) << status.message();
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
    EXPECT_FALSE(HasManifest(record.directory));
  };
  for (const std::size_t rank : {0U, 1U, 2U}) {
    const CheckpointRecord record = Unfinished(static_cast<std::int64_t>(rank), 1, 3);
    ASSERT_TRUE(fs_.Unlink(PathOf(record, record.files[rank].name)).ok());
    expect_not_found(record, "rank " + std::to_string(rank));
  }
  const CheckpointRecord torn = Unfinished(10, 1);
  fs_.Overwrite(PathOf(torn, torn.files[1].name), std::string(5000, '\0'));
  expect_not_found(torn, "rank 1");
  const CheckpointRecord empty = Unfinished(11, 1);
  for (const FileRecord& file : empty.files) ASSERT_TRUE(fs_.Unlink(PathOf(empty, file.name)).ok());
  expect_not_found(empty, "rank 0");
}

// S09, L10: files of different saves never make up a checkpoint.
TEST_F(Catalog, RefusesWhatContradicts) {
  const CheckpointRecord record = Unfinished(1, 1);
  const std::string mine = *ReadWhole(fs_, PathOf(record, record.files[1].name), 1 << 20);
  const auto expect_refused = [&](const std::string& content, const std::string& what) {
    fs_.Overwrite(PathOf(record, record.files[1].name), content);
    const Status status = Rebuild(record.directory);
    EXPECT_EQ(status.code(), Code::kDataLoss) << what << ": " << status.message();
    EXPECT_NE(status.message().find(record.directory), std::string::npos) << status.message();
    EXPECT_FALSE(HasManifest(record.directory)) << what;
  };
  const auto file = [&](const CheckpointRecord& of, std::size_t rank) {
    return *ReadWhole(fs_, PathOf(of, of.files[rank].name), 1 << 20);
  };
  expect_refused(file(Unfinished(2, 1), 1), "another step");
  expect_refused(file(Unfinished(1, 2), 1), "another generation");
  expect_refused(file(record, 0), "another rank");
  expect_refused(file(Unfinished(3, 1, 3), 1), "another world size");
  State other = state_;
  other.tensors[0].name = "renamed";
  ASSERT_TRUE(CheckRoot(fs_, "/d").ok());
  const CheckpointRecord renamed = SaveShards(fs_, "/d", other, Key(1, 1), 2).value();
  const std::string foreign = "/d/" + renamed.directory + "/" + renamed.files[1].name;
  expect_refused(*ReadWhole(fs_, foreign, 1 << 20), "other tensors");
  std::string damaged = mine;
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  expect_refused(damaged, "a damaged block");
}

TEST_F(Catalog, RefusesTheFilesOfAnotherDirectory) {
  const CheckpointRecord record = Unfinished(1, 1);
  const std::string elsewhere = DirectoryName(Key(2, 1));
  ASSERT_TRUE(fs_.MakeDirectory("/c/" + elsewhere).ok());
  for (const FileRecord& file : record.files) {
    fs_.Overwrite("/c/" + elsewhere + "/" + file.name,
                  *ReadWhole(fs_, PathOf(record, file.name), 1 << 20));
  }
  EXPECT_EQ(Rebuild(elsewhere).code(), Code::kDataLoss);
}

// S01, S07: an error, a kill or a power cut at any call leaves a manifest that is whole, or none.
TEST_F(Catalog, RebuildIsAtomic) {
  using Fault = FaultyFileSystem::Fault;
  const CheckpointRecord record = Unfinished(1, 1);
  FaultyFileSystem faulty(fs_);
  for (const Fault fault : {Fault::kFail, Fault::kStopTorn}) {
    for (std::int64_t k = 1;; ++k) {
      ASSERT_LT(k, 1000);
      faulty.Set(fault, k, Internal("Input/output error"));
      const Status status = RebuildManifest(faulty, "/c", record.directory).status();
      fs_.LosePower();
      const auto manifest = ReadManifest(fs_, "/c", record.directory);
      if (manifest.ok()) {
        EXPECT_EQ(manifest->record, record);
        ASSERT_TRUE(fs_.Unlink(PathOf(record, "manifest.json")).ok());
        ASSERT_TRUE(fs_.SyncDirectory("/c/" + record.directory).ok());
      } else {
        EXPECT_EQ(manifest.status().code(), Code::kNotFound) << manifest.status().message();
        EXPECT_FALSE(status.ok()) << "it was announced, and is gone";
      }
      if (faulty.calls() < k) break;
    }
  }
}

// L11: every damage of a checkpoint is named, not the first one alone.
TEST_F(Catalog, VerifyCanNameAllDamage) {
  const State state = MakeState({{"wide", DType::kU8, {400'000}, 0}, {"b", DType::kU8, {9}, 0}}, 5);
  const CheckpointRecord record = Save(fs_, "/c", state, Key(1, 1), 3).value();
  const std::size_t data = 4096;
  Damage(PathOf(record, record.files[0].name), data + 3);
  Damage(PathOf(record, record.files[0].name), data + 70'000);
  Damage(PathOf(record, record.files[1].name), 9);
  std::map<std::int32_t, std::vector<std::string>> found;
  ReadOptions options;
  options.damaged = [&](Rank rank, const Status& damage) {
    found[rank.value()].push_back(damage.message());
  };
  EXPECT_EQ(VerifyCheckpoint(fs_, "/c", record, options).code(), Code::kDataLoss);
  ASSERT_EQ(found.size(), 2U);
  ASSERT_EQ(found[0].size(), 2U);
  EXPECT_NE(found[0][0].find("block 0 "), std::string::npos) << found[0][0];
  EXPECT_NE(found[0][1].find("block 1 "), std::string::npos) << found[0][1];
  EXPECT_EQ(found[1].size(), 1U);
  // An error that says nothing about the checkpoint still ends it.
  FaultyFileSystem faulty(fs_);
  faulty.Set(FaultyFileSystem::Fault::kFail, 1, ResourceExhausted("Too many open files"));
  found.clear();
  EXPECT_EQ(VerifyCheckpoint(faulty, "/c", record, options).code(), Code::kResourceExhausted);
  EXPECT_TRUE(found.empty());
  // A load never goes on over damage.
  Bytes into(400'000);
  const std::vector<WantedBox> wanted = {{0, Box::Whole({400'000}), into}};
  EXPECT_EQ(LoadBoxes(fs_, "/c", record, wanted, options).status().code(), Code::kDataLoss);
}

}  // namespace
}  // namespace muster::checkpoint
