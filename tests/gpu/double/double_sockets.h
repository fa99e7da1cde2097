// Sockets of the NCCL double: loopback TCP that waits for ever, as NCCL's does, and leaves only
// when it is interrupted. TEST CODE.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace muster::gpu_double {

// Raised once, wakes everyone who waits. Any thread.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  void Raise();
  [[nodiscard]] bool raised() const { return raised_.load(); }
  // Readable once raised.
  [[nodiscard]] int fd() const { return fd_; }
  // Blocks until raised, or for `ms` (-1: without limit). Whether it was raised.
  bool Wait(int ms = -1) const;

 private:
  std::atomic<bool> raised_ = false;
  int fd_ = -1;
};

enum class Outcome { kDone, kInterrupted, kPeerGone };

// Owns a file descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();

  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] bool open() const { return fd_ >= 0; }
  void Close();

 private:
  int fd_ = -1;
};

// Listens at a free port of the loopback interface.
[[nodiscard]] Socket Listen(std::uint16_t* port);
// Tries again while nobody listens, for MUSTER_DOUBLE_CONNECT_MS (59500, as NCCL does); kPeerGone
// after that.
[[nodiscard]] Outcome Connect(std::uint16_t port, const Interrupt& interrupt, Socket* connected);
[[nodiscard]] Outcome Accept(const Socket& listener, const Interrupt& interrupt, Socket* accepted);
[[nodiscard]] Outcome Send(const Socket& socket, const void* data, std::size_t bytes,
                           const Interrupt& interrupt);
[[nodiscard]] Outcome Receive(const Socket& socket, void* data, std::size_t bytes,
                              const Interrupt& interrupt);
// Says that nothing more comes from here.
void SayLast(const Socket& socket);
// Says so, and reads until the peer has said so too or is dead.
void CloseTogether(Socket& socket);

}  // namespace muster::gpu_double
