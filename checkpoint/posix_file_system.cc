#include "checkpoint/posix_file_system.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <utility>

namespace muster::checkpoint {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{64} << 20U;

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

Status PathError(int error_number, const char* action, const std::string& path) {
  const Status status = FromErrno(error_number, fmt::format("cannot {} {}", action, path));
  return {status.code(), status.message() + RemedyOf(error_number)};
}

template <class Call>
auto RetryInterrupted(Call call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

// An open descriptor and what it belongs to.
class Descriptor {
 public:
  Descriptor(SystemCalls& calls, int number, std::string path)
      : calls_(calls), number_(number), path_(std::move(path)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) calls_.Close(number_);
  }
  // Linux frees the descriptor also when close fails, so it is never closed twice.
  Status Close() {
    const int number = std::exchange(number_, -1);
    if (number < 0 || calls_.Close(number) == 0 || errno == EINTR) return {};
    return PathError(errno, "close", path_);
  }
  [[nodiscard]] SystemCalls& calls() const { return calls_; }
  [[nodiscard]] int number() const { return number_; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  SystemCalls& calls_;
  int number_;
  std::string path_;
};

class PosixWritableFile : public WritableFile {
 public:
  PosixWritableFile(SystemCalls& calls, int number, std::string path)
      : descriptor_(calls, number, std::move(path)) {}

  Status WriteAt(std::int64_t offset, std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const std::size_t piece = std::min(bytes.size(), kPieceBytes);
      const ssize_t written = RetryInterrupted([&] {
        return descriptor_.calls().PWrite(descriptor_.number(), bytes.data(), piece, offset);
      });
      if (written < 0) return PathError(errno, "write", descriptor_.path());
      if (written == 0) return PathError(EIO, "write", descriptor_.path());
      bytes = bytes.subspan(static_cast<std::size_t>(written));
      offset += written;
    }
    return {};
  }

  Status Sync() override {
    // An interrupted call has reported nothing and consumed no error, so it may start again.
    const int result =
        RetryInterrupted([&] { return descriptor_.calls().FDataSync(descriptor_.number()); });
    return result == 0 ? Status() : PathError(errno, "sync", descriptor_.path());
  }

  Status Close() override { return descriptor_.Close(); }

 private:
  Descriptor descriptor_;
};

class PosixReadableFile : public ReadableFile {
 public:
  PosixReadableFile(SystemCalls& calls, int number, std::string path)
      : descriptor_(calls, number, std::move(path)) {}

  [[nodiscard]] Result<std::int64_t> Size() const override {
    struct stat info {};
    if (fstat(descriptor_.number(), &info) != 0) {
      return PathError(errno, "get the size of", descriptor_.path());
    }
    return std::int64_t{info.st_size};
  }

  Status ReadAt(std::int64_t offset, std::span<std::byte> into) override {
    while (!into.empty()) {
      const std::size_t piece = std::min(into.size(), kPieceBytes);
      const ssize_t got = RetryInterrupted([&] {
        return descriptor_.calls().PRead(descriptor_.number(), into.data(), piece, offset);
      });
      if (got < 0) return PathError(errno, "read", descriptor_.path());
      if (got == 0) {
        return DataLoss(fmt::format("{}: ends at byte {}, {} more were expected",
                                    descriptor_.path(), offset, into.size()));
      }
      into = into.subspan(static_cast<std::size_t>(got));
      offset += got;
    }
    return {};
  }

 private:
  Descriptor descriptor_;
};

SystemCalls& RealCalls() {
  static SystemCalls calls;
  return calls;
}

}  // namespace

int SystemCalls::Open(const char* path, int flags, mode_t mode) { return open(path, flags, mode); }
ssize_t SystemCalls::PWrite(int descriptor, const void* bytes, std::size_t count, off_t offset) {
  return pwrite(descriptor, bytes, count, offset);
}
ssize_t SystemCalls::PRead(int descriptor, void* bytes, std::size_t count, off_t offset) {
  return pread(descriptor, bytes, count, offset);
}
int SystemCalls::FDataSync(int descriptor) { return fdatasync(descriptor); }
int SystemCalls::FSync(int descriptor) { return fsync(descriptor); }
int SystemCalls::Close(int descriptor) { return close(descriptor); }

PosixFileSystem::PosixFileSystem() : calls_(RealCalls()) {}

Result<std::unique_ptr<WritableFile>> PosixFileSystem::CreateExclusively(const std::string& path) {
  const int number = RetryInterrupted(
      [&] { return calls_.Open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
  if (number < 0) return PathError(errno, "create", path);
  return std::unique_ptr<WritableFile>(std::make_unique<PosixWritableFile>(calls_, number, path));
}

Result<std::unique_ptr<ReadableFile>> PosixFileSystem::OpenForReading(const std::string& path) {
  const int number =
      RetryInterrupted([&] { return calls_.Open(path.c_str(), O_RDONLY | O_CLOEXEC, 0); });
  if (number < 0) return PathError(errno, "open", path);
  return std::unique_ptr<ReadableFile>(std::make_unique<PosixReadableFile>(calls_, number, path));
}

Status PosixFileSystem::SyncDirectory(const std::string& path) {
  const int number = RetryInterrupted(
      [&] { return calls_.Open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); });
  if (number < 0) return PathError(errno, "open directory", path);
  const Descriptor directory(calls_, number, path);
  if (RetryInterrupted([&] { return calls_.FSync(number); }) == 0) return {};
  // File systems that cannot sync a directory (some network ones) say EINVAL; they make entries
  // durable by themselves or not at all.
  if (errno == EINVAL) return {};
  return PathError(errno, "sync directory", path);
}

Status PosixFileSystem::Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) == 0) return {};
  return PathError(errno, "rename", from + " to " + to);
}

Status PosixFileSystem::MakeDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0777) == 0) return {};
  return PathError(errno, "create directory", path);
}

Status PosixFileSystem::Unlink(const std::string& path) {
  if (unlink(path.c_str()) == 0) return {};
  return PathError(errno, "remove", path);
}

Status PosixFileSystem::RemoveDirectory(const std::string& path) {
  if (rmdir(path.c_str()) == 0) return {};
  return PathError(errno, "remove directory", path);
}

Result<std::vector<std::string>> PosixFileSystem::List(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(path.c_str()), &closedir);
  if (directory == nullptr) return PathError(errno, "list", path);
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* entry = readdir(directory.get());
    if (entry == nullptr) break;
    const std::string name = static_cast<const char*>(entry->d_name);
    if (name != "." && name != "..") names.push_back(name);
  }
  if (errno != 0) return PathError(errno, "list", path);
  std::sort(names.begin(), names.end());
  return names;
}

Result<std::int64_t> PosixFileSystem::FreeBytes(const std::string& path) {
  struct statvfs info {};
  if (RetryInterrupted([&] { return statvfs(path.c_str(), &info); }) != 0) {
    return PathError(errno, "get the free space of", path);
  }
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(std::uint64_t{info.f_bavail}, std::uint64_t{info.f_frsize}, &bytes) ||
      bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return std::numeric_limits<std::int64_t>::max();
  }
  return static_cast<std::int64_t>(bytes);
}

}  // namespace muster::checkpoint
