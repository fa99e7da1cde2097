// What the driver has to do after Handle, in this order: make `persist` durable in one synced
// batch; then send; then close; then publish. Sending before the batch is durable would let a
// worker act on a decision that a crash forgets.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "protocol/messages.h"
#include "protocol/records.h"
#include "protocol/time.h"

namespace muster::coordinator {

struct PutJob {
  JobRecord record;
};
struct PutCheckpoint {
  JobName job;
  CheckpointEntry entry;
};
struct DropCheckpoint {
  JobName job;
  CheckpointKey key;
};
using Persist = std::variant<PutJob, PutCheckpoint, DropCheckpoint>;

struct Send {
  SessionId to;
  Message message;
};

// Who was blamed for an incident, and on what evidence.
struct Blame {
  Member member;
  Cause cause = Cause::kConnectionLost;
  std::string evidence;  // "launcher of node n1 saw pid 4711 end: killed by signal 9 (SIGKILL)"
};

// One way from a generation to the next, with consecutive phases.
struct Incident {
  std::int64_t number = 0;
  Cause cause = Cause::kGrowth;
  std::vector<Blame> blamed;
  Generation from;
  Generation to;
  std::int32_t world_before = 0;
  std::int32_t world_after = 0;
  Instant noticed;      // first evidence
  Duration abort;       // longest abort that a worker reported
  Duration ready;       // from the interrupt to the durable decision, less `abort`
  Duration form;        // from the decision to the last `formed`, less `restore`
  Duration restore;     // longest restore that a worker reported
  Duration first_step;  // from `start` until a commit was reported
  RestoreSource restored_from = RestoreSource::kLive;
  Step restored_step;
  std::int64_t steps_redone = 0;  // committed ones that the rollback voided
  int attempts = 1;
  bool complete = false;  // the first step after it is committed
};

enum class EventKind {
  kJobCreated,
  kWorkerJoined,
  kWorkerSuspected,
  kSuspicionWithdrawn,
  kWorkerDead,
  kWorkerLeft,
  kCoolingDown,
  kForming,
  kAssigned,
  kStarted,
  kFirstStep,
  kRolledBack,
  kCheckpointComplete,
  kCheckpointAnnounced,
  kCheckpointAborted,
  kCheckpointVoid,
  kCheckpointRemoved,
  kCheckpointPinned,
  kWaiting,
  kRefused,
  kRestored,
  kAdopted,
  kEnded,
};

struct Event {
  JobName job;
  EventKind kind = EventKind::kForming;
  Instant at;
  Generation generation;
  Step step;
  std::optional<Member> member;
  std::string detail;                // one line for a person
  std::optional<Incident> incident;  // with kStarted and kFirstStep
};

struct Effects {
  std::vector<Persist> persist;
  std::vector<Send> sends;
  std::vector<SessionId> closes;  // once what was sent to them has been written
  std::vector<Event> events;

  [[nodiscard]] bool empty() const {
    return persist.empty() && sends.empty() && closes.empty() && events.empty();
  }
};

}  // namespace muster::coordinator
