// Which additions make one rank's leaves into sums, in the order of the tree of reduction_tree.h:
// the bookkeeping of PartialSums and DevicePartialSums, without the values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "protocol/box.h"
#include "protocol/status.h"

namespace muster {

// A stack of sums: neighbours, the left ones first. Leaves come in order. Threads: confined to one.
class LeafStack {
 public:
  // What the next leaf does to the sums.
  struct Fold {
    std::size_t sum = 0;     // the one that the leaf is added to, or becomes when it `opens` it
    bool opens = false;      // there is no such sum yet
    std::size_t merges = 0;  // so often, from there on, a sum is then added to the one before it
  };

  // For the leaves in `range` of [0, leaves). REQUIRES: 0 <= range.lo <= range.hi <= leaves.
  LeafStack(std::int64_t leaves, Range range);

  [[nodiscard]] std::int64_t leaves() const { return leaves_; }
  [[nodiscard]] Range range() const { return range_; }
  // The leaf whose turn it is, unless complete.
  [[nodiscard]] std::int64_t next() const { return next_; }
  [[nodiscard]] bool complete() const { return next_ == range_.hi; }
  // The sums as they are now.
  [[nodiscard]] const std::vector<Range>& nodes() const { return nodes_; }

  // kFailedPrecondition when it is not `leaf`'s turn.
  [[nodiscard]] Status CheckTurn(std::int64_t leaf) const;
  // REQUIRES: !complete()
  [[nodiscard]] Fold NextFold() const;
  // The next leaf has been folded in. REQUIRES: !complete()
  void Advance();
  void Clear();

 private:
  std::int64_t leaves_;
  Range range_;
  std::int64_t next_;
  std::vector<Range> nodes_;
};

}  // namespace muster
