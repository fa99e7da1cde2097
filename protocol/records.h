// Values that are both sent and stored: the spec of a job, the record of a generation, the record
// of a checkpoint. Plain data; the codec writes them as JSON.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "protocol/box.h"
#include "protocol/ids.h"
#include "protocol/limits.h"
#include "protocol/time.h"

namespace muster {

// What the data plane of a job is made of.
enum class Backend {
  kTcp,
  kNccl,  // the members of a generation find each other by an id that its rank 0 mints
};

// What a job is. All workers of a job bring the same one; a contradicting one is refused with the
// difference. See DifferenceOf in coordinator/core/config.h.
struct JobSpec {
  std::int32_t min_workers = 1;    // training waits below this
  std::int32_t max_workers = 1;    // workers beyond this are spares
  std::int64_t steps = 0;          // the job ends when this many are committed; 0: by Finish alone
  std::uint64_t seed = 0;          // of the sample order and of whatever the loop draws from it
  std::int64_t samples = 0;        // in one epoch
  std::int64_t global_batch = 0;   // samples of one step, whatever the world size
  std::int32_t micro_batches = 0;  // V: units into which the global batch is cut; >= max_workers
  Duration failure_timeout = kDefaultFailureTimeout;  // the lease
  std::string checkpoint_directory;                   // empty: no checkpoints
  std::int64_t checkpoint_every = 0;  // steps between checkpoints; 0: none but the needed ones
  std::int32_t checkpoint_keep = 3;   // newest announced ones that retention leaves
  // Announced ones whose step is a multiple of this stay for good, beyond those; 0: none do.
  std::int64_t checkpoint_keep_every = 0;
  std::vector<TensorSpec> tensors;  // the state, in the order of registration
  Backend backend = Backend::kTcp;
  friend bool operator==(const JobSpec&, const JobSpec&) = default;
};

struct CheckpointKey {
  Step step;
  Generation generation;  // the one that wrote it: a step can be taken twice, after a rollback
  friend auto operator<=>(const CheckpointKey&, const CheckpointKey&) = default;
};

// A box of a tensor that is cut kListed, and whose file has it.
struct ListedBox {
  std::int64_t tensor = 0;  // in the order of registration
  Box box;                  // not empty
  friend auto operator<=>(const ListedBox&, const ListedBox&) = default;
};

// One shard file of a checkpoint. Rank r of W stores StoredBoxesOf(tensor, r, W) of each tensor,
// and of those that are cut kListed what it lists.
struct FileRecord {
  std::string name;  // within the checkpoint's directory
  std::int64_t bytes = 0;
  std::uint64_t header_digest = 0;  // XXH3-64 of the header with its block digests: seals the file
  Rank rank;
  std::vector<ListedBox> listed = {};  // ascending
  friend bool operator==(const FileRecord&, const FileRecord&) = default;
};

// The directory of a checkpoint below the job's root: "s<step, 12 digits>-g<generation, 8 digits>".
[[nodiscard]] std::string CheckpointDirectory(const CheckpointKey& key);

struct CheckpointRecord {
  std::string job;
  CheckpointKey key;
  Lineage lineage;
  std::int32_t world_size = 0;  // 0: not known, as are the files; the manifest alone has them
  std::string directory;        // below the root: "s<step, 12 digits>-g<generation, 8 digits>"
  std::vector<TensorSpec> tensors;
  std::vector<FileRecord> files;  // by rank
  std::int64_t bytes = 0;         // of all files
  friend bool operator==(const CheckpointRecord&, const CheckpointRecord&) = default;
};

enum class CheckpointState {
  kComplete,   // all files recorded and durable; the manifest is not yet
  kAnnounced,  // counts: it may be restored from, and lets retention delete older ones
  kVoid,       // a rollback went below it, or it was struck out; never restored from again
  kDeleting,   // retention chose it; its files may be partly gone
};

struct CheckpointEntry {
  CheckpointRecord record;
  CheckpointState state = CheckpointState::kComplete;
  // Once announced; zero again when it is being removed and does not count any more, whatever
  // becomes of the removal.
  std::uint64_t manifest_digest = 0;
  int strikes = 0;      // starts from it that failed
  bool pinned = false;  // an operator had pinned its directory when it was last to be removed
  friend bool operator==(const CheckpointEntry&, const CheckpointEntry&) = default;
};

// The outcome of a step for all members. kNone: not known (yet).
enum class Outcome { kNone, kApply, kSkip, kVoid };

// What the members agree to do at the boundary after a step; part of its vote, OR over all.
struct Wishes {
  bool checkpoint = false;
  bool reform = false;
  friend bool operator==(const Wishes&, const Wishes&) = default;
};

// How the step that was open when a generation broke is resolved. Final once durable, and copied
// into later records until one of them starts.
struct StepDecision {
  Generation generation;  // the one that opened the step; zero: nothing was open
  Step step;
  Outcome outcome = Outcome::kNone;  // kApply or kSkip: committed; kVoid: abandoned
  Wishes wishes;
  friend bool operator==(const StepDecision&, const StepDecision&) = default;
};

enum class RestoreSource {
  kInitial,     // no step taken yet: replicated values come from rank 0, shards are filled
  kLive,        // from the memory of members: `previous_rank` in the member list says of whom
  kCheckpoint,  // everyone reads the checkpoint
};

struct Restore {
  RestoreSource source = RestoreSource::kInitial;
  Step step;                          // the state after restoring
  Generation base;                    // kLive: generation whose cut the holders hold
  std::int32_t base_world_size = 0;   // kLive: its world size
  CheckpointKey checkpoint;           // kCheckpoint
  std::string directory;              // kCheckpoint: below the job's checkpoint root
  std::uint64_t manifest_digest = 0;  // kCheckpoint: what manifest.json must have
  friend bool operator==(const Restore&, const Restore&) = default;
};

struct MemberEntry {
  Member member;
  Rank rank;
  NodeName node;
  std::string address;     // of its data plane: "host:port", "[v6]:port"
  Rank previous_rank{-1};  // its rank in restore.base when it holds that state; else -1
  friend bool operator==(const MemberEntry&, const MemberEntry&) = default;
};

// The durable record of a generation: what `assign` carries.
struct GenerationRecord {
  Generation generation;
  Lineage lineage;
  Generation previous;               // the last started one before it; zero for the first
  std::vector<MemberEntry> members;  // by rank; its size is the world size
  StepDecision decision;
  Restore restore;
  friend bool operator==(const GenerationRecord&, const GenerationRecord&) = default;

  [[nodiscard]] std::int32_t world_size() const {
    return static_cast<std::int32_t>(members.size());
  }
};

// A record that does not change any more, as it is told to all its members: however many copies
// there are of it, there is one member list. Compares by value.
class SharedRecord {
 public:
  SharedRecord() : SharedRecord(GenerationRecord()) {}
  // Implicit: it is the same value.
  SharedRecord(GenerationRecord record)
      : record_(std::make_shared<const GenerationRecord>(std::move(record))) {}
  // Moving copies, so that none is ever empty.
  SharedRecord(const SharedRecord&) = default;
  SharedRecord& operator=(const SharedRecord&) = default;

  [[nodiscard]] const GenerationRecord& operator*() const { return *record_; }
  [[nodiscard]] const GenerationRecord* operator->() const { return record_.get(); }
  friend bool operator==(const SharedRecord& a, const SharedRecord& b) {
    return a.record_ == b.record_ || *a.record_ == *b.record_;
  }

 private:
  std::shared_ptr<const GenerationRecord> record_;  // never null
};

// "Generation g went back to step r": voids every step above r of all earlier generations.
struct Rollback {
  Generation generation;
  Step step;
  friend bool operator==(const Rollback&, const Rollback&) = default;
};

// Where workers run: those of this name on this node. What is empty means any.
struct Place {
  WorkerId worker;
  NodeName node;
  friend bool operator==(const Place&, const Place&) = default;
};

enum class EndKind { kFinished, kFailed };
struct End {
  EndKind kind = EndKind::kFinished;
  Step step;
  std::string reason;
  friend bool operator==(const End&, const End&) = default;
};

// All that the coordinator keeps of a job, in one durable value.
struct JobRecord {
  JobName job;
  JobSpec spec;
  Lineage lineage;
  Generation highest;                      // greatest number ever used; the next one is above it
  std::optional<GenerationRecord> latest;  // the newest record, started or not
  bool latest_started = false;
  std::optional<GenerationRecord> started;  // the last one that started
  Step committed;                           // known at the time of the record
  std::vector<Rollback> rollbacks;          // only those that can still matter
  std::vector<Member> gone;    // members of `started` that have left or are known to hold nothing
  std::vector<Place> drained;  // an operator wants these empty
  std::optional<End> end;
  friend bool operator==(const JobRecord&, const JobRecord&) = default;
};

}  // namespace muster
