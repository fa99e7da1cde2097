#include "checkpoint/posix_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <utility>

namespace muster::checkpoint {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{64} << 20U;
// Through the page cache: write-back of so much is begun while the next piece is copied, so that
// the sync at the end does not find everything still to be done.
constexpr std::size_t kWindowBytes = std::size_t{8} << 20U;

// What an operator can do about it; empty when nothing general can be said.
const char* RemedyOf(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT: return "; free space there, or keep fewer checkpoints";
    case EROFS: return "; mount it read-write, or name another checkpoint directory";
    case EACCES:
    case EPERM: return "; make it writable for this user, or name another checkpoint directory";
    case EMFILE:
    case ENFILE: return "; raise the limit of open files";
    default: return "";
  }
}

bool Aligned(std::int64_t offset, const std::byte* data, std::size_t count) {
  constexpr auto kAlignment = static_cast<std::uint64_t>(kDirectAlignment);
  return (static_cast<std::uint64_t>(offset) | reinterpret_cast<std::uintptr_t>(data) | count) %
             kAlignment ==
         0;
}

std::size_t AlignDown(std::size_t count) { return count - count % kDirectAlignment; }

// Does the system say that it cannot do this around the page cache? EFAULT: from this memory, which
// belongs to the driver of a device; the page cache can.
bool RefusesDirect(int error_number) {
  return error_number == EINVAL || error_number == EOPNOTSUPP || error_number == EFAULT;
}

class PosixWritableFile : public WritableFile {
 public:
  // The flag is set after the file was made: when it is refused in the open call itself, some file
  // systems have made the file all the same.
  PosixWritableFile(SystemCalls& calls, int number, std::string path)
      : descriptor_(calls, number, std::move(path)),
        direct_(calls.SetFlags(number, O_WRONLY | O_DIRECT) == 0) {}

  Status WriteAt(std::int64_t offset, std::span<const std::byte> bytes) override {
    if (direct_ && Aligned(offset, bytes.data(), bytes.size())) {
      MUSTER_RETURN_IF_ERROR(WriteDirectly(&offset, &bytes));
      if (bytes.empty()) return {};
    }
    if (direct_) MUSTER_RETURN_IF_ERROR(GoBuffered());
    return WriteBuffered(offset, bytes);
  }

  Status SetSize(std::int64_t bytes) override {
    const int result = RetryInterrupted(
        [&] { return descriptor_.calls().FTruncate(descriptor_.number(), bytes); });
    return result == 0 ? Status() : descriptor_.Error("set the size of");
  }

  Status Sync() override {
    // An interrupted call has reported nothing and consumed no error, so it may start again.
    const int result =
        RetryInterrupted([&] { return descriptor_.calls().FDataSync(descriptor_.number()); });
    return result == 0 ? Status() : descriptor_.Error("sync");
  }

  Status Close() override { return descriptor_.Close(); }

 private:
  ssize_t Write(std::span<const std::byte> bytes, std::int64_t offset) {
    return RetryInterrupted([&] {
      return descriptor_.calls().PWrite(descriptor_.number(), bytes.data(), bytes.size(), offset);
    });
  }

  // Writes what can be written around the page cache and takes it off the arguments. What is left
  // is aligned, and the file system does not take it that way.
  Status WriteDirectly(std::int64_t* offset, std::span<const std::byte>* bytes) {
    while (!bytes->empty()) {
      const ssize_t written = Write(bytes->first(std::min(bytes->size(), kPieceBytes)), *offset);
      if (written < 0 && RefusesDirect(errno)) return {};
      if (written < 0) return descriptor_.Error("write");
      // The end of an odd count is written again, so that the rest stays aligned.
      const std::size_t done = AlignDown(static_cast<std::size_t>(written));
      if (done == 0) return {};
      wrote_directly_ = true;
      *bytes = bytes->subspan(done);
      *offset += static_cast<std::int64_t>(done);
    }
    return {};
  }

  // Through the page cache from now on. What was written around it is synced first, so that no
  // page of the cache can be older than what is on the disk.
  Status GoBuffered() {
    const std::lock_guard lock(mutex_);
    if (!direct_) return {};
    if (wrote_directly_) MUSTER_RETURN_IF_ERROR(Sync());
    if (descriptor_.calls().SetFlags(descriptor_.number(), O_WRONLY) != 0) {
      return descriptor_.Error("change the mode of");
    }
    direct_ = false;
    return {};
  }

  Status WriteBuffered(std::int64_t offset, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = Write(bytes.first(std::min(bytes.size(), kWindowBytes)), offset);
      if (written < 0) return descriptor_.Error("write");
      if (written == 0) return PathError(EIO, "write", descriptor_.path());
      // Only begins it, and so consumes no error: the sync at the end reports them.
      static_cast<void>(
          sync_file_range(descriptor_.number(), offset, written, SYNC_FILE_RANGE_WRITE));
      bytes = bytes.subspan(static_cast<std::size_t>(written));
      offset += written;
    }
    return {};
  }

  Descriptor descriptor_;
  std::mutex mutex_;  // held while the mode changes
  std::atomic<bool> direct_;
  std::atomic<bool> wrote_directly_ = false;
};

class PosixReadableFile : public ReadableFile {
 public:
  PosixReadableFile(SystemCalls& calls, int number, std::string path)
      : descriptor_(calls, number, std::move(path)) {}

  [[nodiscard]] Result<std::int64_t> Size() const override {
    struct stat info {};
    if (fstat(descriptor_.number(), &info) != 0) return descriptor_.Error("get the size of");
    return std::int64_t{info.st_size};
  }

  Status ReadAt(std::int64_t offset, std::span<std::byte> into) override {
    const std::size_t aligned = AlignDown(into.size());
    if (aligned > 0 && Aligned(offset, into.data(), aligned)) {
      const Result<std::size_t> got = ReadDirectly(offset, into.first(aligned));
      if (!got.ok()) return got.status();
      offset += static_cast<std::int64_t>(*got);
      into = into.subspan(*got);
    }
    return ReadBuffered(offset, into);
  }

 private:
  ssize_t Read(int number, std::span<std::byte> into, std::int64_t offset) {
    return RetryInterrupted([&] {
      return descriptor_.calls().PRead(number, into.data(), std::min(into.size(), kPieceBytes),
                                       offset);
    });
  }

  // Reads around the page cache as long as that works; returns how much that was, a multiple of
  // kDirectAlignment.
  Result<std::size_t> ReadDirectly(std::int64_t offset, std::span<std::byte> into) {
    std::call_once(opened_, [this] { OpenDirectly(); });
    std::size_t total = 0;
    while (direct_usable_ && total < into.size()) {
      const ssize_t got =
          Read(direct_->number(), into.subspan(total), offset + static_cast<std::int64_t>(total));
      if (got < 0 && !RefusesDirect(errno)) return descriptor_.Error("read");
      if (got < 0) direct_usable_ = false;
      const std::size_t done = got < 0 ? 0 : AlignDown(static_cast<std::size_t>(got));
      if (done == 0) break;
      total += done;
    }
    return total;
  }

  Status ReadBuffered(std::int64_t offset, std::span<std::byte> into) {
    while (!into.empty()) {
      const ssize_t got = Read(descriptor_.number(), into, offset);
      if (got < 0) return descriptor_.Error("read");
      if (got == 0) {
        return DataLoss(fmt::format("{}: ends at byte {}, {} more were expected",
                                    descriptor_.path(), offset, into.size()));
      }
      into = into.subspan(static_cast<std::size_t>(got));
      offset += got;
    }
    return {};
  }

  // A descriptor of its own, since the flag would hold for all reads. Another file may have the
  // name by now; then there is none.
  void OpenDirectly() {
    SystemCalls& calls = descriptor_.calls();
    const int number = RetryInterrupted(
        [&] { return calls.Open(descriptor_.path().c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT, 0); });
    direct_.emplace(calls, number, descriptor_.path());
    struct stat mine {};
    struct stat opened {};
    direct_usable_ = number >= 0 && fstat(descriptor_.number(), &mine) == 0 &&
                     fstat(number, &opened) == 0 && mine.st_dev == opened.st_dev &&
                     mine.st_ino == opened.st_ino;
  }

  Descriptor descriptor_;
  std::once_flag opened_;
  std::optional<Descriptor> direct_;  // constant once opened_
  std::atomic<bool> direct_usable_ = false;
};

}  // namespace

Status PathError(int error_number, const char* action, const std::string& path) {
  const Status status = FromErrno(error_number, fmt::format("cannot {} {}", action, path));
  return {status.code(), status.message() + RemedyOf(error_number)};
}

Descriptor::Descriptor(SystemCalls& calls, int number, std::string path)
    : calls_(calls), number_(number), path_(std::move(path)) {}

Descriptor::~Descriptor() {
  if (number_ >= 0) calls_.Close(number_);
}

Status Descriptor::Close() {
  const int number = std::exchange(number_, -1);
  if (number < 0 || calls_.Close(number) == 0 || errno == EINTR) return {};
  return Error("close");
}

std::unique_ptr<WritableFile> MakeWritableFile(SystemCalls& calls, int number,
                                               const std::string& path) {
  return std::make_unique<PosixWritableFile>(calls, number, path);
}

std::unique_ptr<ReadableFile> MakeReadableFile(SystemCalls& calls, int number,
                                               const std::string& path) {
  return std::make_unique<PosixReadableFile>(calls, number, path);
}

}  // namespace muster::checkpoint
