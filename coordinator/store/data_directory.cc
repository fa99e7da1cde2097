#include "coordinator/store/data_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

namespace muster::store {
namespace {

// The process that holds the lock; 0 when it is unknown, or this one.
pid_t LockHolder(const std::string& directory) {
  const int file = ::open((directory + "/LOCK").c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  const bool found = ::fcntl(file, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  // Closing gives up this process's locks on the file. There is none: somebody else holds it, or
  // the caller would not ask.
  ::close(file);
  return found ? lock.l_pid : 0;
}

Status MakeDirectory(const std::string& directory) {
  if (::mkdir(directory.c_str(), 0755) == 0 || errno == EEXIST) return {};
  if (errno == ENOENT) {
    return NotFound(fmt::format(
        "data directory {} cannot be created: its parent does not exist: create that, or choose "
        "another --data-dir",
        directory));
  }
  const Status status =
      FromErrno(errno, fmt::format("data directory {} cannot be created", directory));
  return {status.code(), status.message() + ": choose another --data-dir"};
}

// Tables or logs without the file that names them are a damaged database. (A crash during the
// creation leaves neither: both come after that file.)
Status CheckHead(const std::string& directory) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::exists(directory + "/CURRENT", error)) return {};
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const fs::path name = it->path().filename();
    if (name.extension() == ".sst" || name.extension() == ".log") {
      return Damaged(directory, fmt::format("it holds {} but no CURRENT", name.string()));
    }
  }
  if (!error) return {};
  return FromErrno(error.value(), fmt::format("data directory {} cannot be listed", directory));
}

}  // namespace

Status PrepareDirectory(const std::string& directory) {
  struct stat info {};
  if (::stat(directory.c_str(), &info) != 0) {
    if (errno != ENOENT) {
      return FromErrno(errno, fmt::format("data directory {} cannot be examined", directory));
    }
    MUSTER_RETURN_IF_ERROR(MakeDirectory(directory));
  } else if (!S_ISDIR(info.st_mode)) {
    return FailedPrecondition(
        fmt::format("data directory {} is not a directory: choose another --data-dir", directory));
  }
  if (::access(directory.c_str(), R_OK | W_OK | X_OK) != 0) {
    const Status status =
        FromErrno(errno, fmt::format("data directory {} is not writable", directory));
    return {status.code(), status.message() +
                               ": give this user the right to write there, or choose another "
                               "--data-dir"};
  }
  return CheckHead(directory);
}

Status InUse(const std::string& directory, bool by_this_process) {
  std::string holder = "this process";
  if (!by_this_process) {
    const pid_t pid = LockHolder(directory);
    holder = pid > 0 ? fmt::format("process {}", pid) : "its process is not visible from here";
  }
  return Unavailable(
      fmt::format("data directory {} is in use by another musterd ({}): stop it or choose another "
                  "--data-dir",
                  directory, holder));
}

Status Full(const std::string& directory) {
  return ResourceExhausted(fmt::format(
      "index volume full: {}: free space there, and what waits is stored by itself", directory));
}

Status Damaged(const std::string& directory, std::string_view why) {
  return DataLoss(fmt::format(
      "data directory {} is damaged ({}): restore it from a copy, or start with an empty "
      "--data-dir, to which running workers attach by themselves",
      directory, why));
}

}  // namespace muster::store
