#include "protocol/transport/sockets.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/ip/v6_only.hpp>
#include <cerrno>

#include "protocol/limits.h"

namespace muster {
namespace {

// A peer that vanished without a word (power, network) is noticed after about 15 s even when no one
// writes to it. Leases are faster; this frees what they leave behind.
constexpr int kKeepIdleSeconds = 6;
constexpr int kKeepIntervalSeconds = 3;
constexpr int kKeepCount = 3;
constexpr int kUserTimeoutMillis = 15'000;

// The kernel clips this to net.core.somaxconn. An overflow costs the peers 1 to 3 s of SYN retries,
// which is beyond a lease.
constexpr int kBacklog = 16'384;

// None of these is needed to work, so a kernel that refuses one is not an error.
void Configure(int fd) {
  const auto set = [fd](int level, int option, int value) {
    (void)::setsockopt(fd, level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalSeconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, kKeepCount);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMillis);
}

Result<int> OpenDescriptor(const Tcp& protocol) {
  const int fd =
      ::socket(protocol.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
  if (fd < 0) return FromErrno(errno, "socket()");
  return fd;
}

Status ListenOn(Acceptor& acceptor, const Tcp::endpoint& endpoint, const HostPort& address) {
  const Result<int> fd = OpenDescriptor(endpoint.protocol());
  if (!fd.ok()) return fd.status();
  ErrorCode error;
  if (acceptor.assign(endpoint.protocol(), *fd, error); error) {
    (void)::close(*fd);
    return Internal(fmt::format("listening on {}: {}", address.ToString(), error.message()));
  }
  acceptor.set_option(net::socket_base::reuse_address(true), error);
  if (endpoint.address().is_v6()) {
    acceptor.set_option(net::ip::v6_only(!endpoint.address().is_unspecified()), error);
  }
  acceptor.non_blocking(true, error);
  acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(kBacklog, error);
  if (!error) return {};
  ErrorCode ignored;
  acceptor.close(ignored);
  if (error == net::error::address_in_use) {
    return AlreadyExists(
        fmt::format("address {} is in use: stop the other process or choose another --listen",
                    address.ToString()));
  }
  if (error.value() == EADDRNOTAVAIL) {
    return InvalidArgument(fmt::format(
        "address {} is not of this machine: choose one that is, or 0.0.0.0 or [::] for all",
        address.ToString()));
  }
  if (error == net::error::access_denied) {
    return PermissionDenied(fmt::format(
        "address {}: not allowed to listen there: ports below 1024 need root", address.ToString()));
  }
  return FromErrno(error.value(), "listening on " + address.ToString());
}

}  // namespace

Status OpenStream(Socket& socket, const Tcp& protocol) {
  const Result<int> fd = OpenDescriptor(protocol);
  if (!fd.ok()) return fd.status();
  Configure(*fd);
  ErrorCode error;
  if (socket.assign(protocol, *fd, error); error) {
    (void)::close(*fd);
    return Internal("registering a socket: " + error.message());
  }
  return {};
}

Result<Socket> AcceptStream(Acceptor& acceptor) {
  sockaddr_storage peer{};
  socklen_t length = sizeof(peer);
  int fd = -1;
  do {
    fd = ::accept4(acceptor.native_handle(), reinterpret_cast<sockaddr*>(&peer), &length,
                   SOCK_CLOEXEC | SOCK_NONBLOCK);
  } while (fd < 0 && (errno == EINTR || errno == ECONNABORTED || errno == EPROTO));
  if (fd < 0) {
    const int number = errno;
    if (number == EAGAIN || number == EWOULDBLOCK) return Unavailable("no connection is waiting");
    return ResourceExhausted(FromErrno(number, "accept()").message());
  }
  Configure(fd);
  Socket socket(acceptor.get_executor());
  ErrorCode error;
  if (socket.assign(peer.ss_family == AF_INET6 ? Tcp::v6() : Tcp::v4(), fd, error); error) {
    (void)::close(fd);
    return ResourceExhausted("registering a socket: " + error.message());
  }
  return Result<Socket>(std::move(socket));
}

Status Listen(Acceptor& acceptor, const HostPort& address) {
  ErrorCode error;
  const net::ip::address literal = net::ip::make_address(address.host, error);
  if (!error) return ListenOn(acceptor, Tcp::endpoint(literal, address.port), address);
  Resolver resolver(acceptor.get_executor());
  const auto found =
      resolver.resolve(address.host, std::to_string(address.port), Resolver::passive, error);
  if (error || found.empty()) {
    return InvalidArgument(fmt::format("address {}: host '{}' is unknown here ({})",
                                       address.ToString(), address.host, error.message()));
  }
  return ListenOn(acceptor, found.begin()->endpoint(), address);
}

std::string AddressText(const net::ip::address& address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return net::ip::make_address_v4(net::ip::v4_mapped, address.to_v6()).to_string();
  }
  return address.to_string();
}

}  // namespace muster
