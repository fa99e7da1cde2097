#include "checkpoint/posix_file_system.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/aligned_buffer.h"
#include "checkpoint/format.h"
#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "protocol/prng.h"
#include "tests/checkpoint/support.h"

namespace muster::checkpoint {
namespace {

// S20: every call may be interrupted, reads and writes are cut short at random.
class RestlessCalls : public SystemCalls {
 public:
  int Open(const char* path, int flags, mode_t mode) override {
    return Interrupted() ? -1 : SystemCalls::Open(path, flags, mode);
  }
  ssize_t PWrite(int descriptor, const void* bytes, std::size_t count, off_t offset) override {
    return Interrupted() ? -1 : SystemCalls::PWrite(descriptor, bytes, Short(count), offset);
  }
  ssize_t PRead(int descriptor, void* bytes, std::size_t count, off_t offset) override {
    return Interrupted() ? -1 : SystemCalls::PRead(descriptor, bytes, Short(count), offset);
  }
  int FDataSync(int descriptor) override {
    return Interrupted() ? -1 : SystemCalls::FDataSync(descriptor);
  }
  int FSync(int descriptor) override { return Interrupted() ? -1 : SystemCalls::FSync(descriptor); }
  int FTruncate(int descriptor, off_t bytes) override {
    return Interrupted() ? -1 : SystemCalls::FTruncate(descriptor, bytes);
  }

 private:
  bool Interrupted() {
    if (!prng_.Chance(1, 3)) return false;
    errno = EINTR;
    return true;
  }
  std::size_t Short(std::size_t count) {
    return std::min<std::size_t>(count, 1 + prng_.Below(count < 5000 ? 7 : 4096));
  }
  Prng prng_{3};
};

TEST(PosixFileSystem, FinishesWhatIsInterruptedOrCutShort) {
  RestlessCalls calls;
  PosixFileSystem fs(calls);
  const TemporaryDirectory root;
  const State state = MakeState(VariedTensors(), 1);
  ASSERT_TRUE(CheckRoot(fs, root.path()).ok());
  const Result<CheckpointRecord> record = Save(fs, root.path(), state, Key(1, 1), 3);
  ASSERT_TRUE(record.ok()) << record.status().ToString();
  PosixFileSystem undisturbed;
  EXPECT_TRUE(LoadAndCompare(undisturbed, root.path(), *record, state, 2).ok());
  const Status status = LoadAndCompare(fs, root.path(), *record, state, 2);
  EXPECT_TRUE(status.ok()) << status.ToString();
}

// The kernel takes at most 2 GiB - 4 KiB at once; pieces are far below that, around the page cache
// and through it.
TEST(PosixFileSystem, WritesInPieces) {
  class Watched : public SystemCalls {
   public:
    ssize_t PWrite(int descriptor, const void* bytes, std::size_t count, off_t offset) override {
      largest = std::max(largest, count);
      return SystemCalls::PWrite(descriptor, bytes, count, offset);
    }
    std::size_t largest = 0;
  };
  const TemporaryDirectory root;
  const std::string path = JoinPath(root.path(), "large");
  AlignedBuffer bytes;
  ASSERT_TRUE(bytes.Resize((std::int64_t{64} << 20U) + 8192).ok());
  for (const std::int64_t offset : {0, 5}) {
    Watched calls;
    PosixFileSystem fs(calls);
    auto file = fs.CreateExclusively(path);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE((*file)->WriteAt(offset, bytes.span()).ok());
    ASSERT_TRUE((*file)->Close().ok());
    EXPECT_LE(calls.largest, std::size_t{64} << 20U);
    EXPECT_GE(calls.largest, std::size_t{8} << 20U);
    EXPECT_EQ(static_cast<std::int64_t>(std::filesystem::file_size(path)), bytes.size() + offset);
    ASSERT_TRUE(fs.Unlink(path).ok());
  }
}

// L16: offsets beyond 2^32, in a sparse file.
TEST(PosixFileSystem, OffsetsBeyondFourGigabytes) {
  PosixFileSystem fs;
  const TemporaryDirectory root;
  const std::string path = JoinPath(root.path(), "sparse");
  constexpr std::int64_t kOffset = (std::int64_t{1} << 33U) + 3;
  auto writing = fs.CreateExclusively(path);
  ASSERT_TRUE(writing.ok());
  const Bytes bytes = {std::byte{1}, std::byte{2}};
  ASSERT_TRUE((*writing)->WriteAt(kOffset, bytes).ok());
  ASSERT_TRUE((*writing)->Sync().ok());
  ASSERT_TRUE((*writing)->Close().ok());
  auto reading = fs.OpenForReading(path);
  ASSERT_TRUE(reading.ok());
  EXPECT_EQ(*(*reading)->Size(), kOffset + 2);
  Bytes read(2);
  ASSERT_TRUE((*reading)->ReadAt(kOffset, read).ok());
  EXPECT_EQ(read, bytes);
  EXPECT_EQ((*reading)->ReadAt(kOffset + 1, read).code(), Code::kDataLoss);
}

// One chosen system call fails with one errno.
class FailingCalls : public SystemCalls {
 public:
  FailingCalls(int at, int error_number) : at_(at), error_number_(error_number) {}
  int Open(const char* path, int flags, mode_t mode) override {
    return Fails() ? -1 : SystemCalls::Open(path, flags, mode);
  }
  ssize_t PWrite(int descriptor, const void* bytes, std::size_t count, off_t offset) override {
    return Fails() ? -1 : SystemCalls::PWrite(descriptor, bytes, count, offset);
  }
  int FDataSync(int descriptor) override {
    return Fails() ? -1 : SystemCalls::FDataSync(descriptor);
  }
  int FSync(int descriptor) override { return Fails() ? -1 : SystemCalls::FSync(descriptor); }
  int FTruncate(int descriptor, off_t bytes) override {
    return Fails() ? -1 : SystemCalls::FTruncate(descriptor, bytes);
  }
  int Close(int descriptor) override {
    // It frees the descriptor whatever it says.
    const int result = SystemCalls::Close(descriptor);
    return Fails() ? -1 : result;
  }
  [[nodiscard]] int count() const { return count_; }

 private:
  bool Fails() {
    if (++count_ != at_) return false;
    errno = error_number_;
    return true;
  }
  int at_;
  int error_number_;
  int count_ = 0;
};

// S03: ENOSPC, EDQUOT, EIO and EROFS at each system call of a save. Those that matter make it fail
// with the fitting code and a path; either way the next save works.
TEST(PosixFileSystem, ErrnoAtEveryCall) {
  const State state = MakeState({{"a", DType::kFloat32, {5}, 0}}, 1);
  const std::pair<int, Code> errors[] = {{ENOSPC, Code::kResourceExhausted},
                                         {EDQUOT, Code::kResourceExhausted},
                                         {EIO, Code::kInternal},
                                         {EROFS, Code::kPermissionDenied}};
  for (const auto& [error_number, code] : errors) {
    int failed = 0;
    for (int k = 1;; ++k) {
      const TemporaryDirectory root;
      FailingCalls calls(k, error_number);
      PosixFileSystem failing(calls);
      const auto record = Save(failing, root.path(), state, Key(1, 1), 1);
      if (calls.count() < k) break;
      if (!record.ok()) {
        ++failed;
        EXPECT_EQ(record.status().code(), code) << k;
        EXPECT_NE(record.status().message().find(root.path()), std::string::npos)
            << record.status().message();
      }
      PosixFileSystem fs;
      const auto again = Save(fs, root.path(), state, Key(1, 1), 1);
      ASSERT_TRUE(again.ok()) << again.status().ToString();
      EXPECT_TRUE(LoadAndCompare(fs, root.path(), *again, state, 1).ok());
    }
    EXPECT_GT(failed, 10);
  }
}

TEST(PosixFileSystem, SaysWhatAndWhere) {
  PosixFileSystem fs;
  const TemporaryDirectory root;
  const std::string missing = JoinPath(root.path(), "missing");
  const std::string file = JoinPath(root.path(), "file");
  ASSERT_TRUE(fs.CreateExclusively(file).ok());
  const auto expect = [](const Status& status, Code code, const std::string& path) {
    EXPECT_EQ(status.code(), code) << status.ToString();
    EXPECT_NE(status.message().find(path), std::string::npos) << status.ToString();
  };
  expect(fs.CreateExclusively(file).status(), Code::kAlreadyExists, file);
  expect(fs.CreateExclusively(missing + "/x").status(), Code::kNotFound, missing);
  expect(fs.OpenForReading(missing).status(), Code::kNotFound, missing);
  expect(fs.SyncDirectory(missing), Code::kNotFound, missing);
  expect(fs.SyncDirectory(file), Code::kNotFound, file);
  expect(fs.Rename(missing, file), Code::kNotFound, missing);
  expect(fs.MakeDirectory(file), Code::kAlreadyExists, file);
  expect(fs.MakeDirectory(missing + "/x"), Code::kNotFound, missing);
  expect(fs.Unlink(missing), Code::kNotFound, missing);
  expect(fs.RemoveDirectory(missing), Code::kNotFound, missing);
  expect(fs.List(missing).status(), Code::kNotFound, missing);
  expect(fs.FreeBytes(missing).status(), Code::kNotFound, missing);
  EXPECT_GT(*fs.FreeBytes(root.path()), 0);
  EXPECT_EQ(*fs.List(root.path()), std::vector<std::string>{"file"});
  EXPECT_EQ(ReadWhole(fs, file, 0).value(), "");
  WriteFileBytes(file, "12345");
  EXPECT_EQ(ReadWhole(fs, file, 5).value(), "12345");
  EXPECT_EQ(ReadWhole(fs, file, 4).status().code(), Code::kDataLoss);
}

}  // namespace
}  // namespace muster::checkpoint
