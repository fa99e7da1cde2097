// Do the tensors of a checkpoint fit those that somebody wants to load? By name; nothing is ever
// converted. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "protocol/box.h"
#include "protocol/status.h"

namespace muster::checkpoint {

struct TensorMatch {
  struct Pair {
    std::size_t wanted = 0;
    std::size_t stored = 0;
  };
  std::vector<Pair> pairs;           // same name, type and shape; in the order of what is wanted
  std::vector<std::string> missing;  // wanted, and not stored
  std::vector<std::string> extra;    // stored, and not wanted
  // Same name, but another type or shape: "w: F32 [4,2] is stored, and BF16 [4,2] wanted".
  std::vector<std::string> different;
  // Aliases: wanted as one tensor and stored as two, or the other way round, with both names. Two
  // that were stored apart have to have equal bytes to become one.
  struct Tie {
    std::string name;
    std::string of;
  };
  std::vector<Tie> tied_now;     // stored apart
  std::vector<Tie> tied_before;  // wanted apart: each gets the bytes
};

// How each rank holds a tensor plays no part.
[[nodiscard]] TensorMatch MatchTensors(const std::vector<TensorSpec>& stored,
                                       const std::vector<TensorSpec>& wanted);

// Ok when every tensor that is wanted is there as it is wanted, and nothing else is stored.
// kFailedPrecondition names all that is missing, extra or different, up to some of each kind.
[[nodiscard]] Status CheckStrictMatch(const TensorMatch& match);

}  // namespace muster::checkpoint
