// How the sum over all leaves is made of the sums that the ranks hold: the second half of the
// reproducible sum (reduction_tree.h), without the values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "protocol/box.h"
#include "protocol/status.h"

namespace muster {

struct TreePlan {
  // kInvalidArgument when `ranges`, one a rank, are not contiguous, in order, and together
  // [0, leaves), or the one of `rank` is not `own`.
  [[nodiscard]] static Result<TreePlan> Of(std::int64_t leaves, std::span<const Range> ranges,
                                           std::int64_t rank, Range own);

  // How many sums each rank holds: those of CoverByNodes of its range.
  std::vector<std::int64_t> nodes_of;
  // All of them together; numbered rank by rank, node by node.
  std::int64_t slots = 0;
  // The additions in order: slot numbers (into, from). The sum ends in slot 0.
  std::vector<std::pair<std::size_t, std::size_t>> additions;
};

}  // namespace muster
