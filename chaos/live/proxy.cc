#include "chaos/live/proxy.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <deque>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "protocol/transport/steady_clock.h"

namespace muster::chaos {
namespace {

// SO_ORIGINAL_DST of <linux/netfilter_ipv4.h>, which does not go together with <netinet/in.h>.
constexpr int kOriginalDestination = 80;
constexpr std::size_t kMostHeld = 4 << 20;  // bytes in one direction; then the sender waits
constexpr std::size_t kPiece = 64 << 10;

struct Piece {
  Instant due;
  std::vector<char> bytes;
  std::size_t sent = 0;
};

// Bytes from one socket to another.
struct Flow {
  int from = -1;
  int to = -1;
  std::deque<Piece> held;
  std::size_t bytes = 0;
  bool ended = false;  // no more will come
  Instant end_due;
  bool end_sent = false;
};

struct Pair {
  int client = -1;
  int server = -1;
  bool connecting = true;
  bool broken = false;
  std::array<Flow, 2> flows;
};

// Closing it then sends a reset.
void Break(int socket) {
  const linger now{.l_onoff = 1, .l_linger = 0};
  setsockopt(socket, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

class RealProxy : public Proxy {
 public:
  ~RealProxy() override {
    stop_ = true;
    const std::uint64_t one = 1;
    (void)!write(wake_, &one, sizeof(one));
    if (thread_.joinable()) thread_.join();
    for (const int descriptor : {listener_, wake_}) {
      if (descriptor >= 0) close(descriptor);
    }
  }

  Status Begin(int network);
  [[nodiscard]] int port() const override { return port_; }
  void SetDelay(Duration delay) override { delay_ns_ = delay.nanos(); }

 private:
  Status Listen(int network);
  void Run();
  void Accept();
  void Watch(std::vector<pollfd>* polled, Instant now, Instant* next) const;
  void Serve(Pair* pair, Instant now);
  void Read(Pair* pair, Flow* flow, Instant now);
  void Write(Pair* pair, Flow* flow, Instant now);

  int listener_ = -1;
  int wake_ = -1;
  int port_ = 0;
  std::atomic<bool> stop_{false};
  std::atomic<std::int64_t> delay_ns_{0};
  std::list<Pair> pairs_;
  std::thread thread_;
};

Status RealProxy::Listen(int network) {
  if (setns(network, CLONE_NEWNET) != 0) return FromErrno(errno, "enter a network namespace");
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof(address);
  constexpr int kBacklog = 256;
  if (listener_ < 0 || bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener_, kBacklog) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return FromErrno(errno, "the proxy's socket");
  }
  port_ = ntohs(address.sin_port);
  return {};
}

// The thread stays in the namespace, where all of its sockets are made.
Status RealProxy::Begin(int network) {
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  Status status;
  std::atomic<bool> ready{false};
  thread_ = std::thread([&, network] {
    status = Listen(network);
    const bool ok = status.ok();
    ready = true;
    ready.notify_all();
    if (ok) Run();
  });
  ready.wait(false);
  return status;
}

void RealProxy::Accept() {
  while (true) {
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (client < 0) return;
    sockaddr_in meant{};
    socklen_t size = sizeof(meant);
    const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int mark = kMark;
    const int one = 1;
    bool ok = server >= 0 && getsockopt(client, SOL_IP, kOriginalDestination, &meant, &size) == 0;
    ok = ok && setsockopt(server, SOL_SOCKET, SO_MARK, &mark, sizeof(mark)) == 0;
    for (const int socket : {client, server}) {
      setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    }
    ok = ok &&
         (connect(server, reinterpret_cast<sockaddr*>(&meant), size) == 0 || errno == EINPROGRESS);
    if (!ok) {
      Break(client);
      close(client);
      if (server >= 0) close(server);
      continue;
    }
    Pair& pair = pairs_.emplace_back();
    pair.client = client;
    pair.server = server;
    pair.flows[0].from = pair.flows[1].to = client;
    pair.flows[0].to = pair.flows[1].from = server;
  }
}

void RealProxy::Watch(std::vector<pollfd>* polled, Instant now, Instant* next) const {
  for (const Pair& pair : pairs_) {
    pollfd client{.fd = pair.client, .events = 0, .revents = 0};
    pollfd server{.fd = pair.server, .events = 0, .revents = 0};
    const auto add = [&](int socket, short event) {
      pollfd& entry = socket == pair.client ? client : server;
      entry.events = static_cast<short>(entry.events | event);
    };
    if (pair.connecting) add(pair.server, POLLOUT);
    for (const Flow& flow : pair.flows) {
      if (!pair.connecting && !flow.ended && flow.bytes < kMostHeld) add(flow.from, POLLIN);
      const bool waits = !flow.held.empty() || (flow.ended && !flow.end_sent);
      if (pair.connecting || !waits) continue;
      const Instant due = flow.held.empty() ? flow.end_due : flow.held.front().due;
      if (due > now) {
        *next = std::min(*next, due);
      } else {
        add(flow.to, POLLOUT);
      }
    }
    polled->push_back(client);
    polled->push_back(server);
  }
}

void RealProxy::Read(Pair* pair, Flow* flow, Instant now) {
  while (!flow->ended && flow->bytes < kMostHeld) {
    Piece piece;
    piece.bytes.resize(kPiece);
    const ssize_t got = recv(flow->from, piece.bytes.data(), piece.bytes.size(), 0);
    piece.due = now + Duration::Nanos(delay_ns_);
    // A shorter delay than before must not let bytes overtake others.
    if (!flow->held.empty()) piece.due = std::max(piece.due, flow->held.back().due);
    if (got > 0) {
      piece.bytes.resize(static_cast<std::size_t>(got));
      flow->bytes += piece.bytes.size();
      flow->held.push_back(std::move(piece));
      continue;
    }
    if (got == 0) {
      flow->ended = true;
      flow->end_due = piece.due;
    } else if (errno != EAGAIN && errno != EINTR) {
      pair->broken = true;
    }
    return;
  }
}

void RealProxy::Write(Pair* pair, Flow* flow, Instant now) {
  while (!flow->held.empty() && flow->held.front().due <= now) {
    Piece& piece = flow->held.front();
    const ssize_t sent = send(flow->to, piece.bytes.data() + piece.sent,
                              piece.bytes.size() - piece.sent, MSG_NOSIGNAL);
    if (sent < 0) {
      pair->broken = pair->broken || (errno != EAGAIN && errno != EINTR);
      return;
    }
    piece.sent += static_cast<std::size_t>(sent);
    flow->bytes -= static_cast<std::size_t>(sent);
    if (piece.sent == piece.bytes.size()) flow->held.pop_front();
  }
  if (flow->ended && flow->held.empty() && !flow->end_sent && flow->end_due <= now) {
    shutdown(flow->to, SHUT_WR);
    flow->end_sent = true;
  }
}

void RealProxy::Serve(Pair* pair, Instant now) {
  if (pair->connecting) {
    pollfd connected{.fd = pair->server, .events = POLLOUT, .revents = 0};
    if (poll(&connected, 1, 0) > 0) {
      int error = 0;
      socklen_t size = sizeof(error);
      getsockopt(pair->server, SOL_SOCKET, SO_ERROR, &error, &size);
      pair->broken = error != 0;
      pair->connecting = false;
    }
    if (pair->connecting) return;
  }
  for (Flow& flow : pair->flows) {
    if (!pair->broken) Read(pair, &flow, now);
    if (!pair->broken) Write(pair, &flow, now);
  }
}

void RealProxy::Run() {
  while (!stop_) {
    Instant now = MonotonicNow();
    Instant next = Instant::Never();
    std::vector<pollfd> polled = {{.fd = listener_, .events = POLLIN, .revents = 0},
                                  {.fd = wake_, .events = POLLIN, .revents = 0}};
    Watch(&polled, now, &next);
    timespec wait{};
    const Duration left = next - now;
    if (next < Instant::Never()) {
      wait.tv_sec = left.nanos() / 1'000'000'000;
      wait.tv_nsec = left.nanos() % 1'000'000'000;
    }
    ppoll(polled.data(), polled.size(), next < Instant::Never() ? &wait : nullptr, nullptr);
    now = MonotonicNow();
    Accept();
    for (auto pair = pairs_.begin(); pair != pairs_.end();) {
      Serve(&*pair, now);
      const bool done = pair->flows[0].end_sent && pair->flows[1].end_sent;
      if (!pair->broken && !done) {
        ++pair;
        continue;
      }
      for (const int socket : {pair->client, pair->server}) {
        if (pair->broken) Break(socket);
        close(socket);
      }
      pair = pairs_.erase(pair);
    }
  }
  for (const Pair& pair : pairs_) {
    close(pair.client);
    close(pair.server);
  }
  pairs_.clear();
}

}  // namespace

Result<std::unique_ptr<Proxy>> Proxy::Start(int network) {
  auto proxy = std::make_unique<RealProxy>();
  if (const Status begun = proxy->Begin(network); !begun.ok()) return begun;
  return std::unique_ptr<Proxy>(std::move(proxy));
}

}  // namespace muster::chaos
