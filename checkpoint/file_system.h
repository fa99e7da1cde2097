// The few things that checkpoints ask of a file system, so that tests can let each of them fail,
// and a power cut forget what was not synced. posix_file_system.h is the real one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "protocol/status.h"

namespace muster::checkpoint {

// Offsets, lengths and addresses that are multiples of this go around the page cache, where the
// file system can do that. Others work as well, only slower.
inline constexpr std::int64_t kDirectAlignment = 4096;

// The next multiple of kDirectAlignment, `bytes` itself when it is one. REQUIRES: it fits.
[[nodiscard]] constexpr std::int64_t AlignUp(std::int64_t bytes) {
  return (bytes + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
}

// A file being written by its only owner. Closed, if need be, by the destructor. WriteAt may be
// called by several threads at once for ranges that do not overlap; everything else is called by
// one, while no other call runs.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // Writes all of `bytes` at `offset` (bytes from the start; beyond the end leaves a hole of
  // zeros). `bytes` must not change meanwhile. After an error any part may have been written.
  virtual Status WriteAt(std::int64_t offset, std::span<const std::byte> bytes) = 0;
  // Makes the file exactly `bytes` long: cuts off what is beyond, or adds zeros.
  virtual Status SetSize(std::int64_t bytes) = 0;
  // Blocks until content and size are durable. After an error the file must be given up: the kernel
  // drops dirty pages that it failed to write, and would report success to a second call.
  virtual Status Sync() = 0;
  // Network file systems report late write errors here.
  virtual Status Close() = 0;
};

// A file open for reading. Closed by the destructor. Thread-safe.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  [[nodiscard]] virtual Result<std::int64_t> Size() const = 0;
  // Fills all of `into` from `offset`; kDataLoss when the file ends before that. A tail that is no
  // multiple of kDirectAlignment does not keep the rest from going around the page cache.
  virtual Status ReadAt(std::int64_t offset, std::span<std::byte> into) = 0;
};

// All calls block. Paths are as given to the operating system. Every error names the path and,
// where the operator can do something about it, the remedy. Thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Creates a file that did not exist; kAlreadyExists when it did.
  [[nodiscard]] virtual Result<std::unique_ptr<WritableFile>> CreateExclusively(
      const std::string& path) = 0;
  [[nodiscard]] virtual Result<std::unique_ptr<ReadableFile>> OpenForReading(
      const std::string& path) = 0;
  // Makes creations, renames and removals in the directory durable.
  virtual Status SyncDirectory(const std::string& path) = 0;
  // Replaces `to`, atomically, if it exists.
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  // The parent must exist; kAlreadyExists when something has that name.
  virtual Status MakeDirectory(const std::string& path) = 0;
  virtual Status Unlink(const std::string& path) = 0;
  virtual Status RemoveDirectory(const std::string& path) = 0;
  // Names in the directory, sorted, without "." and "..".
  [[nodiscard]] virtual Result<std::vector<std::string>> List(const std::string& path) = 0;
  // Bytes that this user may still write on the file system that holds `path`.
  [[nodiscard]] virtual Result<std::int64_t> FreeBytes(const std::string& path) = 0;
};

// "directory/name".
[[nodiscard]] std::string JoinPath(const std::string& directory, const std::string& name);
// The directory that holds `path`, and the name of `path` in it; slashes at the end do not count.
[[nodiscard]] std::string ParentOf(std::string path);
[[nodiscard]] std::string BaseNameOf(std::string path);

// Reads a whole file of at most `limit` bytes; a longer one is kDataLoss.
[[nodiscard]] Result<std::string> ReadWhole(FileSystem& fs, const std::string& path,
                                            std::int64_t limit);

}  // namespace muster::checkpoint
