// The socket on which a worker's peers reach it. Made once per process, before the worker says
// hello, and used by one generation after the other: connections that arrive between two of them
// wait in the kernel's queue.
#pragma once

#include "protocol/status.h"
#include "worker/collective/endpoint.h"
#include "worker/collective/socket.h"

namespace muster {

// Threads: one generation's Connect() uses it at a time; address() from any thread.
class TcpListener {
 public:
  // Binds and listens. An empty host or "::" takes all addresses of the machine, IPv6 and IPv4
  // alike (IPv4 alone where there is no IPv6); "0.0.0.0" all IPv4 ones; a name the first of its
  // addresses that can be bound. Port 0 takes any free one. Errors name the address.
  [[nodiscard]] static Result<TcpListener> Bind(const Endpoint& endpoint);

  // The bound address, never with port 0. For a wildcard the host is "::" or "0.0.0.0", which is
  // no address to give to others.
  [[nodiscard]] const Endpoint& address() const { return address_; }
  // Non-blocking, readable when a connection waits.
  [[nodiscard]] int fd() const { return socket_.get(); }

 private:
  TcpListener(UniqueFd socket, Endpoint address)
      : socket_(std::move(socket)), address_(std::move(address)) {}

  UniqueFd socket_;
  Endpoint address_;
};

}  // namespace muster
