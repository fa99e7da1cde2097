// The real file system.
#pragma once

#include <fcntl.h>
#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"

namespace muster::checkpoint {

// The system calls that may be cut short or interrupted, so that tests can do both to them. Each
// returns what the call of the same name returns, and sets errno.
class SystemCalls {
 public:
  virtual ~SystemCalls() = default;
  virtual int Open(const char* path, int flags, mode_t mode);
  virtual ssize_t PWrite(int descriptor, const void* bytes, std::size_t count, off_t offset);
  virtual ssize_t PRead(int descriptor, void* bytes, std::size_t count, off_t offset);
  virtual int FDataSync(int descriptor);
  virtual int FSync(int descriptor);
  virtual int FTruncate(int descriptor, off_t bytes);
  // fcntl with F_SETFL.
  virtual int SetFlags(int descriptor, int flags);
  virtual int Close(int descriptor);
};

// Reads and writes in pieces of at most 64 MiB until all is done, whatever the kernel cuts short
// (it never takes more than 2 GiB - 4 KiB in one call), and starts interrupted calls again.
// Descriptors are close-on-exec; new files get mode 0666 and directories 0777, less the umask.
//
// Files are written around the page cache (O_DIRECT) until a call is not aligned or the file system
// refuses; from then on they are written through it, for good, with write-back begun early. Aligned
// reads go around the page cache, others through it.
class PosixFileSystem : public FileSystem {
 public:
  PosixFileSystem();
  // `calls` must outlive this and its files.
  explicit PosixFileSystem(SystemCalls& calls) : calls_(calls) {}

  [[nodiscard]] Result<std::unique_ptr<WritableFile>> CreateExclusively(
      const std::string& path) override;
  [[nodiscard]] Result<std::unique_ptr<ReadableFile>> OpenForReading(
      const std::string& path) override;
  Status SyncDirectory(const std::string& path) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Status MakeDirectory(const std::string& path) override;
  Status Unlink(const std::string& path) override;
  Status RemoveDirectory(const std::string& path) override;
  [[nodiscard]] Result<std::vector<std::string>> List(const std::string& path) override;
  [[nodiscard]] Result<std::int64_t> FreeBytes(const std::string& path) override;

 private:
  SystemCalls& calls_;
};

}  // namespace muster::checkpoint
