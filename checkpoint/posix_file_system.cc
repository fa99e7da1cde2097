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

#include "checkpoint/posix_file.h"

namespace muster::checkpoint {
namespace {

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
int SystemCalls::FTruncate(int descriptor, off_t bytes) { return ftruncate(descriptor, bytes); }
int SystemCalls::SetFlags(int descriptor, int flags) { return fcntl(descriptor, F_SETFL, flags); }
int SystemCalls::Close(int descriptor) { return close(descriptor); }

PosixFileSystem::PosixFileSystem() : calls_(RealCalls()) {}

Result<std::unique_ptr<WritableFile>> PosixFileSystem::CreateExclusively(const std::string& path) {
  const int number = RetryInterrupted(
      [&] { return calls_.Open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
  if (number < 0) return PathError(errno, "create", path);
  return MakeWritableFile(calls_, number, path);
}

Result<std::unique_ptr<ReadableFile>> PosixFileSystem::OpenForReading(const std::string& path) {
  const int number =
      RetryInterrupted([&] { return calls_.Open(path.c_str(), O_RDONLY | O_CLOEXEC, 0); });
  if (number < 0) return PathError(errno, "open", path);
  return MakeReadableFile(calls_, number, path);
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
