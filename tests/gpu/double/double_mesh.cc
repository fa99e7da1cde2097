#include "tests/gpu/double/double_mesh.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "tests/gpu/double/double_hooks.h"

namespace muster::gpu_double {
namespace {

struct Hello {
  std::uint64_t magic = 0;
  std::uint32_t purpose = 0;
  std::int32_t rank = 0;
};

std::string Text(const Label& label) {
  return "operation " + std::to_string(label.kind) + " number " + std::to_string(label.sequence) +
         " type " + std::to_string(label.type) + "/" + std::to_string(label.detail) + " of " +
         std::to_string(label.bytes) + " bytes";
}

// How far one direction of a link has come: whole parts, and bytes of the one at hand, of which the
// label is the beginning.
struct Progress {
  std::size_t part = 0;
  std::size_t offset = 0;
  Label received;
};

enum class Moved { kSome, kMustWait, kGone };

// Up to `bytes` at `at`, through `move` (send or recv).
template <class Move>
Moved MoveSome(Progress* progress, Move move) {
  const ssize_t moved = move();
  if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    return Moved::kMustWait;
  }
  if (moved <= 0) return Moved::kGone;
  progress->offset += static_cast<std::size_t>(moved);
  return Moved::kSome;
}

// Sends until it would have to wait.
Moved SendParts(int fd, const std::vector<Outgoing>& parts, Progress* progress) {
  while (progress->part < parts.size()) {
    const Outgoing& part = parts[progress->part];
    const bool in_label = progress->offset < sizeof(Label);
    const std::size_t from = in_label ? progress->offset : progress->offset - sizeof(Label);
    const std::size_t size = in_label ? sizeof(Label) : part.label.bytes;
    const auto* const data = in_label ? reinterpret_cast<const std::byte*>(&part.label) : part.data;
    if (from == size && !in_label) {
      *progress = {progress->part + 1, 0, {}};
      continue;
    }
    const Moved moved =
        MoveSome(progress, [&] { return ::send(fd, data + from, size - from, MSG_NOSIGNAL); });
    if (moved != Moved::kSome) return moved;
  }
  return Moved::kSome;
}

Moved ReceiveParts(int fd, int peer, const std::vector<Incoming>& parts, Progress* progress) {
  while (progress->part < parts.size()) {
    const Incoming& part = parts[progress->part];
    const bool in_label = progress->offset < sizeof(Label);
    if (progress->offset == sizeof(Label) && progress->received != part.label) {
      Die("ranks run different operations: here " + Text(part.label) + ", at rank " +
          std::to_string(peer) + " " + Text(progress->received));
    }
    const std::size_t from = in_label ? progress->offset : progress->offset - sizeof(Label);
    const std::size_t size = in_label ? sizeof(Label) : part.label.bytes;
    auto* const data = in_label ? reinterpret_cast<std::byte*>(&progress->received) : part.data;
    if (from == size && !in_label) {
      *progress = {progress->part + 1, 0, {}};
      continue;
    }
    const Moved moved = MoveSome(progress, [&] { return ::recv(fd, data + from, size - from, 0); });
    if (moved != Moved::kSome) return moved;
  }
  return Moved::kSome;
}

}  // namespace

Outcome Mesh::Form(const std::vector<Member>& members, int rank, Purpose purpose,
                   const Socket& listener, const Interrupt& interrupt) {
  const int size = static_cast<int>(members.size());
  links_.resize(members.size());
  const Hello self{members[static_cast<std::size_t>(rank)].magic, purpose, rank};
  Outcome outcome = Outcome::kDone;
  for (int peer = 0; peer < rank && outcome == Outcome::kDone; ++peer) {
    Socket& link = links_[static_cast<std::size_t>(peer)];
    const auto port = static_cast<std::uint16_t>(members[static_cast<std::size_t>(peer)].port);
    outcome = Connect(port, interrupt, &link);
    if (outcome == Outcome::kDone) outcome = Send(link, &self, sizeof self, interrupt);
  }
  for (int missing = size - 1 - rank; missing > 0 && outcome == Outcome::kDone;) {
    Socket visitor;
    outcome = Accept(listener, interrupt, &visitor);
    Hello hello;
    if (outcome != Outcome::kDone) break;
    if (Receive(visitor, &hello, sizeof hello, interrupt) != Outcome::kDone) continue;
    if (hello.magic != self.magic || hello.purpose != purpose || hello.rank <= rank ||
        hello.rank >= size) {
      continue;
    }
    links_[static_cast<std::size_t>(hello.rank)] = std::move(visitor);
    --missing;
  }
  // Everyone says to the higher ranks that all its connections are there, so that nobody is done
  // before all have come.
  char ready = 'R';
  for (int peer = rank + 1; peer < size && outcome == Outcome::kDone; ++peer) {
    outcome = Send(links_[static_cast<std::size_t>(peer)], &ready, 1, interrupt);
  }
  for (int peer = 0; peer < rank && outcome == Outcome::kDone; ++peer) {
    outcome = Receive(links_[static_cast<std::size_t>(peer)], &ready, 1, interrupt);
  }
  return outcome;
}

Outcome Mesh::Exchange(std::vector<std::vector<Outgoing>> outgoing,
                       std::vector<std::vector<Incoming>> incoming, const Interrupt& interrupt,
                       int* gone) {
  const std::size_t size = links_.size();
  std::vector<Progress> sent(size);
  std::vector<Progress> received(size);
  while (true) {
    std::vector<pollfd> polled = {{interrupt.fd(), POLLIN, 0}};
    for (std::size_t peer = 0; peer < size; ++peer) {
      if (!links_[peer].open()) continue;
      const int fd = links_[peer].fd();
      const bool told = SendParts(fd, outgoing[peer], &sent[peer]) != Moved::kGone;
      const bool heard =
          ReceiveParts(fd, static_cast<int>(peer), incoming[peer], &received[peer]) != Moved::kGone;
      if (!told || !heard) {
        *gone = static_cast<int>(peer);
        return Outcome::kPeerGone;
      }
      short events = 0;
      if (sent[peer].part < outgoing[peer].size()) events |= POLLOUT;
      if (received[peer].part < incoming[peer].size()) events |= POLLIN;
      if (events != 0) polled.push_back({fd, events, 0});
    }
    if (interrupt.raised()) return Outcome::kInterrupted;
    if (polled.size() == 1) return Outcome::kDone;
    while (::poll(polled.data(), polled.size(), -1) < 0 && errno == EINTR) {
    }
  }
}

}  // namespace muster::gpu_double
