// Where a worker's listener can be reached, and the socket addresses behind it.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/status.h"

namespace muster {

// A host and a port. The host is an IPv4 or IPv6 literal (kept without brackets) or a name.
struct Endpoint {
  std::string host;
  std::uint16_t port = 0;

  // From "host:port", "[v6]:port". kInvalidArgument, with the text, for anything else; an IPv6
  // literal without brackets is refused, because its last group could be a port.
  [[nodiscard]] static Result<Endpoint> Parse(std::string_view text);
  // The reverse of Parse: brackets around an IPv6 literal.
  [[nodiscard]] std::string ToString() const;
  friend auto operator<=>(const Endpoint&, const Endpoint&) = default;
};

// One resolved socket address.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  [[nodiscard]] int family() const { return storage.ss_family; }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  // The numeric host and the port.
  [[nodiscard]] Endpoint ToEndpoint() const;
};

// All addresses of an endpoint, in the resolver's order. A literal takes no time. A name asks the
// system's resolver, which blocks and cannot be interrupted: where a fast abort matters, give
// literals. An empty host is the wildcard when `passive`. kUnavailable when the name is unknown.
[[nodiscard]] Result<std::vector<SocketAddress>> Resolve(const Endpoint& endpoint, bool passive);

}  // namespace muster
