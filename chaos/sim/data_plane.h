// The collectives of one simulated job. An operation is complete when all members of its generation
// have entered it, and then ends on each rank at its own time: a failure in between leaves any
// subset of the ranks with a result. Who waits for a dead or aborted peer gets an error, or hangs
// until it is interrupted. What a rank has sent before it died may still complete an operation.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "chaos/sim/action.h"
#include "chaos/sim/piece.h"
#include "protocol/records.h"

namespace muster::sim {

using RecordPointer = std::shared_ptr<const GenerationRecord>;

// What a rank brings into an operation.
struct Contribution {
  Piece held;     // kExchange: its memory, in the cut of the restore's base
  Range deal;     // kReduce: its micro-batches
  Wishes wishes;  // kVote
};

class DataPlane {
 public:
  struct Result {
    int process = -1;
    std::int64_t serial = 0;
    Ended how = Ended::kDone;
    Rank peer{-1};
  };
  // Does what one process sends reach another?
  using Reaches = std::function<bool(int from, int to)>;

  // `process`, as `rank` of the record, enters. The results are those that may come now, each at
  // its own time; of several for one call the first counts.
  [[nodiscard]] std::vector<Result> Enter(const OpKey& key, const RecordPointer& record,
                                          const Member& me, int process, std::int64_t serial,
                                          Contribution contribution, const Reaches& reaches);
  // The call returned, with whatever result.
  void Return(const OpKey& key, Rank rank);
  // `me` aborts its communicators of all generations up to `last` (or dies): peers fail or hang.
  [[nodiscard]] std::vector<Result> GiveUp(const Member& me, Generation last);
  // A link between workers works again: what waited for it may go on.
  [[nodiscard]] std::vector<Result> Reconsider(const Reaches& reaches) const;
  // REQUIRES: the operation is complete and has not returned everywhere.
  [[nodiscard]] const std::map<Rank, Contribution>& Contributions(const OpKey& key) const;
  // The peer that a rank inside an operation waits for in vain, by order of rank.
  [[nodiscard]] Rank WaitsFor(const OpKey& key, Rank rank, const Reaches& reaches) const;

  template <class Visit>
  void VisitState(Visit&& visit) const {
    visit(operations_, gave_up_);
  }

  struct Call {
    int process = -1;
    std::int64_t serial = 0;
  };
  struct Operation {
    RecordPointer record;
    std::map<Rank, Call> calls;  // entered
    std::map<Rank, Contribution> contributions;
    std::set<Rank> inside;  // entered and not returned
    bool complete = false;
  };

 private:
  static void Complete(const Operation& operation, const Reaches& reaches,
                       std::vector<Result>* results);

  std::map<OpKey, Operation> operations_;
  std::map<Member, Generation> gave_up_;
};

}  // namespace muster::sim
