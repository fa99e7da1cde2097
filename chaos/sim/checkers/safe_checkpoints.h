// S5, safe checkpoints: what is announced is complete and of one step of the chain, and once one
// has been announced there is always one that loads (unless its files were damaged from outside).
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "chaos/sim/checkers/chain.h"
#include "chaos/sim/checkers/verdict.h"
#include "chaos/sim/piece.h"

namespace muster::sim {

// One shard file on the simulated disk.
struct ShardFile {
  Piece piece;
  Lineage lineage;
  bool damaged = false;
};
struct Disk {
  std::map<std::pair<CheckpointKey, std::int32_t>, ShardFile> shards;
  std::map<CheckpointKey, CheckpointRecord> manifests;

  // The whole directory.
  void Remove(const CheckpointKey& key);
};

// "" when the shards of this checkpoint are all there, whole, and tile [0, elements) with one
// state; else what is wrong. `state` is what they hold.
[[nodiscard]] std::string Unloadable(const CheckpointRecord& record, const Disk& disk,
                                     std::int64_t elements, std::uint64_t* state);

class SafeCheckpoints {
 public:
  explicit SafeCheckpoints(std::int64_t elements) : elements_(elements) {}
  // A durable entry that says that a checkpoint counts now.
  void OnAnnounced(const CheckpointEntry& entry, const Chain& chain, const Disk& disk,
                   Verdict& verdict);
  // A durable entry is given up by retention: good ones are to be left as the spec says, not
  // counting those that were found pinned.
  void OnRetired(const CheckpointEntry& entry, const std::vector<CheckpointEntry>& entries,
                 const JobSpec& spec, const Chain& chain, Verdict& verdict) const;
  // The checkpoint of this record turned out bad, and was struck out for good.
  void OnStruckOut(const CheckpointKey& key) { struck_.insert(key); }
  void OnRecord(const JobRecord& record, const std::vector<CheckpointEntry>& entries,
                const Chain& chain, Verdict& verdict);
  // A durable entry that says that all files of a checkpoint are there.
  void OnComplete(const CheckpointRecord& record, const Chain& chain, const Disk& disk,
                  Verdict& verdict) const;
  // A sweep of leftovers has taken this directory. `entries` are the durable ones.
  static void OnSwept(const CheckpointKey& key, const std::vector<CheckpointEntry>& entries,
                      Verdict& verdict);
  // The first generation that a coordinator with an empty store has decided by itself starts over,
  // although a member had found this checkpoint of the job before it said hello.
  void OnStartedOver(const CheckpointRecord& found, const Disk& disk, Verdict& verdict) const;
  // After anything that can take a checkpoint away: an order to remove one, a dropped entry.
  void OnLess(const std::vector<CheckpointEntry>& entries, const Chain& chain, const Disk& disk,
              Verdict& verdict) const;
  // The store came back empty: nobody remembers any.
  void OnStoreLost() {
    announced_ = false;
    struck_.clear();
  }
  // The disk lost or damaged a file by itself.
  void OnDamage() { damage_ = true; }

  // All of its state, for those who compare states.
  template <class Visit>
  void VisitState(Visit&& visit) const {
    visit(announced_, damage_, struck_, judged_);
  }

 private:
  std::int64_t elements_;
  bool announced_ = false;
  bool damage_ = false;
  std::set<CheckpointKey> struck_;
  Generation judged_;
};

}  // namespace muster::sim
