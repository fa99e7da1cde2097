// The control network of one simulated job: which directions are blocked, and the sessions, whose
// messages keep their order in each direction.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "protocol/ids.h"
#include "protocol/time.h"

namespace muster::sim {

struct Session {
  int process = -1;  // the worker's; -1: a launcher's
  int node = -1;     // the launcher's
  Instant last_up;   // when the last message of this direction arrives
  Instant last_down;
};

class Network {
 public:
  explicit Network(int workers)
      : up_(static_cast<std::size_t>(workers)), down_(static_cast<std::size_t>(workers)) {}

  [[nodiscard]] SessionId Open(int process, int node);
  [[nodiscard]] Session* Find(SessionId id);
  void Forget(SessionId id) { sessions_.erase(id); }
  [[nodiscard]] std::vector<SessionId> All() const;
  // The session breaks: what is still in flight is lost, also when one end has forgotten it.
  void Cut(SessionId id) { cut_.insert(id); }
  [[nodiscard]] bool IsCut(SessionId id) const { return cut_.contains(id); }

  // From a worker to the coordinator, and back. Blocks of several faults add up.
  void BlockUp(int worker, int by) { At(up_, worker) += by; }
  void BlockDown(int worker, int by) { At(down_, worker) += by; }
  [[nodiscard]] bool UpBlocked(int worker) const { return At(up_, worker) > 0; }
  [[nodiscard]] bool DownBlocked(int worker) const { return At(down_, worker) > 0; }
  // What `from` sends to `to` on the data plane.
  void BlockPeer(int from, int to, int by) { peers_[{from, to}] += by; }
  [[nodiscard]] bool PeerBlocked(int from, int to) const {
    const auto it = peers_.find({from, to});
    return it != peers_.end() && it->second > 0;
  }
  [[nodiscard]] bool AnyPeerBlocked(int worker) const;
  // All of its state but the next number, for those who compare states.
  template <class Visit>
  void VisitState(Visit&& visit) const {
    visit(up_, down_, peers_, sessions_);
  }

 private:
  using Flags = std::vector<int>;
  [[nodiscard]] static int& At(Flags& flags, int worker) {
    return flags[static_cast<std::size_t>(worker)];
  }
  [[nodiscard]] static int At(const Flags& flags, int worker) {
    return flags[static_cast<std::size_t>(worker)];
  }

  Flags up_;
  Flags down_;
  std::map<std::pair<int, int>, int> peers_;
  std::map<SessionId, Session> sessions_;
  std::set<SessionId> cut_;
  std::int64_t next_ = 1;
};

}  // namespace muster::sim
