// What has happened to the job, as the checkers know it: the steps that stand, from what loops were
// told and from durable records. It takes no part in judging.
//
// There is one chain for each lineage: a store that was lost may begin the job afresh before those
// who knew it report, and a generation that is forced out may go on unseen, for nothing.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "protocol/records.h"

namespace muster::sim {

// A loop was told the outcome of a step: Commit() returned.
struct Commit {
  Member member;
  Lineage lineage;
  Generation generation;
  Step step;
  Outcome outcome = Outcome::kNone;
  std::uint64_t before = 0;  // what its memory held
};

// What a step makes of a state: it depends on the step and on what was there, as training does.
[[nodiscard]] std::uint64_t NextState(std::uint64_t state, Step step);

class Chain {
 public:
  struct Link {
    Generation generation;
    Outcome outcome = Outcome::kApply;
    std::uint64_t state = 0;  // after it
  };

  // Adds the step unless it is there. True when it is new, and of the lineage that counts.
  bool Add(Lineage lineage, Generation generation, Step step, Outcome outcome,
           std::uint64_t before);
  // A durable record: rollbacks cut the chain, a decided step joins it.
  void OnRecord(const JobRecord& record);

  // A durable entry says that all files of a checkpoint are there: what led to it is remembered.
  void OnSaved(const CheckpointRecord& record);
  // A coordinator whose store knows nothing of the job takes up this checkpoint, which it was told
  // of: a generation that restores from it goes on from what led to it.
  void OnFound(const CheckpointRecord& record);

  // With the store went rollbacks that perhaps nobody has heard of.
  void OnStoreLost() { store_lost_ = true; }
  // Did a rollback void this step of this generation? Then what a worker that no one can reach
  // shows its user counts for nothing.
  [[nodiscard]] bool Voided(Lineage lineage, Generation generation, Step step) const;
  [[nodiscard]] std::optional<std::uint64_t> StateAt(Lineage lineage, Step step) const;
  [[nodiscard]] const Link* At(Lineage lineage, Step step) const;
  // The greatest generation that any step of the chain was taken in, and its last step.
  [[nodiscard]] Generation newest(Lineage lineage) const;
  [[nodiscard]] Step last(Lineage lineage) const;
  [[nodiscard]] Step last() const { return last(record_.lineage); }
  // The newest durable record.
  [[nodiscard]] const JobRecord& record() const { return record_; }
  [[nodiscard]] std::int64_t rollbacks() const { return rollbacks_seen_; }

  // All of its state, for those who compare states.
  template <class Visit>
  void VisitState(Visit&& visit) const {
    visit(store_lost_, lines_, saved_, found_, rollbacks_seen_, grown_, record_);
  }

 private:
  struct Line {
    std::map<Step, Link> links;
    std::vector<Rollback> rollbacks;  // all there were
    std::map<Step, Link> cut;         // by the last of them
  };
  [[nodiscard]] const Line& Of(Lineage lineage) const;

  using Links = std::map<Step, Link>;
  std::map<std::pair<Lineage, CheckpointKey>, Links> saved_;
  std::map<CheckpointKey, Links> found_;
  std::map<Lineage, Line> lines_;
  std::int64_t rollbacks_seen_ = 0;
  Lineage grown_;  // of the last step that was added
  bool store_lost_ = false;
  JobRecord record_;
};

}  // namespace muster::sim
