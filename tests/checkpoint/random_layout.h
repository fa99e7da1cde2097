// Random tensors, boxes and cuts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/box.h"
#include "protocol/prng.h"
#include "protocol/records.h"
#include "tests/checkpoint/support.h"

namespace muster::checkpoint {

// Within the shape; may be empty, or a single element.
[[nodiscard]] Box RandomBox(const Shape& shape, Prng& prng);

// A small tensor of any type, with 0 to 3 dimensions of 0 to 8, cut in any way.
[[nodiscard]] TensorSpec RandomTensor(const std::string& name, Prng& prng);

// The tensor as boxes that tile it, made by splitting it at random places.
[[nodiscard]] std::vector<Box> RandomTiling(const Shape& shape, Prng& prng);

// For each tensor that is cut kListed a random tiling, dealt to the ranks at random.
[[nodiscard]] ListedBoxes RandomListedBoxes(const std::vector<TensorSpec>& tensors,
                                            std::int32_t world_size, Prng& prng);

}  // namespace muster::checkpoint
