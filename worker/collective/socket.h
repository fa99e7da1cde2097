// The small things that every file of the TCP communicator stands on: an owned descriptor, the
// abort signal, the monotonic clock, and stream sockets with the options that we want.
#pragma once

#include <atomic>
#include <utility>

#include "protocol/status.h"
#include "protocol/time.h"

namespace muster {

// Owns one descriptor and closes it. In a child made by fork() every descriptor owned by a
// UniqueFd is closed at once: a data loader's process would otherwise hold a dead worker's
// connections open, and its peers would never see the end of them.
// Threads: as an int; different objects may be used from different threads.
class UniqueFd {
 public:
  UniqueFd() = default;
  // Takes ownership of `fd`; negative is "none".
  explicit UniqueFd(int fd);
  ~UniqueFd() { Close(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;

  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  // Closes now; without effect when there is none.
  void Close();

 private:
  int fd_ = -1;
};

// A flag that any thread may raise and that a poll() wakes up from. Never lowered again.
class AbortSignal {
 public:
  AbortSignal();
  // Ok when the descriptor behind it could be made; otherwise poll() would not wake up.
  [[nodiscard]] Status status() const;
  void Raise();
  [[nodiscard]] bool raised() const { return raised_.load(std::memory_order_acquire); }
  // Readable once raised.
  [[nodiscard]] int fd() const { return event_.get(); }

 private:
  UniqueFd event_;
  std::atomic<bool> raised_ = false;
};

// The clock that poll() goes by: monotonic, standing still while the machine sleeps.
[[nodiscard]] Instant PollClockNow();
// What poll() takes to wake up at `deadline`: milliseconds rounded up, -1 for Never().
[[nodiscard]] int PollTimeout(Instant deadline);

// Makes a connected TCP socket what the data plane wants: no delay for small frames, keep-alive
// probes, and a bound on how long sent bytes may stay unacknowledged: `patience`, the time that an
// operation may go without progress. A shorter bound would break the link to a peer that is alive
// and computes, with its receive window full. Errors are ignored: none of this is needed to work.
void TuneTcpSocket(int fd, Duration patience);

}  // namespace muster
