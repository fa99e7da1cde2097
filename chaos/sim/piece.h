// A part of the modelled state.
#pragma once

#include <cstdint>

#include "protocol/ids.h"

namespace muster::sim {

// Elements [lo, hi) of the state at `step`, in somebody's memory or file.
struct Piece {
  std::int64_t lo = 0;
  std::int64_t hi = 0;
  std::uint64_t state = 0;
  Step step{};
};

}  // namespace muster::sim
