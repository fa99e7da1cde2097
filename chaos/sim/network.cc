#include "chaos/sim/network.h"

#include <algorithm>

namespace muster::sim {

SessionId Network::Open(int process, int node) {
  const SessionId id(next_++);
  Session session;
  session.process = process;
  session.node = node;
  sessions_.emplace(id, session);
  return id;
}

Session* Network::Find(SessionId id) {
  const auto it = sessions_.find(id);
  return it == sessions_.end() ? nullptr : &it->second;
}

std::vector<SessionId> Network::All() const {
  std::vector<SessionId> all;
  for (const auto& [id, session] : sessions_) all.push_back(id);
  return all;
}

bool Network::AnyPeerBlocked(int worker) const {
  return std::ranges::any_of(peers_, [&](const auto& entry) {
    return entry.second > 0 && (entry.first.first == worker || entry.first.second == worker);
  });
}

}  // namespace muster::sim
