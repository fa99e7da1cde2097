// What can happen to a worker: on its connection to the coordinator, on its data plane, and in the
// training thread, which tells where it stands.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "protocol/messages.h"
#include "protocol/status.h"
#include "protocol/time.h"

namespace muster::worker {

// --- The connection ----------------------------------------------------------------------------

// The dial that Effects::dial asked for under this number succeeded.
struct Connected {
  std::int64_t connection = 0;
};
// It failed, or the connection ended.
struct Disconnected {
  std::int64_t connection = 0;
  Status why;
};
// What lies in the checkpoint directory now; to be handed in before Connected while
// Session::looks_at_checkpoints(), for what was found when the process began may be long gone.
struct Looked {
  std::optional<Found> found;
};
struct Received {
  std::int64_t connection = 0;
  Message message;
};
// The communicators are aborted and no call is inside one any more, as Effects::abort asked.
struct Aborted {
  double abort_ms = 0;
};
// The time of NextDeadline() has come; harmless at any other. `operations` and `waiting` are those
// of the present communicator.
struct Tick {
  std::uint64_t operations = 0;
  bool waiting = false;
};

// --- The training thread -----------------------------------------------------------------------

// BeginStep was reached: what Commit() returned is applied, the state is clean, and the worker can
// be a member from now on.
struct AtBoundary {};
// Commit() has returned the outcome.
struct OutcomeTaken {};
// The snapshot of Session::snapshot_due() was taken, or skipped because another one is being saved.
struct SnapshotTaken {};
// The training thread has come to build the assigned generation.
struct FormingBegun {};
// Session::mints_group_id() was true, and this is the id, of 1 to kMaxGroupIdBytes. Without effect
// when the assignment to that generation is of no use any more.
struct IdMinted {
  Generation generation;
  std::string id;
};
// The assigned generation is built and its state is in place.
struct FormedHere {
  Generation generation;
  double form_ms = 0;
  double restore_ms = 0;
  std::int64_t restored_bytes = 0;
};
struct FormBroke {
  FormFailed failure;
};
// Work on step committed + 1 begins. REQUIRES: Next() was kTrain, and the generation is Running().
struct StepOpened {};
// This rank has added its micro-batches and enters the reduction.
struct ReduceBegun {};
// The gradient is reduced; the vote is about to leave. Afterwards Session::prepared() says whether
// it may.
struct Prepare {
  Step step;
  Outcome vote = Outcome::kApply;
  Wishes wishes;
  double loss = 0;
};
// All votes came in: the outcome is this rank's own vote, and these wishes are agreed.
struct VoteDone {
  Step step;
  Wishes agreed;
};
// An operation on the data plane failed (not by an abort of this side).
struct OperationBroke {
  Generation generation;
  Step step;
  Code code = Code::kInternal;
  std::string reason;
  Rank peer{-1};
};
// All steps of the spec are committed and whatever has to follow them is done.
struct StepsDone {};
struct PhaseBegun {
  std::string name;
  Instant until;
};
struct PhaseDone {};
// RequestLeave. `within`: the process is killed after this time; zero: nothing is known of that.
struct LeaveWanted {
  std::string reason;
  Duration within = {};
};
// This process can do nothing for the job any more: what it computes on is lost.
struct Unfit {
  Status why;
};
// Finish before the end of the job, or misuse: no further step will be asked for.
struct FinishCalled {
  std::string reason;
};

// --- The saver ---------------------------------------------------------------------------------

// Something that the saver did: ShardWritten, ShardFailed, ManifestWritten or CheckpointRemoved.
// Kept until it can be sent, and sent again after a reconnection as long as it may matter.
struct Report {
  Message message;
};

using Input =
    std::variant<Connected, Disconnected, Looked, Received, Aborted, Tick, AtBoundary, OutcomeTaken,
                 SnapshotTaken, FormingBegun, IdMinted, FormedHere, FormBroke, StepOpened,
                 ReduceBegun, Prepare, VoteDone, OperationBroke, StepsDone, PhaseBegun, PhaseDone,
                 LeaveWanted, Unfit, FinishCalled, Report>;

}  // namespace muster::worker
