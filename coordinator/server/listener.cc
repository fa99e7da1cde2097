#include "coordinator/server/listener.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>
#include <fstream>
#include <utility>

#include "protocol/transport/sockets.h"

namespace muster::coordinator {
namespace {

constexpr auto kAcceptPause = std::chrono::milliseconds(100);
// Between two rounds of accepting, established sessions get their turn.
constexpr int kAcceptsPerRound = 64;
constexpr int kWantedBacklog = 4096;
constexpr rlim_t kWantedFiles = 4096;

}  // namespace

// Outlives the listener while a wait is under way.
struct Listener::State : std::enable_shared_from_this<Listener::State> {
  State(IoContext& io, std::function<void(Socket)> callback, Log* the_log)
      : acceptor(io.get_executor()),
        pause(io.get_executor()),
        on_socket(std::move(callback)),
        log(the_log) {}

  void Wait() {
    acceptor.async_wait(Acceptor::wait_read, [self = shared_from_this()](const ErrorCode& error) {
      if (!error && self->acceptor.is_open()) self->Accept();
    });
  }

  void Accept() {
    for (int i = 0; i < kAcceptsPerRound; ++i) {
      Result<Socket> socket = AcceptStream(acceptor);
      if (socket.ok()) {
        failing = false;
        on_socket(std::move(socket).value());
        continue;
      }
      if (socket.status().code() == Code::kUnavailable) break;
      // The connection still waits: to look again at once would spin.
      if (!failing && log != nullptr) {
        log->Error("connections cannot be accepted now: " + socket.status().message());
      }
      failing = true;
      pause.expires_after(kAcceptPause);
      pause.async_wait([self = shared_from_this()](const ErrorCode& error) {
        if (!error && self->acceptor.is_open()) self->Accept();
      });
      return;
    }
    Wait();
  }

  Acceptor acceptor;
  Timer pause;
  const std::function<void(Socket)> on_socket;
  Log* const log;
  bool failing = false;
};

Listener::Listener(IoContext& io, std::function<void(Socket)> on_socket, Log* log)
    : state_(std::make_shared<State>(io, std::move(on_socket), log)) {}

Listener::~Listener() { Stop(); }

Status Listener::Start(const HostPort& address) {
  MUSTER_RETURN_IF_ERROR(Listen(state_->acceptor, address));
  state_->Wait();
  return {};
}

void Listener::Stop() {
  ErrorCode ignored;
  state_->acceptor.close(ignored);
  state_->pause.cancel();
}

HostPort Listener::address() const {
  ErrorCode error;
  const Tcp::endpoint endpoint = state_->acceptor.local_endpoint(error);
  return {endpoint.address().to_string(), endpoint.port()};
}

void RaiseFileLimit(Log* log) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &limit);
  }
  if (log == nullptr) return;
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < kWantedFiles) {
    log->Warning(
        fmt::format("at most {} descriptors: raise the hard limit (ulimit -Hn) for more "
                    "workers than that",
                    limit.rlim_cur));
  }
  int backlog = 0;
  std::ifstream somaxconn("/proc/sys/net/core/somaxconn");
  if (somaxconn >> backlog && backlog < kWantedBacklog) {
    log->Warning(
        fmt::format("net.core.somaxconn is {}: raise it to {} before thousands of workers "
                    "reconnect at once",
                    backlog, kWantedBacklog));
  }
}

}  // namespace muster::coordinator
