#include "protocol/transport/dialer.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "protocol/transport/sockets.h"
#include "protocol/transport/steady_clock.h"

namespace muster {
namespace {

std::chrono::nanoseconds ToChrono(Duration duration) {
  return std::chrono::nanoseconds(duration.nanos());
}

// One connect: resolves, then tries address after address.
class Connect : public std::enable_shared_from_this<Connect> {
 public:
  Connect(IoContext& io, HostPort address, std::string name, Duration timeout, ConnectResult done)
      : address_(std::move(address)),
        name_(std::move(name)),
        timeout_(timeout),
        deadline_(MonotonicNow() + timeout),
        done_(std::move(done)),
        timer_(io.get_executor()),
        resolver_(io.get_executor()),
        socket_(io.get_executor()) {}

  void Run() {
    ErrorCode error;
    const net::ip::address literal = net::ip::make_address(address_.host, error);
    if (!error) {  // no resolver, hence no thread of its
      endpoints_.emplace_back(literal, address_.port);
      net::post(socket_.get_executor(), [self = shared_from_this()] { self->TryNext(); });
      return;
    }
    Arm(timeout_, "the name is still being resolved");
    resolver_.async_resolve(
        address_.host, std::to_string(address_.port),
        [self = shared_from_this()](const ErrorCode& failed, const Resolver::results_type& found) {
          self->OnResolved(failed, found);
        });
  }

 private:
  // Ends the attempt under way after `limit`; the next address, if any, is tried then.
  void Arm(Duration limit, const char* meaning) {
    timer_.expires_after(ToChrono(limit));
    timer_.async_wait(
        [self = shared_from_this(), meaning, attempt = ++attempt_](const ErrorCode& cancelled) {
          if (cancelled || self->done_ == nullptr || self->attempt_ != attempt) return;
          self->last_error_ = fmt::format("no answer in time, {}", meaning);
          self->TryNext();
        });
  }

  void OnResolved(const ErrorCode& error, const Resolver::results_type& found) {
    if (done_ == nullptr) return;
    if (error || found.empty()) {
      Fail(fmt::format("host '{}' cannot be resolved ({})", address_.host, error.message()));
      return;
    }
    for (const auto& entry : found) endpoints_.push_back(entry.endpoint());
    TryNext();
  }

  void TryNext() {
    const Duration left = deadline_ - MonotonicNow();
    if (next_ == endpoints_.size() || left <= Duration()) {
      Fail(last_error_.empty() ? "no answer in time" : last_error_);
      return;
    }
    ErrorCode ignored;
    socket_.close(ignored);
    const Tcp::endpoint endpoint = endpoints_[next_++];
    if (const Status opened = OpenStream(socket_, endpoint.protocol()); !opened.ok()) {
      last_error_ = opened.message();
      net::post(socket_.get_executor(), [self = shared_from_this()] { self->TryNext(); });
      return;
    }
    // One address that swallows packets must not use up the time of those after it.
    const auto others = static_cast<std::int64_t>(endpoints_.size() - next_);
    Arm(left / (others + 1), "packets may be dropped on the way");
    socket_.async_connect(
        endpoint, [self = shared_from_this(), attempt = attempt_](const ErrorCode& error) {
          if (self->done_ == nullptr || self->attempt_ != attempt) return;
          if (error || ConnectedToItself(self->socket_)) {
            self->last_error_ = error ? error.message() : std::string("Connection refused");
            self->TryNext();
          } else {
            self->Succeed();
          }
        });
  }

  void Succeed() {
    timer_.cancel();
    const ConnectResult done = std::exchange(done_, nullptr);
    done(Result<Socket>(std::move(socket_)));
  }

  void Fail(const std::string& why) {
    if (done_ == nullptr) return;
    timer_.cancel();
    resolver_.cancel();
    ErrorCode ignored;
    socket_.close(ignored);
    const ConnectResult done = std::exchange(done_, nullptr);
    done(Unavailable(fmt::format(
        "cannot reach {}: {}: check that musterd runs there and that the address is right", name_,
        why)));
  }

  const HostPort address_;
  const std::string name_;
  const Duration timeout_;
  const Instant deadline_;
  ConnectResult done_;  // empty once called
  Timer timer_;
  Resolver resolver_;
  Socket socket_;
  std::vector<Tcp::endpoint> endpoints_;
  std::size_t next_ = 0;
  int attempt_ = 0;  // tells a late completion of an earlier attempt
  std::string last_error_;
};

Status Explain(const Status& status, const std::string& url) {
  switch (status.code()) {
    case Code::kPermissionDenied:
      return PermissionDenied(fmt::format(
          "musterd at {} refused the token ({}): set MUSTER_TOKEN to the content of its token file",
          url, status.message()));
    case Code::kFailedPrecondition:
      return FailedPrecondition(fmt::format(
          "{} is not a Muster coordinator ({}): check the coordinator URL", url, status.message()));
    default: return Status(status.code(), fmt::format("musterd at {}: {}", url, status.message()));
  }
}

}  // namespace

void AsyncConnect(IoContext& io, const HostPort& address, std::string name, Duration timeout,
                  ConnectResult done) {
  std::make_shared<Connect>(io, address, std::move(name), timeout, std::move(done))->Run();
}

void AsyncDial(IoContext& io, DialOptions options, ChannelResult done) {
  const Result<HostPort> address = ParseUrl(options.url);
  if (!address.ok()) {
    net::post(io, [done = std::move(done), why = address.status()] { done(why); });
    return;
  }
  const Instant deadline = MonotonicNow() + options.timeout;
  const std::string host = address->ToString();
  const std::string name = "musterd at " + options.url;
  const Duration timeout = options.timeout;
  AsyncConnect(io, *address, name, timeout,
               [options = std::move(options), done = std::move(done), deadline,
                host](Result<Socket> socket) {
                 if (!socket.ok()) {
                   done(socket.status());
                   return;
                 }
                 const Duration left = std::max(deadline - MonotonicNow(), Duration::Millis(1));
                 AsyncHandshake(
                     std::move(socket).value(), host, options.path, options.token, left,
                     [url = options.url, done](Result<std::shared_ptr<Channel>> channel) {
                       if (channel.ok()) {
                         done(std::move(channel));
                       } else {
                         done(Explain(channel.status(), url));
                       }
                     });
               });
}

bool ConnectedToItself(const Socket& socket) {
  ErrorCode error;
  const Tcp::endpoint local = socket.local_endpoint(error);
  if (error) return false;
  const Tcp::endpoint remote = socket.remote_endpoint(error);
  return !error && local == remote;
}

}  // namespace muster
