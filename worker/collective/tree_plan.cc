#include "worker/collective/tree_plan.h"

#include <map>
#include <string>

#include "protocol/check.h"
#include "worker/collective/reduction_tree.h"

namespace muster {
namespace {

std::string RangeText(Range range) {
  return "[" + std::to_string(range.lo) + ", " + std::to_string(range.hi) + ")";
}

// The additions that make the root out of the nodes that the ranks hold: slot numbers (into, from)
// in order; the sum ends in slot 0.
struct Additions {
  std::map<Range, std::size_t> slots;
  std::vector<std::pair<std::size_t, std::size_t>> list;

  std::size_t Make(Range node) {
    const auto held = slots.find(node);
    if (held != slots.end()) return held->second;
    MUSTER_CHECK(node.size() > 1, "a leaf that no rank holds");
    const std::int64_t split = SplitOf(node);
    const std::size_t left = Make({node.lo, split});
    const std::size_t right = Make({split, node.hi});
    list.emplace_back(left, right);
    return left;
  }
};

Status CheckRanges(std::span<const Range> ranges, std::int64_t rank, std::int64_t leaves,
                   Range own) {
  std::int64_t next = 0;
  for (const Range range : ranges) {
    if (range.lo != next || range.hi < range.lo) {
      return InvalidArgument("the ranges of leaves leave a gap or overlap at " + RangeText(range) +
                             ", where leaf " + std::to_string(next) + " is due");
    }
    next = range.hi;
  }
  if (next != leaves) {
    return InvalidArgument("the ranges end at leaf " + std::to_string(next) + " of " +
                           std::to_string(leaves));
  }
  const Range mine = ranges[static_cast<std::size_t>(rank)];
  if (mine != own) {
    return InvalidArgument("rank " + std::to_string(rank) + " has the leaves " + RangeText(mine) +
                           ", but its sums are of " + RangeText(own));
  }
  return {};
}

}  // namespace

Result<TreePlan> TreePlan::Of(std::int64_t leaves, std::span<const Range> ranges, std::int64_t rank,
                              Range own) {
  if (leaves < 1) return InvalidArgument("a sum over no micro-batches");
  MUSTER_RETURN_IF_ERROR(CheckRanges(ranges, rank, leaves, own));
  TreePlan plan;
  Additions additions;
  for (const Range range : ranges) {
    const std::vector<Range> nodes = CoverByNodes(leaves, range);
    for (const Range node : nodes) additions.slots.emplace(node, additions.slots.size());
    plan.nodes_of.push_back(static_cast<std::int64_t>(nodes.size()));
  }
  plan.slots = static_cast<std::int64_t>(additions.slots.size());
  additions.Make({0, leaves});
  plan.additions = std::move(additions.list);
  return plan;
}

}  // namespace muster
