// Accepts connections.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "coordinator/server/log.h"
#include "protocol/status.h"
#include "protocol/transport/net.h"
#include "protocol/transport/url.h"

namespace muster::coordinator {

// Confined to the thread that runs its io_context.
class Listener {
 public:
  // `on_socket` gets every connection. `log` may be null and outlives the listener.
  Listener(IoContext& io, std::function<void(Socket)> on_socket, Log* log);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Listens and begins to accept; see Listen in sockets.h for the errors. Call it once. Running out
  // of descriptors is logged, and accepting goes on after a pause.
  [[nodiscard]] Status Start(const HostPort& address);
  void Stop();
  // The bound address, with the port that was chosen for port 0. REQUIRES: Start was ok
  [[nodiscard]] HostPort address() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Lets this process have as many descriptors as the system allows it, and warns through `log` when
// that, or the system's bound on waiting connections, is too little for many workers.
void RaiseFileLimit(Log* log);

}  // namespace muster::coordinator
