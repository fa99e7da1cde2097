#include "worker/collective/tcp_listener.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

namespace muster {
namespace {

// As many as a large job's members that all dial at once; the kernel caps it at its own limit.
constexpr int kBacklog = 4096;

Result<UniqueFd> BindOne(const SocketAddress& address, bool dual_stack) {
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const std::string what = "cannot listen on " + address.ToEndpoint().ToString();
  if (!fd.valid()) return FromErrno(errno, what);
  const int one = 1;
  // A restarted worker gets its port back while old connections linger in TIME_WAIT.
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (address.family() == AF_INET6) {
    const int v6_only = dual_stack ? 0 : 1;
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof v6_only);
  }
  if (::bind(fd.get(), address.get(), address.size) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    if (errno == EADDRINUSE) {
      return AlreadyExists(what + ": the port is taken; choose another one, or 0 for any");
    }
    return FromErrno(errno, what);
  }
  return fd;
}

}  // namespace

Result<TcpListener> TcpListener::Bind(const Endpoint& endpoint) {
  const bool dual_stack = endpoint.host.empty() || endpoint.host == "::";
  std::vector<Endpoint> choices = {endpoint};
  if (dual_stack) choices = {{"::", endpoint.port}, {"0.0.0.0", endpoint.port}};
  Status error = Unavailable("no address to listen on");
  for (const Endpoint& choice : choices) {
    Result<std::vector<SocketAddress>> addresses = Resolve(choice, true);
    if (!addresses.ok()) {
      error = addresses.status();
      continue;
    }
    for (const SocketAddress& address : *addresses) {
      Result<UniqueFd> bound = BindOne(address, dual_stack);
      if (!bound.ok()) {
        error = bound.status();
        continue;
      }
      SocketAddress real;
      real.size = sizeof real.storage;
      auto* storage = reinterpret_cast<sockaddr*>(&real.storage);
      if (::getsockname(bound->get(), storage, &real.size) != 0) {
        return FromErrno(errno, "getsockname on " + choice.ToString());
      }
      return TcpListener(std::move(*bound), real.ToEndpoint());
    }
    // Only a machine without IPv6 falls back to IPv4: a taken port must not go unnoticed.
    if (error.code() == Code::kAlreadyExists) break;
  }
  return error;
}

}  // namespace muster
