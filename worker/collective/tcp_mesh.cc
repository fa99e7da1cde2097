#include "worker/collective/tcp_mesh.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <string_view>
#include <system_error>
#include <utility>

#include "worker/collective/frame.h"

namespace muster {
namespace {

constexpr Duration kFirstBackoff = Duration::Millis(5);
constexpr Duration kLongestBackoff = Duration::Millis(200);
// How long one address of several is tried before the next. Nothing is lost by giving up early: an
// attempt counts only once it is confirmed.
constexpr Duration kAddressPatience = Duration::Seconds(2);
// Strangers may hold this many unproven connections; then the oldest makes room.
constexpr std::size_t kUnprovenMax = 512;
constexpr Duration kAcceptPause = Duration::Millis(50);  // when descriptors have run out

std::string_view Why(Verdict verdict) {
  switch (verdict) {
    case Verdict::kAccepted: return "accepted";
    case Verdict::kNotYet: return "it is still in an older generation";
    case Verdict::kStale: return "it is already in a newer generation";
    case Verdict::kForeign: return "it belongs to another job or lineage";
    case Verdict::kMisplaced: return "it has another rank or another list of members";
    case Verdict::kDuplicate: return "it has a connection from this rank already";
  }
  return "it gave an answer that this version does not know";
}

// Greetings are smaller than any socket buffer: what does not arrive whole in one call has failed
// (out), or is continued later (in).
bool SendGreeting(int fd, const Greeting& greeting) {
  return ::send(fd, &greeting, sizeof greeting, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(sizeof greeting);
}

// Collects one greeting.
class GreetingReader {
 public:
  enum class State { kMore, kComplete, kFailed };
  State Read(int fd) {
    const ssize_t got = ::recv(fd, reinterpret_cast<char*>(&greeting_) + size_,
                               sizeof greeting_ - size_, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
      return State::kMore;
    }
    if (got <= 0) return State::kFailed;
    size_ += static_cast<std::size_t>(got);
    // Garbage is recognized by its first bytes, not waited for until there are 64 of them.
    const std::size_t magic_size = std::min(size_, kGreetingMagic.size());
    if (!std::equal(kGreetingMagic.begin(), kGreetingMagic.begin() + magic_size,
                    greeting_.magic.begin())) {
      return State::kFailed;
    }
    return size_ == sizeof greeting_ ? State::kComplete : State::kMore;
  }
  [[nodiscard]] const Greeting& greeting() const { return greeting_; }
  void Restart() { size_ = 0; }

 private:
  Greeting greeting_;
  std::size_t size_ = 0;
};

// The way to one lower rank.
struct Dial {
  std::int32_t rank = 0;
  enum class State { kWaiting, kConnecting, kGreeting, kLinked } state = State::kWaiting;
  std::vector<SocketAddress> addresses;
  std::size_t next_address = 0;
  UniqueFd fd;
  GreetingReader reader;
  Duration backoff = kFirstBackoff;
  Instant wake;  // kWaiting: when to try again; otherwise: when to give this address up
  std::string trouble = "not tried";
};

// A connection from somebody.
struct Caller {
  UniqueFd fd;
  GreetingReader reader;
  std::int32_t rank = -1;  // known, and welcomed, once its Hello fits
};

class MeshFormer {
 public:
  MeshFormer(TcpListener& listener, const TcpGroup& group, Duration patience,
             const AbortSignal& abort)
      : listener_(listener), group_(group), patience_(patience), abort_(abort) {
    sockets_.resize(group.endpoints.size());
    mine_.job_digest = DigestOf(group.job.value());
    mine_.lineage = group.lineage.value();
    mine_.generation = group.generation.value();
    mine_.from = group.rank.value();
    mine_.world_size = size();
    mine_.members_digest = DigestOf("");
    for (const Endpoint& endpoint : group.endpoints) {
      mine_.members_digest = DigestOf(endpoint.ToString() + "\n", mine_.members_digest);
    }
    for (std::int32_t rank = 0; rank < group.rank.value(); ++rank) {
      dials_.emplace_back().rank = rank;
    }
  }

  Status Run(Instant deadline) {
    MUSTER_RETURN_IF_ERROR(abort_.status());
    while (missing_ > 0) {
      if (abort_.raised()) return Interrupted("forming was aborted");
      const Instant now = PollClockNow();
      if (now >= deadline) return Late();
      for (Dial& dial : dials_) {
        if (dial.state != Dial::State::kLinked && now >= dial.wake) Retry(dial);
      }
      MUSTER_RETURN_IF_ERROR(Poll(deadline));
      MUSTER_RETURN_IF_ERROR(fatal_);
    }
    return {};
  }

  [[nodiscard]] std::vector<UniqueFd> TakeSockets() { return std::move(sockets_); }
  [[nodiscard]] std::optional<Rank> unreachable() const { return unreachable_; }

 private:
  [[nodiscard]] std::int32_t size() const {
    return static_cast<std::int32_t>(group_.endpoints.size());
  }

  // ---- Dialling the lower ranks ---------------------------------------------------------------
  void Retry(Dial& dial) {
    if (dial.state != Dial::State::kWaiting) {
      Fail(dial, dial.state == Dial::State::kConnecting ? "no answer to connect"
                                                        : "connected, but no greeting came");
      return;
    }
    if (dial.next_address >= dial.addresses.size()) {
      // Asked anew each round: a name may get another address while we wait.
      const Endpoint& endpoint = group_.endpoints[static_cast<std::size_t>(dial.rank)];
      Result<std::vector<SocketAddress>> addresses = Resolve(endpoint, false);
      dial.next_address = 0;
      dial.addresses.clear();
      if (!addresses.ok()) return Fail(dial, addresses.status().message());
      dial.addresses = std::move(*addresses);
    }
    const SocketAddress& address = dial.addresses[dial.next_address];
    dial.fd = UniqueFd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    dial.state = Dial::State::kConnecting;
    dial.wake = dial.addresses.size() > 1 ? PollClockNow() + kAddressPatience : Instant::Never();
    if (!dial.fd.valid() ||
        (::connect(dial.fd.get(), address.get(), address.size) != 0 && errno != EINPROGRESS)) {
      Fail(dial, std::generic_category().message(errno));
    }
  }

  void Fail(Dial& dial, std::string_view why) {
    dial.fd.Close();
    dial.state = Dial::State::kWaiting;
    dial.trouble = why;
    if (dial.next_address < dial.addresses.size()) {
      dial.trouble =
          dial.addresses[dial.next_address].ToEndpoint().ToString() + ": " + dial.trouble;
    }
    if (++dial.next_address < dial.addresses.size()) {
      dial.wake = Instant();  // the next address at once
      return;
    }
    dial.wake = PollClockNow() + dial.backoff;
    dial.backoff = std::min(dial.backoff * 2, kLongestBackoff);
  }

  void OnDial(Dial& dial) {
    if (dial.state == Dial::State::kConnecting) {
      int error = 0;
      socklen_t length = sizeof error;
      ::getsockopt(dial.fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
      if (error != 0) return Fail(dial, std::generic_category().message(error));
      TuneTcpSocket(dial.fd.get(), patience_);
      Greeting hello = mine_;
      hello.to = dial.rank;
      if (!SendGreeting(dial.fd.get(), hello)) return Fail(dial, "the connection broke");
      dial.reader.Restart();
      dial.state = Dial::State::kGreeting;
      return;
    }
    const GreetingReader::State state = dial.reader.Read(dial.fd.get());
    if (state == GreetingReader::State::kMore) return;
    if (state == GreetingReader::State::kFailed) {
      return Fail(dial, "it closed the connection, or is no worker of this version");
    }
    const Greeting& welcome = dial.reader.greeting();
    if (welcome.kind != GreetingKind::kWelcome) return Fail(dial, "it is no listener");
    if (welcome.verdict == Verdict::kStale && SameLineage(welcome) &&
        welcome.generation > mine_.generation) {
      fatal_ = Unavailable("rank " + std::to_string(dial.rank) + " at " +
                           group_.endpoints[static_cast<std::size_t>(dial.rank)].ToString() +
                           " is in generation " + std::to_string(welcome.generation) +
                           ": generation " + std::to_string(mine_.generation) + " is over");
      return;
    }
    if (welcome.verdict != Verdict::kAccepted) return Fail(dial, Why(welcome.verdict));
    if (Judge(welcome, dial.rank) != Verdict::kAccepted) {
      return Fail(dial, Why(Judge(welcome, dial.rank)));
    }
    Greeting confirm = mine_;
    confirm.to = dial.rank;
    confirm.kind = GreetingKind::kConfirm;
    if (!SendGreeting(dial.fd.get(), confirm)) return Fail(dial, "the connection broke");
    dial.state = Dial::State::kLinked;
    Link(dial.rank, std::move(dial.fd));
  }

  // ---- Accepting the higher ones --------------------------------------------------------------
  void Accept() {
    while (true) {
      UniqueFd fd(::accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd.valid()) {
        // A caller that hung up in the queue is no error of the listener.
        if (errno == ECONNABORTED || errno == EINTR || errno == EPROTO) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) accept_again_ = PollClockNow() + kAcceptPause;
        return;
      }
      if (callers_.size() >= kUnprovenMax) callers_.pop_front();
      callers_.emplace_back().fd = std::move(fd);
    }
  }

  // False when the caller is done with: linked, or turned away.
  bool OnCaller(Caller& caller) {
    const GreetingReader::State state = caller.reader.Read(caller.fd.get());
    if (state == GreetingReader::State::kMore) return true;
    if (state == GreetingReader::State::kFailed) return false;
    const Greeting& greeting = caller.reader.greeting();
    if (caller.rank >= 0) {
      // One that confirms second is refused: the first is in use already.
      if (greeting.kind == GreetingKind::kConfirm && greeting.from == caller.rank &&
          Judge(greeting, caller.rank) == Verdict::kAccepted && !Linked(caller.rank)) {
        Link(caller.rank, std::move(caller.fd));
      }
      return false;
    }
    if (greeting.kind != GreetingKind::kHello) return false;
    Greeting welcome = mine_;
    welcome.kind = GreetingKind::kWelcome;
    welcome.to = greeting.from;
    welcome.verdict = Judge(greeting, greeting.from);
    if (welcome.verdict == Verdict::kAccepted && greeting.from <= mine_.from) {
      welcome.verdict = Verdict::kMisplaced;  // lower ranks are dialled, they do not dial
    }
    if (welcome.verdict == Verdict::kAccepted && Linked(greeting.from)) {
      welcome.verdict = Verdict::kDuplicate;
    }
    if (welcome.verdict == Verdict::kAccepted) TuneTcpSocket(caller.fd.get(), patience_);
    if (!SendGreeting(caller.fd.get(), welcome)) return false;
    if (welcome.verdict != Verdict::kAccepted) return false;
    caller.rank = greeting.from;
    caller.reader.Restart();
    return true;
  }

  // ---- Both -----------------------------------------------------------------------------------
  [[nodiscard]] bool SameLineage(const Greeting& other) const {
    return other.job_digest == mine_.job_digest && other.lineage == mine_.lineage;
  }

  [[nodiscard]] Verdict Judge(const Greeting& other, std::int32_t rank) const {
    if (!SameLineage(other)) return Verdict::kForeign;
    if (other.generation > mine_.generation) return Verdict::kNotYet;
    if (other.generation < mine_.generation) return Verdict::kStale;
    if (other.from != rank || other.from < 0 || other.from >= size() || other.to != mine_.from ||
        other.world_size != size() || other.members_digest != mine_.members_digest) {
      return Verdict::kMisplaced;
    }
    return Verdict::kAccepted;
  }

  [[nodiscard]] bool Linked(std::int32_t rank) const {
    return sockets_[static_cast<std::size_t>(rank)].valid();
  }

  void Link(std::int32_t rank, UniqueFd fd) {
    sockets_[static_cast<std::size_t>(rank)] = std::move(fd);
    --missing_;
  }

  Status Poll(Instant deadline) {
    std::vector<pollfd> polled = {{abort_.fd(), POLLIN, 0}, {listener_.fd(), POLLIN, 0}};
    if (PollClockNow() < accept_again_) {
      polled[1].fd = -1;
      deadline = std::min(deadline, accept_again_);
    }
    std::vector<Dial*> dials;
    for (Dial& dial : dials_) {
      if (dial.state == Dial::State::kLinked) continue;
      deadline = std::min(deadline, dial.wake);
      if (dial.state == Dial::State::kWaiting) continue;
      const bool connecting = dial.state == Dial::State::kConnecting;
      polled.push_back({dial.fd.get(), static_cast<short>(connecting ? POLLOUT : POLLIN), 0});
      dials.push_back(&dial);
    }
    std::vector<std::list<Caller>::iterator> callers;
    for (auto caller = callers_.begin(); caller != callers_.end(); ++caller) {
      polled.push_back({caller->fd.get(), POLLIN, 0});
      callers.push_back(caller);
    }
    if (::poll(polled.data(), polled.size(), PollTimeout(deadline)) < 0 && errno != EINTR) {
      return FromErrno(errno, "poll while forming");
    }
    for (std::size_t i = 0; i < dials.size(); ++i) {
      if (polled[2 + i].revents != 0) OnDial(*dials[i]);
    }
    for (std::size_t i = 0; i < callers.size(); ++i) {
      if (polled[2 + dials.size() + i].revents != 0 && !OnCaller(*callers[i])) {
        callers_.erase(callers[i]);
      }
    }
    // Last, because it may drop an old caller that is looked at above.
    if (polled[1].fd >= 0 && polled[1].revents != 0) Accept();
    return {};
  }

  Status Late() {
    std::string names;
    std::int32_t last = -1;
    int count = 0;
    for (std::int32_t rank = 0; rank < size(); ++rank) {
      if (rank == mine_.from || Linked(rank)) continue;
      names += (names.empty() ? "rank " : "; rank ") + std::to_string(rank) + " (" +
               group_.endpoints[static_cast<std::size_t>(rank)].ToString() + ") ";
      names += rank < mine_.from ? dials_[static_cast<std::size_t>(rank)].trouble
                                 : std::string("has not dialled");
      last = rank;
      ++count;
    }
    if (count == 1) unreachable_ = Rank(last);
    return DeadlineExceeded("generation " + std::to_string(mine_.generation) + ", rank " +
                            std::to_string(mine_.from) + ": not connected in time to " + names);
  }

  TcpListener& listener_;
  const TcpGroup& group_;
  const Duration patience_;
  const AbortSignal& abort_;
  Greeting mine_;
  std::vector<UniqueFd> sockets_;
  std::int32_t missing_ = static_cast<std::int32_t>(group_.endpoints.size()) - 1;
  std::vector<Dial> dials_;
  std::list<Caller> callers_;
  Instant accept_again_;
  Status fatal_;
  std::optional<Rank> unreachable_;
};

}  // namespace

TcpMesh FormTcpMesh(TcpListener& listener, const TcpGroup& group, Duration forming_deadline,
                    Duration patience, const AbortSignal& abort) {
  TcpMesh mesh;
  const std::int32_t rank = group.rank.value();
  if (rank < 0 || static_cast<std::size_t>(rank) >= group.endpoints.size()) {
    mesh.status = InvalidArgument("rank " + std::to_string(rank) + " in a group of " +
                                  std::to_string(group.endpoints.size()) + " endpoints");
    return mesh;
  }
  MeshFormer former(listener, group, patience, abort);
  mesh.status = former.Run(PollClockNow() + forming_deadline);
  if (mesh.status.ok()) {
    mesh.sockets = former.TakeSockets();
  } else {
    mesh.unreachable = former.unreachable();
  }
  return mesh;
}

}  // namespace muster
