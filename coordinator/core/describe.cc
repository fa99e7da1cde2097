#include "coordinator/core/describe.h"

namespace muster::coordinator {

std::string_view NameOf(JobPhase phase) {
  switch (phase) {
    case JobPhase::kWaiting: return "waiting";
    case JobPhase::kForming: return "forming";
    case JobPhase::kRunning: return "running";
    case JobPhase::kEnded: return "ended";
  }
  return "unknown";
}

std::string_view NameOf(EventKind kind) {
  switch (kind) {
    case EventKind::kJobCreated: return "job_created";
    case EventKind::kWorkerJoined: return "worker_joined";
    case EventKind::kWorkerSuspected: return "worker_suspected";
    case EventKind::kSuspicionWithdrawn: return "suspicion_withdrawn";
    case EventKind::kWorkerDead: return "worker_dead";
    case EventKind::kWorkerLeft: return "worker_left";
    case EventKind::kCoolingDown: return "cooling_down";
    case EventKind::kForming: return "forming";
    case EventKind::kAssigned: return "assigned";
    case EventKind::kStarted: return "started";
    case EventKind::kFirstStep: return "first_step";
    case EventKind::kRolledBack: return "rolled_back";
    case EventKind::kCheckpointComplete: return "checkpoint_complete";
    case EventKind::kCheckpointAnnounced: return "checkpoint_announced";
    case EventKind::kCheckpointAborted: return "checkpoint_aborted";
    case EventKind::kCheckpointVoid: return "checkpoint_void";
    case EventKind::kCheckpointRemoved: return "checkpoint_removed";
    case EventKind::kCheckpointPinned: return "checkpoint_pinned";
    case EventKind::kWaiting: return "waiting";
    case EventKind::kRefused: return "refused";
    case EventKind::kRestored: return "restored";
    case EventKind::kAdopted: return "adopted";
    case EventKind::kEnded: return "ended";
  }
  return "unknown";
}

std::string_view CauseText(Cause cause) {
  switch (cause) {
    case Cause::kFirstFormation: return "the first formation";
    case Cause::kGrowth: return "waiting workers are taken in";
    case Cause::kLeave: return "a worker leaves as planned";
    case Cause::kProcessDied: return "a worker's process died";
    case Cause::kConnectionLost: return "a worker's connection was lost";
    case Cause::kLeaseExpired: return "a worker fell silent";
    case Cause::kOperationFailed: return "a collective operation failed";
    case Cause::kNoProgress: return "a worker does not enter the operation others wait in";
    case Cause::kFormingFailed: return "the generation being formed could not be built";
    case Cause::kCoordinatorRestart: return "the coordinator came back to a broken generation";
  }
  return "unknown";
}

}  // namespace muster::coordinator
