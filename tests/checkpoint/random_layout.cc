#include "tests/checkpoint/random_layout.h"

#include <algorithm>
#include <utility>

namespace muster::checkpoint {
namespace {

std::int64_t Below(Prng& prng, std::int64_t bound) {
  return static_cast<std::int64_t>(prng.Below(static_cast<std::uint64_t>(bound)));
}

}  // namespace

Box RandomBox(const Shape& shape, Prng& prng) {
  Box box;
  for (const std::int64_t extent : shape) {
    const std::int64_t a = Below(prng, extent + 1);
    const std::int64_t b = Below(prng, extent + 1);
    box.ranges.push_back({std::min(a, b), std::max(a, b)});
  }
  return box;
}

TensorSpec RandomTensor(const std::string& name, Prng& prng) {
  constexpr int kTypes = static_cast<int>(DType::kComplex64) + 1;
  TensorSpec tensor{name, static_cast<DType>(Below(prng, kTypes)), {}, kReplicated};
  for (std::int64_t d = Below(prng, 4); d > 0; --d) tensor.shape.push_back(Below(prng, 9));
  tensor.cut_dimension = static_cast<int>(Below(prng, std::ssize(tensor.shape) + 3)) + kListed;
  return tensor;
}

std::vector<Box> RandomTiling(const Shape& shape, Prng& prng) {
  std::vector<Box> boxes = {Box::Whole(shape)};
  if (boxes[0].empty()) return {};
  for (std::int64_t splits = Below(prng, 8); splits > 0 && !shape.empty(); --splits) {
    Box& box = boxes[static_cast<std::size_t>(Below(prng, std::ssize(boxes)))];
    const auto d = static_cast<std::size_t>(Below(prng, std::ssize(shape)));
    if (box.ranges[d].size() < 2) continue;
    const std::int64_t at = box.ranges[d].lo + 1 + Below(prng, box.ranges[d].size() - 1);
    Box rest = box;
    box.ranges[d].hi = at;
    rest.ranges[d].lo = at;
    boxes.push_back(std::move(rest));
  }
  return boxes;
}

ListedBoxes RandomListedBoxes(const std::vector<TensorSpec>& tensors, std::int32_t world_size,
                              Prng& prng) {
  ListedBoxes listed(static_cast<std::size_t>(world_size));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].cut_dimension != kListed || !tensors[i].alias_of.empty()) continue;
    for (Box& box : RandomTiling(tensors[i].shape, prng)) {
      listed[static_cast<std::size_t>(Below(prng, world_size))].push_back(
          {static_cast<std::int64_t>(i), std::move(box)});
    }
  }
  return listed;
}

}  // namespace muster::checkpoint
