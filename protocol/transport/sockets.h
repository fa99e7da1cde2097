// Sockets opened the way all of Muster's are: close-on-exec from birth (a process started in
// between inherits nothing), non-blocking, without Nagle's delay, and with a bound on how long an
// unreachable peer goes unnoticed.
#pragma once

#include <string>

#include "protocol/status.h"
#include "protocol/transport/net.h"
#include "protocol/transport/url.h"

namespace muster {

// Makes `socket` an open, unconnected TCP socket of `protocol`'s family.
[[nodiscard]] Status OpenStream(Socket& socket, const Tcp& protocol);

// Takes one waiting connection without blocking. kUnavailable: none is waiting.
// kResourceExhausted: out of descriptors or memory; the connection still waits, try again later.
[[nodiscard]] Result<Socket> AcceptStream(Acceptor& acceptor);

// Listens on `address`: a name or literal; "::" takes IPv4 as well. Port 0 is any free one, see
// acceptor.local_endpoint(). An address in use, or not of this machine, is named with the remedy.
// Blocks while a name is resolved.
[[nodiscard]] Status Listen(Acceptor& acceptor, const HostPort& address);

// "127.0.0.1", "fd00::1": without port; an IPv4 address that came over an IPv6 socket is written as
// the IPv4 address that it is.
[[nodiscard]] std::string AddressText(const net::ip::address& address);

}  // namespace muster
