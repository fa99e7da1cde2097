// Forming: how the members of a new generation find each other, one duplex connection per pair.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "protocol/ids.h"
#include "protocol/status.h"
#include "protocol/time.h"
#include "worker/collective/endpoint.h"
#include "worker/collective/socket.h"
#include "worker/collective/tcp_listener.h"

namespace muster {

// One generation's members as one of them sees them.
struct TcpGroup {
  JobName job;
  Lineage lineage;
  Generation generation;
  Rank rank;                        // of this worker
  std::vector<Endpoint> endpoints;  // of the listeners of all members, by rank
};

struct TcpMesh {
  std::vector<UniqueFd> sockets;         // by rank; the own entry is empty
  std::optional<Rank> unreachable = {};  // the only rank that was missing when forming failed
  Status status = {};
};

// Connects this worker with all others of the group: it dials the lower ranks and accepts the
// higher ones. Every connection proves job, lineage, generation, ranks and member list both ways
// before it counts, so strangers, stale generations and abandoned attempts are turned away without
// harm. A peer that is not there yet, or still in an older generation, is tried again until
// `deadline`; connections of a newer generation are told to come again.
// Errors in `status`: kInterrupted when `abort` is raised; kDeadlineExceeded naming who is missing
// and why; kUnavailable when a peer is already in a newer generation; kInvalidArgument for a group
// that makes no sense. Blocks the calling thread, and starts none.
[[nodiscard]] TcpMesh FormTcpMesh(TcpListener& listener, const TcpGroup& group,
                                  Duration forming_deadline, Duration patience,
                                  const AbortSignal& abort);

}  // namespace muster
