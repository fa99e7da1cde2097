// Addresses as users write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/status.h"

namespace muster {

struct HostPort {
  std::string host;  // without the brackets of an IPv6 literal
  std::uint16_t port = 0;
  friend bool operator==(const HostPort&, const HostPort&) = default;

  // "host:port", "[v6]:port".
  [[nodiscard]] std::string ToString() const;
};

// "host:port", "1.2.3.4:0", "[::1]:7077". Refused with a reason: no port, a port that is no number
// up to 65535, an IPv6 address without brackets, an empty host.
[[nodiscard]] Result<HostPort> ParseHostPort(std::string_view text);

// "http://host[:port][/]"; the port defaults to kDefaultPort. Refused with a reason: another
// scheme, a path, a query, credentials, and whatever ParseHostPort refuses.
[[nodiscard]] Result<HostPort> ParseUrl(std::string_view url);

}  // namespace muster
