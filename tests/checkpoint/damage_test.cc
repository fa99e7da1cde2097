// Bytes that are not the ones written are never loaded.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/format.h"
#include "checkpoint/reader.h"
#include "checkpoint/retention.h"
#include "checkpoint/writer.h"
#include "tests/checkpoint/faulty_file_system.h"
#include "tests/checkpoint/memory_disk.h"
#include "tests/checkpoint/support.h"

namespace muster::checkpoint {
namespace {

class Damage : public testing::Test {
 protected:
  Damage()
      : state_(MakeState({{"a", DType::kFloat32, {5, 3}, 0},
                          {"b", DType::kU8, {3, 7}, 1},
                          {"step", DType::kI64, {}, -1}},
                         1)),
        older_state_(MakeState(state_.tensors, 2)) {
    EXPECT_TRUE(CheckRoot(fs_, "/c").ok());
    older_ = *Save(fs_, "/c", older_state_, Key(10, 1), 2);
    record_ = *Save(fs_, "/c", state_, Key(20, 1), 2);
  }

  [[nodiscard]] static std::string PathOf(const CheckpointRecord& record, const std::string& name) {
    return "/c/" + record.directory + "/" + name;
  }
  [[nodiscard]] std::string PathOf(std::size_t rank) const {
    return PathOf(record_, record_.files[rank].name);
  }
  std::string Content(const std::string& path) { return *ReadWhole(fs_, path, 1 << 20); }
  // Loading fails as lost data, names the file, and the older checkpoint still loads.
  void ExpectNoticed(std::size_t rank, const std::string& what) {
    const Status status = LoadAndCompare(fs_, "/c", record_, state_, 1);
    EXPECT_EQ(status.code(), Code::kDataLoss) << what;
    EXPECT_FALSE(status.message().starts_with("WRONG")) << what << ": " << status.message();
    EXPECT_NE(status.message().find(record_.files[rank].name), std::string::npos)
        << what << ": " << status.message();
    EXPECT_EQ(VerifyCheckpoint(fs_, "/c", record_).code(), Code::kDataLoss) << what;
  }

  MemoryDisk fs_;
  State state_;
  State older_state_;
  CheckpointRecord older_;
  CheckpointRecord record_;
};

// L11: each byte of each file, header and data alike.
TEST_F(Damage, OfAnyByte) {
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const std::string content = Content(PathOf(rank));
    for (std::size_t i = 0; i < content.size(); ++i) {
      std::string damaged = content;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
      fs_.Overwrite(PathOf(rank), damaged);
      ASSERT_NO_FATAL_FAILURE(ExpectNoticed(rank, "byte " + std::to_string(i)));
    }
    fs_.Overwrite(PathOf(rank), content);
  }
  EXPECT_TRUE(LoadAndCompare(fs_, "/c", record_, state_, 3).ok());
  EXPECT_TRUE(VerifyCheckpoint(fs_, "/c", record_).ok());
  EXPECT_TRUE(LoadAndCompare(fs_, "/c", older_, older_state_, 3).ok());
}

// L10: any length but the right one.
TEST_F(Damage, OfTheLength) {
  const std::string content = Content(PathOf(1));
  for (std::size_t length = 0; length < content.size(); length += 7) {
    fs_.Overwrite(PathOf(1), content.substr(0, length));
    ASSERT_NO_FATAL_FAILURE(ExpectNoticed(1, "length " + std::to_string(length)));
  }
  fs_.Overwrite(PathOf(1), content + "1234567");
  ExpectNoticed(1, "trailing bytes");
}

TEST_F(Damage, ByBlocksOfZeros) {
  const std::string content = Content(PathOf(0));
  fs_.Overwrite(PathOf(0), std::string(content.size(), '\0'));
  ExpectNoticed(0, "all zeros");
  std::string no_header = content;
  no_header.replace(0, 4096, 4096, '\0');
  fs_.Overwrite(PathOf(0), no_header);
  ExpectNoticed(0, "a header that was never written");
}

// L10: files of equal size in each other's place, or of another checkpoint.
TEST_F(Damage, ByValidFilesInTheWrongPlace) {
  const std::string mine = Content(PathOf(0));
  fs_.Overwrite(PathOf(0), Content(PathOf(1)));
  ExpectNoticed(0, "the file of another rank");
  fs_.Overwrite(PathOf(0), Content(PathOf(older_, older_.files[0].name)));
  ExpectNoticed(0, "the file of another step");
  fs_.Overwrite(PathOf(0), mine);
  EXPECT_TRUE(LoadAndCompare(fs_, "/c", record_, state_, 3).ok());
}

// A file of the same rank, step and generation with other bytes, as an abandoned attempt leaves it.
TEST_F(Damage, ByTheFileOfAnotherAttempt) {
  const auto other = SaveShards(fs_, "/c", older_state_, record_.key, 2);
  ASSERT_TRUE(other.ok());
  fs_.Overwrite(PathOf(1), Content(PathOf(*other, other->files[1].name)));
  ExpectNoticed(1, "another attempt");
}

// S09: a record that names valid files of another step, digests and all, is not believed either.
TEST_F(Damage, OfTheRecord) {
  fs_.Overwrite(PathOf(0), Content(PathOf(older_, older_.files[0].name)));
  CheckpointRecord mixed = record_;
  mixed.files[0] = older_.files[0];
  mixed.bytes = mixed.files[0].bytes + mixed.files[1].bytes;
  const Status status = LoadAndCompare(fs_, "/c", mixed, state_, 1);
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_NE(status.message().find("step 10"), std::string::npos) << status.message();
}

TEST_F(Damage, ByAMissingFile) {
  ASSERT_TRUE(fs_.Unlink(PathOf(1)).ok());
  ExpectNoticed(1, "missing");
  ASSERT_TRUE(RemoveCheckpoint(fs_, "/c", record_.directory).ok());
  ExpectNoticed(0, "no directory");
}

// L08: tensors of the record that are not those of the files.
TEST_F(Damage, OfTheTensorList) {
  CheckpointRecord renamed = record_;
  renamed.tensors[0].name = "z";
  EXPECT_EQ(LoadAndCompare(fs_, "/c", renamed, state_, 1).code(), Code::kDataLoss);
  CheckpointRecord retyped = record_;
  retyped.tensors[0].dtype = DType::kI32;
  EXPECT_EQ(LoadAndCompare(fs_, "/c", retyped, state_, 1).code(), Code::kDataLoss);
}

TEST_F(Damage, OfTheManifest) {
  const std::string path = PathOf(record_, "manifest.json");
  const auto read = [&](std::optional<std::uint64_t> digest = std::nullopt) {
    return ReadManifest(fs_, "/c", record_.directory, digest).status().code();
  };
  const std::uint64_t digest = ReadManifest(fs_, "/c", record_.directory)->digest;
  EXPECT_EQ(read(digest), Code::kOk);
  EXPECT_EQ(read(digest + 1), Code::kDataLoss);
  const std::string content = Content(path);
  std::string damaged = content;
  damaged[content.size() / 2] ^= 1;
  fs_.Overwrite(path, damaged);
  EXPECT_EQ(read(), Code::kDataLoss);
  fs_.Overwrite(path, "");
  EXPECT_EQ(read(), Code::kDataLoss);
  fs_.Overwrite(path, Content(PathOf(older_, "manifest.json")));
  EXPECT_EQ(read(), Code::kDataLoss);  // of another checkpoint
  ASSERT_TRUE(fs_.Unlink(path).ok());
  EXPECT_EQ(read(), Code::kNotFound);
  EXPECT_EQ(ReadManifest(fs_, "/c", "../x").status().code(), Code::kInvalidArgument);
}

// A disk that cannot read (EIO) has lost the data; one that is not reached says so as it is.
TEST_F(Damage, ByErrorsOfTheDisk) {
  FaultyFileSystem faulty(fs_);
  faulty.Set(FaultyFileSystem::Fault::kNone, 0, {});
  ASSERT_TRUE(LoadAndCompare(faulty, "/c", record_, state_, 1).ok());
  const std::int64_t calls = faulty.calls();
  ASSERT_GT(calls, 6);
  for (std::int64_t k = 1; k <= calls; ++k) {
    faulty.Set(FaultyFileSystem::Fault::kFail, k, Internal("Input/output error"));
    EXPECT_EQ(LoadAndCompare(faulty, "/c", record_, state_, 1).code(), Code::kDataLoss);
    faulty.Set(FaultyFileSystem::Fault::kFail, k, ResourceExhausted("Too many open files"));
    EXPECT_EQ(LoadAndCompare(faulty, "/c", record_, state_, 1).code(), Code::kResourceExhausted);
  }
  for (std::int64_t k = 1; k <= 3; ++k) {
    faulty.Set(FaultyFileSystem::Fault::kFail, k, Internal("Input/output error"));
    EXPECT_EQ(ReadManifest(faulty, "/c", record_.directory).status().code(), Code::kDataLoss);
  }
}

}  // namespace
}  // namespace muster::checkpoint
