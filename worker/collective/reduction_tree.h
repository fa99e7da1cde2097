// The reproducible sum: the sum over V leaves (micro-batches), added up in the order of one fixed
// binary tree over [0, V), whatever ranks hold which leaves. Floating-point addition is not
// associative, so a sum in the order of the ranks would change with the world size; this one does
// not change by a bit.
//
// The tree: a node [lo, hi) with more than one leaf splits at lo + the largest power of two below
// its size. Aligned blocks of 2^k leaves are nodes, and so are the ragged ones at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "protocol/box.h"
#include "protocol/status.h"
#include "worker/collective/communicator.h"
#include "worker/collective/leaf_stack.h"

namespace muster {

// Where a node of more than one leaf splits. REQUIRES: node.size() >= 2.
[[nodiscard]] std::int64_t SplitOf(Range node);
// The fewest nodes of the tree over [0, leaves) that make up `range`, in order: at most about
// 2 log2(leaves) of them, one when the range is a node, none when it is empty.
[[nodiscard]] std::vector<Range> CoverByNodes(std::int64_t leaves, Range range);

// The sums of one rank's leaves, as far as they can be added without the others': one buffer for
// each node of CoverByNodes, and never more than about log2 of the leaves beside these.
// T is float or double. Threads: confined to one.
template <class T>
class PartialSums {
 public:
  // For the leaves in `range` of [0, leaves), vectors of `elements` values each.
  // REQUIRES: 0 <= range.lo <= range.hi <= leaves, elements >= 0.
  PartialSums(std::int64_t leaves, Range range, std::int64_t elements);

  // Adds the values of the next leaf; they are copied. kFailedPrecondition when it is not `leaf`'s
  // turn (leaves come in order, each once), kInvalidArgument when the size is wrong.
  Status Add(std::int64_t leaf, std::span<const T> values);
  // Starts over: for a step that comes again.
  void Clear();

  [[nodiscard]] bool complete() const { return stack_.complete(); }
  [[nodiscard]] std::int64_t leaves() const { return stack_.leaves(); }
  [[nodiscard]] Range range() const { return stack_.range(); }
  [[nodiscard]] std::int64_t elements() const { return elements_; }
  // How many sums are held; once complete, as many as CoverByNodes has nodes.
  [[nodiscard]] std::size_t size() const { return stack_.nodes().size(); }
  // REQUIRES: index < size()
  [[nodiscard]] Range node(std::size_t index) const { return stack_.nodes()[index]; }
  [[nodiscard]] std::span<const T> values(std::size_t index) const;

 private:
  [[nodiscard]] std::span<T> Values(std::size_t index) const;

  std::int64_t elements_;
  LeafStack stack_;
  // Those of the sums that are held, and then some to be used again.
  std::vector<std::unique_ptr<T[]>> buffers_;
};

// The sum over all leaves, on every rank. `ranges[r]` are the leaves of rank r: contiguous, in
// order, together [0, partials.leaves()), some of them perhaps empty; the same on every rank.
// `result` has partials.elements() values. Bitwise the same for every cut into ranges and every
// world size, also with fewer leaves or elements than ranks.
// Blocks; a collective: every rank of `communicator` calls it. kInvalidArgument or
// kFailedPrecondition (leaves are missing) when the arguments do not fit, before anything is sent;
// otherwise the communicator's errors. Uses scratch of some MiB, whatever the size of `result`.
template <class T>
[[nodiscard]] Status ReduceTree(Communicator& communicator, std::span<const Range> ranges,
                                const PartialSums<T>& partials, std::span<T> result);

// The sum of the squares, in double precision, over blocks of a fixed size that are added up in
// tree order: the same value wherever it is computed.
[[nodiscard]] double NormSquared(std::span<const float> values);

}  // namespace muster
