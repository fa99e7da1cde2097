#include "worker/collective/leaf_stack.h"

#include <string>

#include "protocol/check.h"
#include "worker/collective/reduction_tree.h"

namespace muster {
namespace {

// Are a and b, neighbours and nodes both, the two children of one node of the tree over
// [0, leaves)?
bool Siblings(std::int64_t leaves, Range a, Range b) {
  if (SplitOf({a.lo, b.hi}) != a.hi) return false;
  return CoverByNodes(leaves, {a.lo, b.hi}).size() == 1;
}

}  // namespace

LeafStack::LeafStack(std::int64_t leaves, Range range)
    : leaves_(leaves), range_(range), next_(range.lo) {
  MUSTER_CHECK(0 <= range.lo && range.lo <= range.hi && range.hi <= leaves,
               "a range of leaves lies within all leaves");
}

Status LeafStack::CheckTurn(std::int64_t leaf) const {
  if (!complete() && leaf == next_) return {};
  return FailedPrecondition(
      "micro-batch " + std::to_string(leaf) + " was added where " +
      (complete() ? "none is due any more" : std::to_string(next_) + " is due") + "; each of [" +
      std::to_string(range_.lo) + ", " + std::to_string(range_.hi) + ") is added once, in order");
}

LeafStack::Fold LeafStack::NextFold() const {
  MUSTER_CHECK(!complete(), "no leaf is left");
  Fold fold{.sum = nodes_.size(), .opens = true};
  Range node{next_, next_ + 1};
  for (std::size_t i = nodes_.size(); i-- > 0 && Siblings(leaves_, nodes_[i], node);) {
    node.lo = nodes_[i].lo;
    // The leaf itself needs no place of its own when it is added at once.
    if (fold.opens) {
      fold = {.sum = i, .opens = false};
    } else {
      ++fold.merges;
    }
  }
  return fold;
}

void LeafStack::Advance() {
  const Fold fold = NextFold();
  if (fold.opens) nodes_.push_back({next_, next_ + 1});
  nodes_.resize(fold.sum + 1 - fold.merges);
  nodes_.back().hi = ++next_;
}

void LeafStack::Clear() {
  next_ = range_.lo;
  nodes_.clear();
}

}  // namespace muster
