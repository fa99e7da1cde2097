// The control messages between workers or launchers and the coordinator. protocol/README.md has the
// table; protocol/codec.h the JSON. Durations in milliseconds are what their sender measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "protocol/records.h"
#include "protocol/status.h"

namespace muster {

// Why the coordinator interrupts or a round was begun. Also the `kind` of an incident.
enum class Cause {
  kFirstFormation,
  kGrowth,           // waiting workers are taken in at an agreed boundary
  kLeave,            // a member leaves as planned
  kProcessDied,      // a launcher saw the process end
  kConnectionLost,   // its session closed and it did not come back within the grace
  kLeaseExpired,     // silent for the failure timeout
  kOperationFailed,  // a collective failed, with or without a death
  kNoProgress,       // heartbeats arrive, but it does not enter the operation others wait in
  kFormingFailed,    // the generation being formed lost a member or could not be built
  kCoordinatorRestart,
};

// --- Worker to coordinator ---------------------------------------------------------------------

// Where a worker that already took part stands; absent for a fresh one.
struct Attachment {
  GenerationRecord record;  // of the generation it is in, or was last in
  bool started = false;     // did it see `start` for it?
  Step committed;           // last step whose outcome it knows
  Generation aborted_for;   // it aborted its communicators for this forming generation; zero: no
  bool stopped = false;     // it waits at the boundary after `committed`, as agreed in a vote
  friend bool operator==(const Attachment&, const Attachment&) = default;
};

// A checkpoint whose manifest lies in the job's checkpoint directory, and is whole.
struct FoundCheckpoint {
  CheckpointKey key;
  Lineage lineage;
  std::int32_t world_size = 0;
  std::uint64_t manifest_digest = 0;
  std::int64_t bytes = 0;  // of all files
  friend bool operator==(const FoundCheckpoint&, const FoundCheckpoint&) = default;
};

// What a worker found in the checkpoint directory when it joined: enough to go on from for a
// coordinator whose store knows nothing of the job.
struct Found {
  Generation highest;                        // that any directory there is named after
  std::vector<FoundCheckpoint> checkpoints;  // the newest ones, by (generation, step)
  friend bool operator==(const Found&, const Found&) = default;
};

// First message of a worker on each connection.
struct Hello {
  int major = kProtocolMajor;
  int minor = kProtocolMinor;
  JobName job;
  Member member;
  bool explicit_name = false;  // the user chose the worker's name: a live twin is an error
  NodeName node;
  std::int64_t pid = 0;  // lets the launcher of the node attest this process
  std::string address;   // where its data plane listens; host empty: as the coordinator sees it
  bool able = false;     // its training thread waits for an assignment
  JobSpec spec;
  Generation highest;  // greatest generation number it has seen
  std::optional<Attachment> attachment;
  std::optional<Found> found;  // of a worker that has not taken part yet
  friend bool operator==(const Hello&, const Hello&) = default;
};

// The training thread asks for its first step: the worker can be a member from now on.
struct Able {
  friend bool operator==(const Able&, const Able&) = default;
};

// Where a rank is within its step.
enum class Stage { kIdle, kCompute, kReduce, kVote, kApply, kBoundary, kForming };

// Renews the lease (as any message does). Sent at the interval that the last Ack asked for, and at
// once after the first commit of a generation.
struct Heartbeat {
  std::int64_t sequence = 0;
  Generation generation;
  Step committed;
  double loss = 0;  // of the last committed step; mean over its weights
  Stage stage = Stage::kIdle;
  std::uint64_t operations = 0;  // begun on the data plane in this generation
  bool waiting = false;          // inside a data-plane operation now
  std::string phase;             // named by the user (`Phase`); empty: none
  Duration phase_left;           // time until the phase's own deadline
  std::int64_t skips = 0;        // consecutive, up to `committed`
  friend bool operator==(const Heartbeat&, const Heartbeat&) = default;
};

// The step that was open when the communicators were aborted.
struct OpenStep {
  Step step;
  bool prepared = false;          // holds the fully reduced gradient and has voted or may have
  Outcome vote = Outcome::kNone;  // kApply or kSkip when prepared
  Wishes wishes;                  // those it put in its own vote
  friend bool operator==(const OpenStep&, const OpenStep&) = default;
};

// Answer to Interrupt, sent by the control thread when the abort has taken effect.
struct Ready {
  Generation forming;            // the interrupt that it answers
  Generation generation;         // last started generation that it was a member of; zero: none
  Step committed;                // last step whose outcome it knows (apply or skip)
  Wishes wishes;                 // agreed in the vote of `committed`
  std::optional<OpenStep> open;  // above `committed`
  bool holds_state = false;  // its memory is, or will be once it finishes applying, the state at
                             // `committed`, in the cut of `generation`
  Lineage lineage;
  double abort_ms = 0;
  friend bool operator==(const Ready&, const Ready&) = default;
};

// The id by which the members of one generation find each other on the data plane (Backend::kNccl).
// Up: rank 0 of the assigned record has minted it. Down: to the other members, from then on. It
// holds for this generation alone, and nobody keeps it for longer than its round.
struct GroupId {
  Generation generation;
  std::string id;  // any bytes, 1 to kMaxGroupIdBytes
  friend bool operator==(const GroupId&, const GroupId&) = default;
};

struct Formed {
  Generation generation;
  double form_ms = 0;     // building and proving the communicators, waiting for peers included
  double restore_ms = 0;  // after that
  std::int64_t restored_bytes = 0;
  friend bool operator==(const Formed&, const Formed&) = default;
};

// The assigned generation cannot be built by this worker.
struct FormFailed {
  Generation generation;
  Code code = Code::kInternal;
  std::string reason;
  Rank peer{-1};  // the rank whose connection failed; -1: none
  // Set when a checkpoint could not be loaded (kDataLoss or kNotFound): it is struck out.
  std::optional<CheckpointKey> bad_checkpoint;
  // The checkpoint is whole, but not one of this job's tensors: no other attempt would go better.
  bool contradicts = false;
  // Reading the checkpoint failed: nothing else that fails says anything about it.
  bool reading = false;
  friend bool operator==(const FormFailed&, const FormFailed&) = default;
};

struct OperationFailed {
  Generation generation;
  Step step;
  Code code = Code::kInternal;
  std::string reason;
  Rank peer{-1};
  friend bool operator==(const OperationFailed&, const OperationFailed&) = default;
};

// Waits at the boundary after `step`, as the vote of that step agreed (Wishes::reform).
struct Stopped {
  Generation generation;
  Step step;
  friend bool operator==(const Stopped&, const Stopped&) = default;
};

// Wants to leave at the next boundary (SIGTERM, or Finish before the job's end).
struct Leave {
  std::string reason;
  bool finish = false;   // Finish() was called: when all members say so, the job ends
  Duration within = {};  // until this process is killed; zero: no such time is known
  friend bool operator==(const Leave&, const Leave&) = default;
};

// All steps of the spec are committed on this worker.
struct Finished {
  Generation generation;
  Step step;
  friend bool operator==(const Finished&, const Finished&) = default;
};

struct ShardWritten {
  CheckpointKey key;
  Lineage lineage;
  std::int32_t world_size = 0;
  FileRecord file;
  friend bool operator==(const ShardWritten&, const ShardWritten&) = default;
};

struct ShardFailed {
  CheckpointKey key;
  Rank rank;
  Code code = Code::kInternal;
  std::string reason;
  friend bool operator==(const ShardFailed&, const ShardFailed&) = default;
};

// Answer to WriteManifest. `code` kOk: it is durable and has this digest.
struct ManifestWritten {
  CheckpointKey key;
  std::uint64_t digest = 0;
  Code code = Code::kOk;
  std::string reason;
  friend bool operator==(const ManifestWritten&, const ManifestWritten&) = default;
};

// Answer to RemoveCheckpoint: the directory is gone; or, `pinned`, an operator wants it kept and
// nothing of it was touched.
struct CheckpointRemoved {
  CheckpointKey key;
  bool pinned = false;
  friend bool operator==(const CheckpointRemoved&, const CheckpointRemoved&) = default;
};

// --- Launcher to coordinator -------------------------------------------------------------------

struct LauncherHello {
  int major = kProtocolMajor;
  int minor = kProtocolMinor;
  JobName job;
  NodeName node;
  friend bool operator==(const LauncherHello&, const LauncherHello&) = default;
};

// A worker process of this launcher's node was started or has ended; pidfd proves the end.
struct Attest {
  WorkerId worker;
  std::int64_t pid = 0;
  bool alive = false;
  std::string detail;  // "killed by signal 9 (SIGKILL)"
  friend bool operator==(const Attest&, const Attest&) = default;
};

// --- Coordinator to worker (and Welcome, Refused, Ended to launchers) ---------------------------

struct Welcome {
  int major = kProtocolMajor;
  int minor = kProtocolMinor;
  Lineage lineage;
  Duration lease;
  Duration heartbeat_interval;
  Duration autonomy;
  Duration forming_timeout;
  Duration progress_timeout;     // for operations of the data plane
  std::string observed_address;  // the peer's address as the coordinator sees it, without port
  friend bool operator==(const Welcome&, const Welcome&) = default;
};

// The session ends. kFenced: the incarnation is dead; a fresh one may come. Anything else: do not
// come again without a change; `reason` names the thing and the remedy.
struct Refused {
  Code code = Code::kInvalidArgument;
  std::string reason;
  friend bool operator==(const Refused&, const Refused&) = default;
};

struct Ack {
  std::int64_t sequence = 0;
  Duration interval;  // until the next heartbeat
  friend bool operator==(const Ack&, const Ack&) = default;
};

// Abort the communicators and answer Ready{generation}.
struct Interrupt {
  Generation generation;  // being formed
  Cause cause = Cause::kFirstFormation;
  std::string reason;
  friend bool operator==(const Interrupt&, const Interrupt&) = default;
};

// The sealed membership. Valid only for the generation that the last Interrupt named.
struct Assign {
  SharedRecord record;
  friend bool operator==(const Assign&, const Assign&) = default;
};

// All members have formed: train.
struct Start {
  Generation generation;
  friend bool operator==(const Start&, const Start&) = default;
};

// Put these wishes in the next vote.
struct Wish {
  Generation generation;
  Wishes wishes;
  friend bool operator==(const Wish&, const Wish&) = default;
};

// All shards of this checkpoint are durable: write its manifest, answer ManifestWritten.
struct WriteManifest {
  CheckpointRecord record;
  friend bool operator==(const WriteManifest&, const WriteManifest&) = default;
};

// The checkpoint counts from now on.
struct CheckpointAnnounced {
  CheckpointKey key;
  friend bool operator==(const CheckpointAnnounced&, const CheckpointAnnounced&) = default;
};

// The save was given up; training and older checkpoints are untouched.
struct CheckpointAborted {
  CheckpointKey key;
  std::string reason;
  friend bool operator==(const CheckpointAborted&, const CheckpointAborted&) = default;
};

// Delete this directory below the checkpoint root unless it is pinned, answer CheckpointRemoved.
struct RemoveCheckpoint {
  CheckpointKey key;
  std::string directory;
  friend bool operator==(const RemoveCheckpoint&, const RemoveCheckpoint&) = default;
};

// Remove what was left by saves that will never count: those before (generation, step), but for
// `known` ones. See checkpoint/sweep.h. Nothing is answered.
struct SweepCheckpoints {
  Generation generation;
  Step step;
  std::vector<CheckpointKey> known;
  friend bool operator==(const SweepCheckpoints&, const SweepCheckpoints&) = default;
};

// The job is over (durably), or this worker's planned leave is complete: exit.
struct Ended {
  End end;
  bool left = false;  // only this worker left; the job goes on
  friend bool operator==(const Ended&, const Ended&) = default;
};

using Message = std::variant<Hello, Able, Heartbeat, Ready, Formed, FormFailed, OperationFailed,
                             Stopped, Leave, Finished, ShardWritten, ShardFailed, ManifestWritten,
                             CheckpointRemoved, LauncherHello, Attest, Welcome, Refused, Ack,
                             Interrupt, Assign, Start, Wish, WriteManifest, CheckpointAnnounced,
                             CheckpointAborted, RemoveCheckpoint, SweepCheckpoints, Ended, GroupId>;

}  // namespace muster
