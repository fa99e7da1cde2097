#include "coordinator/server/server.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "coordinator/server/event_log.h"
#include "coordinator/server/http_api.h"
#include "coordinator/server/listener.h"
#include "coordinator/server/metrics.h"
#include "coordinator/server/session.h"
#include "protocol/limits.h"
#include "protocol/transport/http_connection.h"
#include "protocol/transport/task_group.h"

namespace muster::coordinator {

Status CheckExposure(const HostPort& listen, const std::string& token) {
  if (!token.empty() || listen.host == "localhost") return {};
  ErrorCode error;
  const net::ip::address address = net::ip::make_address(listen.host, error);
  if (!error && address.is_loopback()) return {};
  return PermissionDenied(
      fmt::format("listening on {} would let anyone who reaches it command the jobs: give "
                  "--token-file FILE with a secret, or --listen 127.0.0.1:{}",
                  listen.ToString(), listen.port));
}

// In the order in which they depend on each other.
struct Server::Parts {
  Parts(IoContext& the_io, ServerOptions the_options)
      : io(the_io),
        listen(std::move(the_options.listen)),
        log(the_options.log),
        max_connections(the_options.max_connections == 0 ? kMaxSessions
                                                         : the_options.max_connections),
        driver(io, WithHooks(std::move(the_options.driver))),
        service(MakeService(std::move(the_options.token))),
        listener(
            io, [this](Socket socket) { OnSocket(std::move(socket)); }, log),
        stop_timer(io.get_executor()) {}

  Driver::Options WithHooks(Driver::Options options) {
    options.log = log;
    options.publish = [this](const Event& event) {
      metrics.Observe(event);
      events.Add(event, ReadClocks(), log);
    };
    return options;
  }

  std::shared_ptr<const HttpService> MakeService(std::string token) {
    auto made = std::make_shared<HttpService>();
    ApiSource source;
    source.token = token;
    source.jobs = [this] { return driver.Jobs(); };
    source.describe = [this](const JobName& job) { return driver.Describe(job); };
    source.events = [this](const JobName& job, std::int64_t since) {
      return events.Since(job, since);
    };
    source.metrics = [this] { return RenderMetrics(); };
    source.ready = [this] { return stopping ? Unavailable("ending") : driver.ready(); };
    source.drain = [this](const Drain& drain) { driver.Command(drain); };
    source.adopt = [this](const ForceAdopt& adopt) { driver.Command(adopt); };
    made->respond = [source = std::move(source)](const HttpRequest& request) {
      return Respond(request, source);
    };
    made->refuse_upgrade = [token = std::move(token)](const HttpRequest& request) {
      return RefuseUpgrade(request, token);
    };
    made->on_channel = [this](const std::shared_ptr<Channel>& channel) {
      ServeSession(io, channel, driver, group, log);
    };
    return made;
  }

  void OnSocket(Socket socket) {
    if (group.size() < max_connections) {
      full = false;
      ServeHttp(std::move(socket), service, group);
      return;
    }
    if (!full && log != nullptr) {
      log->Error(fmt::format("{} connections, which is the bound: further ones are closed",
                             max_connections));
    }
    full = true;
  }

  std::string RenderMetrics() {
    std::vector<JobView> views;
    for (const JobName& job : driver.Jobs()) {
      if (auto view = driver.Describe(job)) views.push_back(std::move(*view));
    }
    const Driver::Counts counts = driver.counts();
    ServerGauges gauges;
    gauges.sessions = counts.sessions;
    gauges.connections = group.size();
    gauges.messages_received = counts.received;
    gauges.messages_sent = counts.sent;
    gauges.lag_seconds_total = counts.lag.ToSeconds();
    gauges.persist_batches = counts.persisted;
    gauges.persist_failures = counts.persist_failures;
    gauges.ready = driver.ready().ok();
    gauges.volume_full = driver.ready().code() == Code::kResourceExhausted;
    return metrics.Render(views, gauges);
  }

  IoContext& io;
  const HostPort listen;
  Log* const log;
  const std::size_t max_connections;
  TaskGroup group;
  EventLog events;
  Metrics metrics;
  Driver driver;
  const std::shared_ptr<const HttpService> service;
  Listener listener;
  Timer stop_timer;
  std::function<void()> stopped;
  bool stopping = false;
  bool full = false;
};

Server::Server(IoContext& io, ServerOptions options) {
  parts_ = std::make_unique<Parts>(io, std::move(options));
}

Server::~Server() = default;

Status Server::Start() { return parts_->listener.Start(parts_->listen); }

HostPort Server::address() const { return parts_->listener.address(); }

const Driver& Server::driver() const { return parts_->driver; }

void Server::Stop(std::function<void()> done) {
  Parts& parts = *parts_;
  if (parts.stopping) return;
  parts.stopping = true;
  parts.stopped = std::move(done);
  parts.listener.Stop();
  parts.driver.Stop();
  const auto finish = [&parts] {
    parts.stop_timer.cancel();
    if (parts.stopped) std::exchange(parts.stopped, nullptr)();
  };
  parts.stop_timer.expires_after(std::chrono::nanoseconds(kStopTimeout.nanos()));
  parts.stop_timer.async_wait([finish](const ErrorCode& error) {
    if (!error) finish();
  });
  parts.group.CancelAll();
  parts.group.WhenEmpty(finish);
}

}  // namespace muster::coordinator
