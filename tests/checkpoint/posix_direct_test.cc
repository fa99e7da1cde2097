// Writing and reading around the page cache, and every way back into it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>

#include "checkpoint/aligned_buffer.h"
#include "checkpoint/posix_file_system.h"
#include "protocol/prng.h"
#include "tests/checkpoint/support.h"

namespace muster::checkpoint {
namespace {

constexpr std::int64_t kPage = kDirectAlignment;

// Acts as a file system that can do O_DIRECT, whatever lies below: the flag is seen and not passed
// on, calls that are not aligned are refused with EINVAL, and counts can be cut short.
class DirectCalls : public SystemCalls {
 public:
  int refuse_flag = 0;       // errno for setting the flag
  int refuse_write = 0;      // errno for direct writes
  int refuse_read = 0;       // errno for direct reads
  std::size_t shortest = 0;  // direct calls say that they did so much less at random
  int direct_writes = 0;
  int buffered_writes = 0;
  int direct_reads = 0;
  int syncs = 0;

  int Open(const char* path, int flags, mode_t mode) override {
    if ((flags & O_DIRECT) != 0 && refuse_flag != 0) return Fail(refuse_flag);
    const int number = SystemCalls::Open(path, flags & ~O_DIRECT, mode);
    const std::lock_guard lock(mutex_);
    direct_[number] = (flags & O_DIRECT) != 0;
    return number;
  }
  int SetFlags(int descriptor, int flags) override {
    if ((flags & O_DIRECT) != 0 && refuse_flag != 0) return Fail(refuse_flag);
    const std::lock_guard lock(mutex_);
    direct_[descriptor] = (flags & O_DIRECT) != 0;
    return 0;
  }
  ssize_t PWrite(int descriptor, const void* bytes, std::size_t count, off_t offset) override {
    const std::lock_guard lock(mutex_);
    if (!direct_[descriptor]) {
      ++buffered_writes;
      return SystemCalls::PWrite(descriptor, bytes, count, offset);
    }
    if (refuse_write != 0 || !Aligned(bytes, count, offset)) return Fail(Refusal(refuse_write));
    ++direct_writes;
    return SystemCalls::PWrite(descriptor, bytes, Short(count), offset);
  }
  ssize_t PRead(int descriptor, void* bytes, std::size_t count, off_t offset) override {
    const std::lock_guard lock(mutex_);
    if (!direct_[descriptor]) return SystemCalls::PRead(descriptor, bytes, count, offset);
    if (refuse_read != 0 || !Aligned(bytes, count, offset)) return Fail(Refusal(refuse_read));
    ++direct_reads;
    return SystemCalls::PRead(descriptor, bytes, Short(count), offset);
  }
  int FDataSync(int descriptor) override {
    ++syncs;
    return SystemCalls::FDataSync(descriptor);
  }

 private:
  static int Fail(int error_number) {
    errno = error_number;
    return -1;
  }
  static int Refusal(int chosen) { return chosen != 0 ? chosen : EINVAL; }
  static bool Aligned(const void* bytes, std::size_t count, off_t offset) {
    return (reinterpret_cast<std::uintptr_t>(bytes) | count | static_cast<std::size_t>(offset)) %
               kPage ==
           0;
  }
  std::size_t Short(std::size_t count) {
    return shortest == 0 ? count : count - std::min(count - 1, prng_.Below(shortest));
  }

  std::mutex mutex_;
  std::map<int, bool> direct_;
  Prng prng_{7};
};

class PosixDirect : public testing::Test {
 protected:
  PosixDirect() : path_(JoinPath(root_.path(), "file")) {
    EXPECT_TRUE(bytes_.Resize(16 * kPage).ok());
    Prng prng(5);
    for (std::byte& byte : bytes_.span()) byte = static_cast<std::byte>(prng.Next());
  }
  [[nodiscard]] std::span<const std::byte> Pages(std::int64_t first, std::int64_t count) const {
    return bytes_.span().subspan(static_cast<std::size_t>(first * kPage),
                                 static_cast<std::size_t>(count * kPage));
  }
  // Writes all pages, those of the second half first.
  void WriteAll() {
    PosixFileSystem fs(calls_);
    auto file = fs.CreateExclusively(path_);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE((*file)->WriteAt(8 * kPage, Pages(8, 8)).ok());
    ASSERT_TRUE((*file)->WriteAt(0, Pages(0, 8)).ok());
    ASSERT_TRUE((*file)->Sync().ok());
    ASSERT_TRUE((*file)->Close().ok());
    ExpectContent(bytes_.size());
  }
  void ExpectContent(std::int64_t bytes) const {
    const std::string content = ReadFileBytes(path_);
    ASSERT_EQ(std::ssize(content), bytes);
    EXPECT_TRUE(
        std::ranges::equal(std::as_bytes(std::span(content)), bytes_.span().first(content.size())));
  }
  void ExpectReads(PosixFileSystem& fs, std::int64_t offset, std::int64_t bytes) {
    const auto file = fs.OpenForReading(path_);
    ASSERT_TRUE(file.ok());
    AlignedBuffer into;
    ASSERT_TRUE(into.Resize(bytes).ok());
    ASSERT_TRUE((*file)->ReadAt(offset, into.span()).ok());
    EXPECT_TRUE(std::ranges::equal(
        into.span(),
        bytes_.span().subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes))));
  }

  TemporaryDirectory root_;
  std::string path_;
  AlignedBuffer bytes_;
  DirectCalls calls_;
};

TEST_F(PosixDirect, AlignedWritesGoAroundThePageCache) {
  WriteAll();
  EXPECT_EQ(calls_.direct_writes, 2);
  EXPECT_EQ(calls_.buffered_writes, 0);
  EXPECT_EQ(calls_.syncs, 1);
}

TEST_F(PosixDirect, FallsBackWhenTheFlagIsRefused) {
  for (const int refusal : {EINVAL, EOPNOTSUPP}) {
    calls_.refuse_flag = refusal;
    WriteAll();
    EXPECT_EQ(calls_.direct_writes, 0);
    ASSERT_TRUE(std::filesystem::remove(path_));
  }
  EXPECT_EQ(calls_.buffered_writes, 4);
}

TEST_F(PosixDirect, FallsBackWhenTheFirstWriteIsRefused) {
  for (const int refusal : {EINVAL, EOPNOTSUPP, EFAULT}) {
    calls_.refuse_write = refusal;
    WriteAll();
    EXPECT_EQ(calls_.direct_writes, 0);
    ASSERT_TRUE(std::filesystem::remove(path_));
  }
}

TEST_F(PosixDirect, OtherErrorsAreErrors) {
  PosixFileSystem fs(calls_);
  calls_.refuse_write = EIO;
  const auto file = fs.CreateExclusively(path_);
  EXPECT_EQ((*file)->WriteAt(0, Pages(0, 1)).code(), Code::kInternal);
  calls_.refuse_write = ENOSPC;
  EXPECT_EQ((*file)->WriteAt(0, Pages(0, 1)).code(), Code::kResourceExhausted);
  EXPECT_EQ(calls_.buffered_writes, 0);
}

// One call that is not aligned, in offset, address or length, and everything after it goes through
// the page cache; what was written around it is synced before.
TEST_F(PosixDirect, AnUnalignedCallEndsIt) {
  struct Case {
    std::int64_t offset;
    std::span<const std::byte> bytes;
  };
  const std::span<const std::byte> pages = Pages(8, 1);
  for (const Case& odd :
       {Case{8 * kPage, pages.first(17)}, Case{8 * kPage, pages.first(512)},
        Case{8 * kPage + 1, pages.subspan(1)}, Case{8 * kPage + 4, pages.subspan(4, 8)}}) {
    calls_.direct_writes = calls_.buffered_writes = calls_.syncs = 0;
    PosixFileSystem fs(calls_);
    auto file = fs.CreateExclusively(path_);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE((*file)->WriteAt(0, Pages(0, 8)).ok());
    ASSERT_TRUE((*file)->WriteAt(odd.offset, odd.bytes).ok());
    EXPECT_EQ(calls_.syncs, 1);
    ASSERT_TRUE((*file)->WriteAt(8 * kPage, Pages(8, 8)).ok());
    EXPECT_EQ(calls_.direct_writes, 1);
    EXPECT_EQ(calls_.buffered_writes, 2);
    ASSERT_TRUE((*file)->Close().ok());
    ExpectContent(bytes_.size());
    ASSERT_TRUE(std::filesystem::remove(path_));
  }
}

// S20: what is cut short at an odd place goes on aligned, or through the page cache.
TEST_F(PosixDirect, OddCountsOfDirectCalls) {
  for (const std::size_t shortest : {3U, 5000U, 60000U}) {
    calls_.shortest = shortest;
    calls_.direct_reads = 0;
    WriteAll();
    PosixFileSystem fs(calls_);
    ExpectReads(fs, 0, bytes_.size());
    ExpectReads(fs, 3 * kPage, 5 * kPage + 77);
    EXPECT_GT(calls_.direct_reads, 0);
    ASSERT_TRUE(std::filesystem::remove(path_));
  }
}

TEST_F(PosixDirect, SizeIsExact) {
  PosixFileSystem fs(calls_);
  auto file = fs.CreateExclusively(path_);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->SetSize(16 * kPage).ok());
  EXPECT_EQ(std::filesystem::file_size(path_), 16U * kPage);
  ASSERT_TRUE((*file)->WriteAt(0, Pages(0, 16)).ok());
  ASSERT_TRUE((*file)->SetSize(11 * kPage + 5).ok());
  ASSERT_TRUE((*file)->Sync().ok());
  ASSERT_TRUE((*file)->Close().ok());
  ExpectContent(11 * kPage + 5);
  // The tail comes through the page cache, and the file's end is still seen.
  ExpectReads(fs, 0, 11 * kPage + 5);
  EXPECT_EQ(calls_.direct_reads, 1);
  ExpectReads(fs, 11 * kPage, 5);
  AlignedBuffer into;
  ASSERT_TRUE(into.Resize(2 * kPage).ok());
  const auto reading = fs.OpenForReading(path_);
  EXPECT_EQ((*reading)->ReadAt(10 * kPage, into.span()).code(), Code::kDataLoss);
}

TEST_F(PosixDirect, ReadsFallBack) {
  WriteAll();
  PosixFileSystem fs(calls_);
  calls_.refuse_read = EINVAL;
  ExpectReads(fs, 0, 4 * kPage);
  calls_.refuse_read = EIO;
  AlignedBuffer into;
  ASSERT_TRUE(into.Resize(kPage).ok());
  EXPECT_EQ((*fs.OpenForReading(path_))->ReadAt(0, into.span()).code(), Code::kInternal);
  calls_.refuse_flag = EINVAL;
  ExpectReads(fs, 0, 4 * kPage);
  EXPECT_EQ(calls_.direct_reads, 0);
}

// Another file has taken the name: the open one is read all the same.
TEST_F(PosixDirect, ReadsTheFileThatWasOpened) {
  WriteAll();
  PosixFileSystem fs(calls_);
  const auto file = fs.OpenForReading(path_);
  std::filesystem::rename(path_, path_ + ".old");
  WriteFileBytes(path_, std::string(static_cast<std::size_t>(bytes_.size()), 'x'));
  AlignedBuffer into;
  ASSERT_TRUE(into.Resize(kPage).ok());
  ASSERT_TRUE((*file)->ReadAt(0, into.span()).ok());
  EXPECT_TRUE(std::ranges::equal(into.span(), Pages(0, 1)));
}

// S20: the kernel takes 2 GiB - 4 KiB of one call at most. Here it takes everything, and what it
// was given is noted instead of written.
TEST_F(PosixDirect, MoreThanTwoGigabytesInOneCall) {
  class Noted : public SystemCalls {
   public:
    ssize_t PWrite(int, const void* bytes, std::size_t count, off_t offset) override {
      const std::size_t taken = std::min<std::size_t>(count, 2147479552);
      EXPECT_EQ(offset, end);
      EXPECT_EQ(static_cast<const std::byte*>(bytes), begin + offset);
      end = offset + static_cast<off_t>(taken);
      return static_cast<ssize_t>(taken);
    }
    const std::byte* begin = nullptr;
    off_t end = 0;
  } calls;
  constexpr std::size_t kBytes = std::size_t{5} << 29U;
  void* memory =
      mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  calls.begin = static_cast<const std::byte*>(memory);
  PosixFileSystem fs(calls);
  const auto file = fs.CreateExclusively(path_);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE((*file)->WriteAt(0, {calls.begin, kBytes}).ok());
  EXPECT_EQ(static_cast<std::size_t>(calls.end), kBytes);
  munmap(memory, kBytes);
}

}  // namespace
}  // namespace muster::checkpoint
