// What can happen to the coordinator.
#pragma once

#include <string>
#include <variant>

#include "protocol/messages.h"

namespace muster::coordinator {

// A message arrived on a session. The first one of a session is Hello or LauncherHello.
struct Received {
  SessionId session;
  Message message;
  std::string peer_address;  // of the connection, without port
};

// The connection of a session is gone, for whatever reason.
struct Closed {
  SessionId session;
};

// The time of NextDeadline() has come. Harmless at any other time. The driver first hands in
// whatever readable sockets hold, so that a late heartbeat counts before anyone is expired.
struct Tick {};

// The driver itself was late by this much (a long push, a stopped process): every lease is
// credited, because silence in that time says nothing about the workers.
struct Lagged {
  Duration by;
};

// An operator's command: adopt or abandon (after the store was lost), or go on without the members
// that are out of sight, without waiting for `autonomy`. They may train on until it is over: what
// they do is void, and a fresh lineage keeps their files and connections apart.
struct ForceAdopt {
  JobName job;
};

// An operator's command: let a worker, a node, or a worker on a node go (what is empty means any;
// not both may be). Members leave at the next step boundary, as if they had asked themselves, and
// within `within` of now when that is set (see leave_rule.h). Workers that wait there, and those
// that come later, are welcomed and wait like spares, but are never taken, not even when too few
// others are left, until the same place is named again with `undo`. The places are durable.
struct Drain {
  JobName job;
  WorkerId worker;
  NodeName node;
  Duration within;
  bool undo = false;
};

// Empty, or what the codec takes for a name: commands with others are ignored.
[[nodiscard]] bool IsName(const std::string& name);

using Input = std::variant<Received, Closed, Tick, Lagged, ForceAdopt, Drain>;

}  // namespace muster::coordinator
