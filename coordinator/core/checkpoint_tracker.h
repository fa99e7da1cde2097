// The checkpoints of one job: saves in progress, committed ones, retention. No file is touched
// here; workers write and delete, this decides what counts.
//
// A save goes: shards recorded -> complete (durable) -> manifest written -> announced (durable).
// Whether a rollback made it void is asked at each of these places.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/effects.h"
#include "protocol/records.h"

namespace muster::coordinator {

class CheckpointTracker {
 public:
  explicit CheckpointTracker(std::vector<CheckpointEntry> stored) : entries_(std::move(stored)) {}

  // What the caller has to tell to whom, besides the durable effects that are appended for it.
  struct Progress {
    std::optional<CheckpointKey> completed;    // all shards are durable: see ManifestDue
    std::optional<CheckpointKey> announced;    // to all
    std::optional<CheckpointAborted> aborted;  // to all
    std::vector<RemoveCheckpoint> remove;      // to one worker
    std::string problem;                       // a message that was refused, for the event log
  };

  // A save that all ranks of `writing` agreed to make, before the first of them has reported.
  // Nothing changes when the save is known, was made or was given up.
  void Expect(const JobRecord& record, const CheckpointKey& key, const GenerationRecord& writing,
              Instant deadline);
  // `record` is the job's, `writing` the generation record whose ranks write this save.
  Progress OnShardWritten(const JobRecord& record, const GenerationRecord& writing,
                          const ShardWritten& shard, Instant deadline, Effects* effects);
  Progress OnShardFailed(const ShardFailed& failure);
  Progress OnManifestWritten(const JobRecord& record, const ManifestWritten& message,
                             std::optional<CheckpointKey> in_use, Effects* effects);
  enum class Removal { kNotAsked, kGone, kPinned, kStillPinned };
  // What became of a checkpoint that was to be removed. A pinned one counts again, unless it is
  // void or struck out, and is asked for again after a later announcement.
  Removal OnRemoved(const JobRecord& record, const CheckpointRemoved& message, Effects* effects);
  // Gives up the saves whose deadline has passed, the silent ranks named.
  std::vector<Progress> OnTime(Instant now);
  // Gives up the saves that wait for a shard of a worker that is not in `present` any more.
  std::vector<Progress> GiveUpLost(const std::set<Member>& present);
  [[nodiscard]] Instant NextDeadline() const;

  // After a rollback: what became void is marked durably; pending saves of it are given up.
  std::vector<Progress> MarkVoid(const JobRecord& record, Effects* effects);
  // Takes up an announced checkpoint that a record names and a lost store knew. Nothing changes
  // when it is known.
  void Adopt(const JobRecord& record, const GenerationRecord& naming, Effects* effects);
  // Takes up checkpoints of which only their manifests are left: they count as announced, in the
  // order of (generation, step), which is the order of `found`. REQUIRES: none is known.
  void TakeUp(const JobRecord& record, const std::vector<FoundCheckpoint>& found, Effects* effects);
  // The order to remove what saves before (generation, step) left behind. From now on shards of
  // such a save are refused unless it is under way or complete already, so what is removed can
  // never come to count; a save under way is named in the order.
  [[nodiscard]] SweepCheckpoints Sweep(Generation generation, Step step);
  // A start from this checkpoint failed; `bad` bytes strike it out at once, kCheckpointStrikes
  // failures put it into quarantine. True if either has happened now.
  bool Strike(const JobRecord& record, const CheckpointKey& key, bool bad, Effects* effects);

  // The oldest complete checkpoint whose manifest has yet to be written; null when there is none.
  [[nodiscard]] const CheckpointRecord* ManifestDue() const;
  // Directories whose removal was decided and not yet reported, or that became void before they
  // were announced; others wait for the next announcement. Of those that nobody manages to remove
  // only the last kMaxRemovals are remembered.
  [[nodiscard]] std::vector<RemoveCheckpoint> RemovalsDue(const JobRecord& record,
                                                          Effects* effects);
  // Is a save of exactly this step and generation under way whose missing ranks are all in `alive`?
  [[nodiscard]] bool Pending(const CheckpointKey& key, const std::vector<Rank>& alive) const;
  enum class Fate { kUnknown, kUnderWay, kAnnounced, kGivenUp };
  // What became of a save; kGivenUp also when it is void, kUnknown also when that is long ago.
  [[nodiscard]] Fate FateOf(const CheckpointKey& key) const;
  // Does a save wait for a shard of this worker, and no later one makes up for it?
  [[nodiscard]] bool Owes(const Member& member) const;
  [[nodiscard]] bool AnyPending() const { return !saves_.empty() || ManifestDue() != nullptr; }
  [[nodiscard]] std::int64_t aborted() const { return aborted_; }
  [[nodiscard]] const std::vector<CheckpointEntry>& entries() const { return entries_; }
  // See Job::Footprint.
  [[nodiscard]] std::size_t Footprint() const;
  // All state that what it does later may depend on, for those who compare states.
  template <class Visit>
  void VisitState(Visit&& visit) const {
    visit(saves_, given_up_, entries_, swept_);
  }

 private:
  struct Save {
    GenerationRecord writing;
    std::map<Rank, FileRecord> files;
    Instant deadline;
    std::set<Member> owing;  // those whose shard is not written yet
  };
  // The save under way of this key; begun when there is none.
  Save& SaveOf(const CheckpointKey& key, const GenerationRecord& writing, Instant deadline);
  [[nodiscard]] CheckpointEntry* FindEntry(const CheckpointKey& key);
  [[nodiscard]] bool Overtaken(const CheckpointKey& key) const;
  [[nodiscard]] bool LeftBehind(const CheckpointKey& key) const;
  [[nodiscard]] bool GivenUp(const CheckpointKey& key) const;
  Progress GiveUp(CheckpointKey key, std::string reason);
  Progress Complete(const JobRecord& record, const CheckpointKey& key, Effects* effects);
  std::vector<RemoveCheckpoint> Retain(const JobRecord& record, std::optional<CheckpointKey> in_use,
                                       Effects* effects);
  static void BeginRemoval(const JobRecord& record, CheckpointEntry& entry, Effects* effects);
  static void Put(const JobRecord& record, const CheckpointEntry& entry, Effects* effects);

  std::map<CheckpointKey, Save> saves_;
  std::vector<CheckpointKey> given_up_;   // the last few: their late shards count for nothing
  std::vector<CheckpointEntry> entries_;  // in the order of commit
  std::pair<Generation, Step> swept_;     // what is before it, and not known, is left behind
  std::int64_t aborted_ = 0;
};

}  // namespace muster::coordinator
