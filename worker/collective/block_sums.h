// How the sum of a vector's squares is made of the sums over its blocks: the part of NormSquared
// (reduction_tree.h) that is done by the host wherever the blocks were summed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace muster {

// Values in a block; the last one may have fewer. Within a block, value i is squared in double
// precision and added to lane i % kSumLanes, and the lanes are added up in pairs:
// ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)).
inline constexpr std::size_t kSumBlock = 4096;
inline constexpr std::size_t kSumLanes = 8;

// Adds up the sums of blocks, which come in order, in the order of the tree of reduction_tree.h.
class BlockSums {
 public:
  void Add(double block_sum);
  // Of all blocks so far; 0 without any. NaN or infinite when a block's sum is.
  [[nodiscard]] double Total() const;

 private:
  // Of each node whose sum is not part of a greater one yet: how many blocks, and the sum.
  std::vector<std::pair<std::uint64_t, double>> stack_;
};

}  // namespace muster
