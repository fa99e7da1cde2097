#include "tests/gpu/double/double_sockets.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "tests/gpu/double/double_hooks.h"

namespace muster::gpu_double {
namespace {

constexpr int kRetryMs = 10;

sockaddr_in Loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

Socket MakeSocket() {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.open()) Die("no more sockets");
  const int on = 1;
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return socket;
}

// False when interrupted.
bool WaitFor(int fd, short events, const Interrupt& interrupt) {
  std::array<pollfd, 2> polled{{{fd, events, 0}, {interrupt.fd(), POLLIN, 0}}};
  while (::poll(polled.data(), polled.size(), -1) < 0 && errno == EINTR) {
  }
  return polled[1].revents == 0;
}

bool MustWait() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

Interrupt::Interrupt() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (fd_ < 0) Die("no more file descriptors");
}

Interrupt::~Interrupt() { ::close(fd_); }

void Interrupt::Raise() {
  raised_ = true;
  const std::uint64_t one = 1;
  if (::write(fd_, &one, sizeof one) < 0) Die("an interrupt cannot be raised");
}

bool Interrupt::Wait(int ms) const {
  pollfd polled{fd_, POLLIN, 0};
  while (::poll(&polled, 1, ms) < 0 && errno == EINTR) {
  }
  return raised();
}

Socket::~Socket() { Close(); }

void Socket::Close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

Socket Listen(std::uint16_t* port) {
  Socket socket = MakeSocket();
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket.fd(), generic, size) != 0 || ::listen(socket.fd(), 256) != 0 ||
      ::getsockname(socket.fd(), generic, &size) != 0) {
    Die("cannot listen on the loopback interface");
  }
  *port = ntohs(address.sin_port);
  return socket;
}

Outcome Connect(std::uint16_t port, const Interrupt& interrupt, Socket* connected) {
  const sockaddr_in address = Loopback(port);
  const auto* const generic = reinterpret_cast<const sockaddr*>(&address);
  const long tries = EnvironmentNumber("MUSTER_DOUBLE_CONNECT_MS", 59500) / kRetryMs + 1;
  for (long i = 0; i < tries; ++i) {
    Socket socket = MakeSocket();
    int error = ::connect(socket.fd(), generic, sizeof address) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      if (!WaitFor(socket.fd(), POLLOUT, interrupt)) return Outcome::kInterrupted;
      socklen_t size = sizeof error;
      ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
    if (error == 0) {
      *connected = std::move(socket);
      return Outcome::kDone;
    }
    if (interrupt.Wait(kRetryMs)) return Outcome::kInterrupted;
  }
  return Outcome::kPeerGone;
}

Outcome Accept(const Socket& listener, const Interrupt& interrupt, Socket* accepted) {
  while (true) {
    if (!WaitFor(listener.fd(), POLLIN, interrupt)) return Outcome::kInterrupted;
    Socket socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.open()) continue;  // it left before it was let in
    const int on = 1;
    ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    *accepted = std::move(socket);
    return Outcome::kDone;
  }
}

Outcome Send(const Socket& socket, const void* data, std::size_t bytes,
             const Interrupt& interrupt) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    if (!WaitFor(socket.fd(), POLLOUT, interrupt)) return Outcome::kInterrupted;
    const ssize_t sent = ::send(socket.fd(), at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && MustWait()) continue;
    if (sent < 0) return Outcome::kPeerGone;
    at += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
  return Outcome::kDone;
}

Outcome Receive(const Socket& socket, void* data, std::size_t bytes, const Interrupt& interrupt) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    if (!WaitFor(socket.fd(), POLLIN, interrupt)) return Outcome::kInterrupted;
    const ssize_t received = ::recv(socket.fd(), at, bytes, 0);
    if (received < 0 && MustWait()) continue;
    if (received <= 0) return Outcome::kPeerGone;
    at += received;
    bytes -= static_cast<std::size_t>(received);
  }
  return Outcome::kDone;
}

void SayLast(const Socket& socket) {
  if (socket.open()) ::shutdown(socket.fd(), SHUT_WR);
}

void CloseTogether(Socket& socket) {
  if (!socket.open()) return;
  SayLast(socket);
  const Interrupt never;
  char byte = 0;
  while (Receive(socket, &byte, 1, never) == Outcome::kDone) {
  }
  socket.Close();
}

}  // namespace muster::gpu_double
