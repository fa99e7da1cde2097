#include "worker/collective/endpoint.h"

#include <netdb.h>
#include <netinet/in.h>

#include <array>
#include <charconv>
#include <cstring>
#include <memory>

namespace muster {

Result<Endpoint> Endpoint::Parse(std::string_view text) {
  const auto wrong = [text](std::string_view why) {
    return InvalidArgument("address '" + std::string(text) + "': " + std::string(why) +
                           "; write host:port or [IPv6]:port");
  };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return wrong("there is no port");
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  if (host.starts_with('[')) {
    if (!host.ends_with(']')) return wrong("the bracket is not closed before the port");
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return wrong("an IPv6 address needs brackets");
  }
  Endpoint endpoint{std::string(host), 0};
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, endpoint.port);
  if (error != std::errc() || stop != end || digits.empty()) return wrong("the port is no port");
  return endpoint;
}

std::string Endpoint::ToString() const {
  const bool brackets = host.find(':') != std::string::npos;
  return (brackets ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Endpoint SocketAddress::ToEndpoint() const {
  std::array<char, NI_MAXHOST> host{};
  if (::getnameinfo(get(), size, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    return {};
  }
  // The port lies at the same place in both families, but only by tradition.
  std::uint16_t port = 0;
  if (family() == AF_INET6) {
    sockaddr_in6 address{};
    std::memcpy(&address, &storage, sizeof address);
    port = address.sin6_port;
  } else {
    sockaddr_in address{};
    std::memcpy(&address, &storage, sizeof address);
    port = address.sin_port;
  }
  return {host.data(), ntohs(port)};
}

Result<std::vector<SocketAddress>> Resolve(const Endpoint& endpoint, bool passive) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  const std::string port = std::to_string(endpoint.port);
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(endpoint.host.empty() ? nullptr : endpoint.host.c_str(),
                                  port.c_str(), &hints, &found);
  if (error != 0) {
    return Unavailable("cannot resolve '" + endpoint.host + "': " + ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    if (info->ai_family != AF_INET && info->ai_family != AF_INET6) continue;
    SocketAddress address;
    std::memcpy(&address.storage, info->ai_addr, info->ai_addrlen);
    address.size = info->ai_addrlen;
    addresses.push_back(address);
  }
  if (addresses.empty()) return Unavailable("'" + endpoint.host + "' has no IP address");
  return addresses;
}

}  // namespace muster
