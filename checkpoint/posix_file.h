// Open files of the real file system. Internal to posix_file_system.
#pragma once

#include <cerrno>
#include <memory>
#include <string>

#include "checkpoint/file_system.h"
#include "checkpoint/posix_file_system.h"
#include "protocol/status.h"

namespace muster::checkpoint {

// "cannot <action> <path>: <why>; <what to do about it>".
[[nodiscard]] Status PathError(int error_number, const char* action, const std::string& path);

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
  // Takes over `number`; negative for one that is not open. `calls` must outlive this.
  Descriptor(SystemCalls& calls, int number, std::string path);
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor();
  // Linux frees the descriptor also when close fails, so it is never closed twice.
  Status Close();
  // An error about it, with `errno`.
  [[nodiscard]] Status Error(const char* action) const { return PathError(errno, action, path_); }
  [[nodiscard]] SystemCalls& calls() const { return calls_; }
  [[nodiscard]] int number() const { return number_; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  SystemCalls& calls_;
  int number_;
  std::string path_;
};

// Take over the descriptor, which was opened for writing alone and for reading alone, without
// O_DIRECT. `calls` must outlive the file.
[[nodiscard]] std::unique_ptr<WritableFile> MakeWritableFile(SystemCalls& calls, int number,
                                                             const std::string& path);
[[nodiscard]] std::unique_ptr<ReadableFile> MakeReadableFile(SystemCalls& calls, int number,
                                                             const std::string& path);

}  // namespace muster::checkpoint
