#include "protocol/transport/url.h"

#include <fmt/format.h>

#include <charconv>

#include "protocol/limits.h"

namespace muster {
namespace {

constexpr std::string_view kScheme = "http://";

bool IsHostCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '-' || c == '_';
}

bool IsV6Character(char c) {
  return (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F') || (c >= '0' && c <= '9') || c == ':' ||
         c == '.';
}

// An IPv6 literal may end in a zone: "fe80::1%eth0".
bool IsV6Literal(std::string_view host) {
  const std::size_t zone = host.find('%');
  const std::string_view address = host.substr(0, zone);
  if (address.find(':') == std::string_view::npos) return false;
  for (const char c : address) {
    if (!IsV6Character(c)) return false;
  }
  if (zone == std::string_view::npos) return true;
  for (const char c : host.substr(zone + 1)) {
    if (!IsHostCharacter(c)) return false;
  }
  return zone + 1 < host.size();
}

bool IsName(std::string_view host) {
  for (const char c : host) {
    if (!IsHostCharacter(c)) return false;
  }
  return !host.empty();
}

// `port_text` empty: `default_port`, or refused when that is negative.
Result<HostPort> Split(std::string_view text, int default_port) {
  std::string_view host;
  std::string_view rest;
  if (!text.empty() && text.front() == '[') {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos) {
      return InvalidArgument(fmt::format("address '{}': no ']' after the IPv6 address", text));
    }
    host = text.substr(1, end - 1);
    rest = text.substr(end + 1);
    if (!IsV6Literal(host)) {
      return InvalidArgument(fmt::format("address '{}': '{}' is no IPv6 address", text, host));
    }
  } else {
    const std::size_t colon = text.find(':');
    host = text.substr(0, colon);
    rest = colon == std::string_view::npos ? std::string_view() : text.substr(colon);
    if (rest.find(':', rest.empty() ? 0 : 1) != std::string_view::npos) {
      return InvalidArgument(fmt::format(
          "address '{}': write an IPv6 address in brackets, as in [::1]:{}", text, kDefaultPort));
    }
    if (!IsName(host)) {
      return InvalidArgument(fmt::format("address '{}': '{}' is no host name", text, host));
    }
  }
  HostPort result{std::string(host), 0};
  if (rest.empty() && default_port >= 0) {
    result.port = static_cast<std::uint16_t>(default_port);
    return result;
  }
  if (rest.empty() || rest.front() != ':') {
    return InvalidArgument(
        fmt::format("address '{}': write HOST:PORT, as in {}:{}", text, host, kDefaultPort));
  }
  rest.remove_prefix(1);
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), result.port);
  if (rest.empty() || error != std::errc() || end != rest.data() + rest.size()) {
    return InvalidArgument(
        fmt::format("address '{}': port '{}' is no number from 0 to 65535", text, rest));
  }
  return result;
}

}  // namespace

std::string HostPort::ToString() const {
  const bool v6 = host.find(':') != std::string::npos;
  return v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

Result<HostPort> ParseHostPort(std::string_view text) { return Split(text, -1); }

Result<HostPort> ParseUrl(std::string_view url) {
  if (url.substr(0, kScheme.size()) != kScheme) {
    return InvalidArgument(
        fmt::format("coordinator URL '{}': write http://HOST:PORT, as in http://127.0.0.1:{}", url,
                    kDefaultPort));
  }
  std::string_view rest = url.substr(kScheme.size());
  if (!rest.empty() && rest.back() == '/') rest.remove_suffix(1);
  Result<HostPort> address = Split(rest, kDefaultPort);
  if (!address.ok()) {
    return InvalidArgument(
        fmt::format("coordinator URL '{}': {}", url, address.status().message()));
  }
  if (address->port == 0) {
    return InvalidArgument(fmt::format("coordinator URL '{}': port 0 cannot be dialed", url));
  }
  return address;
}

}  // namespace muster
