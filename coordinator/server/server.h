// The coordinator's service: listener, sessions, HTTP interface, metrics and event log around one
// driver.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "coordinator/server/driver.h"
#include "coordinator/server/log.h"
#include "protocol/status.h"
#include "protocol/transport/net.h"
#include "protocol/transport/url.h"

namespace muster::coordinator {

struct ServerOptions {
  HostPort listen;
  std::string token;                // empty: none is asked for
  Driver::Options driver;           // `publish` and `log` are set by the server
  Log* log = nullptr;               // may be null; outlives the server
  std::size_t max_connections = 0;  // 0: kMaxSessions
};

// Refused when `listen` is not loopback and there is no token.
[[nodiscard]] Status CheckExposure(const HostPort& listen, const std::string& token);

// Confined to the thread that runs its io_context, which outlives the server and does not run any
// more once the server is destroyed.
class Server {
 public:
  Server(IoContext& io, ServerOptions options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Listens. Errors: CheckExposure, and those of Listen in sockets.h.
  [[nodiscard]] Status Start();
  // The bound address. REQUIRES: Start was ok
  [[nodiscard]] HostPort address() const;
  // Accepts no more, closes all sessions in order, and calls `done` once when they are closed or
  // kStopTimeout has passed. Workers go on training.
  void Stop(std::function<void()> done);
  [[nodiscard]] const Driver& driver() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

inline constexpr Duration kStopTimeout = Duration::Millis(1200);

}  // namespace muster::coordinator
