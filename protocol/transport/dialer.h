// How a worker or a launcher reaches the coordinator.
#pragma once

#include <functional>
#include <string>

#include "protocol/time.h"
#include "protocol/transport/channel.h"
#include "protocol/transport/net.h"
#include "protocol/transport/url.h"

namespace muster {

struct DialOptions {
  std::string url;    // "http://host:port", see url.h
  std::string token;  // empty: none is sent
  std::string path = "/v1/session";
  Duration timeout = Duration::Seconds(5);  // of the whole: resolve, connect, handshake
};

// Resolves the host, tries its addresses of both families one after the other, each within its part
// of the time, and shakes hands. `done` is called once, later, on the thread of `io`, unless `io`
// is destroyed first. Errors name the URL and what to check: kInvalidArgument (bad URL),
// kUnavailable (unknown host, refused, unreachable, no answer in time: trying again may help),
// kPermissionDenied (token), kFailedPrecondition (something else listens there). A name that is
// being resolved cannot be given up: destroying `io` waits for the resolver.
void AsyncDial(IoContext& io, DialOptions options, ChannelResult done);

// The same as far as the connected socket, with the URL already parsed. `name` is what errors call
// the peer.
using ConnectResult = std::function<void(Result<Socket>)>;
void AsyncConnect(IoContext& io, const HostPort& address, std::string name, Duration timeout,
                  ConnectResult done);

// Is the socket its own peer? Where nobody listens, a port from the range that the system gives to
// connecting sockets can be the very one that it gives to the socket that connects to it: TCP then
// connects it to itself, and keeps whoever wants to listen there from doing so.
[[nodiscard]] bool ConnectedToItself(const Socket& socket);

}  // namespace muster
