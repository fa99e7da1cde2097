#include "worker/collective/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <mutex>
#include <set>

namespace muster {
namespace {

// All descriptors that live in UniqueFds. Never destroyed: objects of static storage may close
// theirs after it would have been.
struct OpenDescriptors {
  std::mutex mutex;
  std::set<int> fds;
};

OpenDescriptors& AllOpen() {
  static OpenDescriptors* const open = [] {
    auto* made = new OpenDescriptors;
    ::pthread_atfork([] { AllOpen().mutex.lock(); }, [] { AllOpen().mutex.unlock(); },
                     [] {
                       for (int fd : AllOpen().fds) ::close(fd);
                       AllOpen().fds.clear();
                       AllOpen().mutex.unlock();
                     });
    return made;
  }();
  return *open;
}

}  // namespace

UniqueFd::UniqueFd(int fd) : fd_(fd) {
  if (fd_ < 0) return;
  OpenDescriptors& open = AllOpen();
  const std::lock_guard lock(open.mutex);
  open.fds.insert(fd_);
}

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void UniqueFd::Close() {
  const int fd = std::exchange(fd_, -1);
  if (fd < 0) return;
  OpenDescriptors& open = AllOpen();
  const std::lock_guard lock(open.mutex);
  // In a forked child it is closed already, and its number may belong to something else by now.
  if (open.fds.erase(fd) == 1) ::close(fd);
}

AbortSignal::AbortSignal() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Status AbortSignal::status() const {
  if (event_.valid()) return {};
  return ResourceExhausted("no descriptor for the abort event: raise the limit on open files");
}

void AbortSignal::Raise() {
  raised_.store(true, std::memory_order_release);
  const std::uint64_t one = 1;
  // A full counter is as readable as one that this write has raised.
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof one);
}

Instant PollClockNow() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return Instant::FromNanos(std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec);
}

int PollTimeout(Instant deadline) {
  if (deadline == Instant::Never()) return -1;
  const std::int64_t nanos = (deadline - PollClockNow()).nanos();
  if (nanos <= 0) return 0;
  const std::int64_t millis = nanos / 1'000'000 + 1;
  return static_cast<int>(std::min<std::int64_t>(millis, std::numeric_limits<int>::max()));
}

void TuneTcpSocket(int fd, Duration patience) {
  const auto set = [fd](int level, int option, int value) {
    ::setsockopt(fd, level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  const std::int64_t millis = std::max<std::int64_t>(patience.millis(), 1'000);
  if (millis <= std::numeric_limits<int>::max()) {
    set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(millis));
  }
}

}  // namespace muster
