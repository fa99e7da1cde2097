#include "tests/bench/raw_disk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <thread>

namespace muster::bench {
namespace {

// Calls `transfer(begin, count)` for pieces of [0, bytes) from all threads; the first errno, or 0.
int OverPieces(std::size_t bytes, const RawSetting& setting,
               const std::function<ssize_t(std::size_t, std::size_t)>& transfer) {
  const auto piece = static_cast<std::size_t>(setting.piece_bytes);
  std::atomic<std::size_t> next = 0;
  std::atomic<int> error = 0;
  const auto work = [&] {
    for (std::size_t begin = next.fetch_add(piece); begin < bytes && error == 0;
         begin = next.fetch_add(piece)) {
      const std::size_t count = std::min(piece, bytes - begin);
      const ssize_t done = transfer(begin, count);
      if (done != static_cast<ssize_t>(count)) error = done < 0 ? errno : EIO;
    }
  };
  std::vector<std::jthread> others;
  for (int i = 1; i < setting.threads; ++i) others.emplace_back(work);
  work();
  others.clear();
  return error;
}

}  // namespace

std::string RawSetting::ToString() const {
  return fmt::format("{} x {} MiB", threads, piece_bytes >> 20U);
}

std::vector<RawSetting> RawSettings() {
  std::vector<RawSetting> settings;
  for (const int threads : {1, 2, 4}) {
    for (const std::int64_t mib : {4, 16}) settings.push_back({threads, mib << 20U});
  }
  return settings;
}

Result<double> RawWrite(const std::string& path, std::span<const std::byte> bytes,
                        const RawSetting& setting) {
  const double begun = NowSeconds();
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0666);
  if (file < 0) return FromErrno(errno, "cannot create " + path + " with O_DIRECT");
  int error = OverPieces(bytes.size(), setting, [&](std::size_t begin, std::size_t count) {
    return pwrite(file, bytes.data() + begin, count, static_cast<off_t>(begin));
  });
  if (error == 0 && fdatasync(file) != 0) error = errno;
  close(file);
  if (error != 0) return FromErrno(error, "cannot write " + path);
  return NowSeconds() - begun;
}

Result<double> RawRead(const std::string& path, std::span<std::byte> bytes,
                       const RawSetting& setting) {
  const double begun = NowSeconds();
  const int file = open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (file < 0) return FromErrno(errno, "cannot open " + path + " with O_DIRECT");
  const int error = OverPieces(bytes.size(), setting, [&](std::size_t begin, std::size_t count) {
    return pread(file, bytes.data() + begin, count, static_cast<off_t>(begin));
  });
  close(file);
  if (error != 0) return FromErrno(error, "cannot read " + path);
  return NowSeconds() - begun;
}

Status DropFromCache(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return FromErrno(errno, "cannot open " + path);
  const int error = posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  close(file);
  return error == 0 ? Status() : FromErrno(error, "cannot drop from the cache " + path);
}

double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace muster::bench
