#include "protocol/box.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>

#include "protocol/check.h"

namespace muster {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  std::int64_t size;
};

constexpr std::array<DTypeRow, 19> kDTypes = {{
    {DType::kBool, "BOOL", 1},
    {DType::kU8, "U8", 1},
    {DType::kI8, "I8", 1},
    {DType::kI16, "I16", 2},
    {DType::kU16, "U16", 2},
    {DType::kI32, "I32", 4},
    {DType::kU32, "U32", 4},
    {DType::kI64, "I64", 8},
    {DType::kU64, "U64", 8},
    {DType::kFloat8E4M3, "F8_E4M3", 1},
    {DType::kFloat8E5M2, "F8_E5M2", 1},
    {DType::kFloat8E8M0, "F8_E8M0", 1},
    {DType::kFloat8E4M3Fnuz, "F8_E4M3FNUZ", 1},
    {DType::kFloat8E5M2Fnuz, "F8_E5M2FNUZ", 1},
    {DType::kFloat16, "F16", 2},
    {DType::kBFloat16, "BF16", 2},
    {DType::kFloat32, "F32", 4},
    {DType::kFloat64, "F64", 8},
    {DType::kComplex64, "C64", 8},
}};

const DTypeRow& RowOf(DType dtype) {
  const auto* row = std::find_if(kDTypes.begin(), kDTypes.end(),
                                 [dtype](const DTypeRow& r) { return r.dtype == dtype; });
  MUSTER_CHECK(row != kDTypes.end(), "not a DType");
  return *row;
}

// An empty box is harmless wherever it lies, so only the order within its ranges matters.
bool IsEmptyAnywhere(const Box& box) {
  bool empty = false;
  for (const Range& range : box.ranges) {
    if (range.lo > range.hi) return false;
    empty = empty || range.lo == range.hi;
  }
  return empty;
}

// The first two boxes that share an element. `boxes` is sorted, so that only those which are still
// open along dimension 0 can meet the next one.
std::optional<Status> FindOverlap(const std::vector<Box>& boxes) {
  std::vector<const Box*> open;
  for (const Box& box : boxes) {
    if (!box.ranges.empty()) {
      std::erase_if(open, [&](const Box* b) { return b->ranges[0].hi <= box.ranges[0].lo; });
    }
    for (const Box* other : open) {
      if (const std::optional<Box> common = Intersect(*other, box)) {
        return InvalidArgument(fmt::format("boxes {} and {} overlap in {}", other->ToString(),
                                           box.ToString(), common->ToString()));
      }
    }
    open.push_back(&box);
  }
  return std::nullopt;
}

std::int64_t CountFrom(const std::vector<Range>& ranges, std::size_t first_dimension) {
  std::int64_t count = 1;
  for (std::size_t d = first_dimension; d < ranges.size(); ++d) count *= ranges[d].size();
  return count;
}

// The first gap that disjoint boxes leave in `shape`, one dimension after the other: between two
// neighbouring bounds nothing changes, so a slab has a gap exactly when the boxes that cross it
// hold fewer elements per layer than the tensor does. REQUIRES: there is a gap.
Box FindGap(const Shape& shape, std::vector<const Box*> boxes) {
  Box gap = Box::Whole(shape);
  for (std::size_t d = 0; d < shape.size(); ++d) {
    std::vector<std::int64_t> bounds = {0, shape[d]};
    for (const Box* box : boxes) {
      bounds.push_back(box->ranges[d].lo);
      bounds.push_back(box->ranges[d].hi);
    }
    std::sort(bounds.begin(), bounds.end());
    bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
    const std::int64_t layer = CountFrom(gap.ranges, d + 1);
    for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
      std::vector<const Box*> crossing;
      std::int64_t held = 0;
      for (const Box* box : boxes) {
        if (box->ranges[d].lo <= bounds[i] && bounds[i] < box->ranges[d].hi) {
          crossing.push_back(box);
          held += CountFrom(box->ranges, d + 1);
        }
      }
      if (held == layer) continue;
      gap.ranges[d] = Range{bounds[i], bounds[i + 1]};
      boxes = std::move(crossing);
      break;
    }
    if (boxes.empty()) break;
  }
  return gap;
}

// Appends the boxes of elements [begin, end) of the dimensions from `d` on, behind `outer`: the
// rest of a row that has begun, all whole rows, and the start of a last one.
void AppendFlat(const Shape& shape, std::size_t d, std::int64_t begin, std::int64_t end,
                const Box& outer, std::vector<Box>* boxes) {
  Box box = outer;
  if (d == shape.size()) {
    boxes->push_back(std::move(box));
    return;
  }
  std::int64_t row = 1;
  for (std::size_t inner = d + 1; inner < shape.size(); ++inner) row *= shape[inner];
  const auto part_of_row = [&](std::int64_t index, std::int64_t from, std::int64_t to) {
    Box within = outer;
    within.ranges.push_back({index, index + 1});
    AppendFlat(shape, d + 1, from, to, within, boxes);
  };
  const std::int64_t first = begin / row;
  if (first == (end - 1) / row && end - begin < row) {
    return part_of_row(first, begin - first * row, end - first * row);
  }
  const std::int64_t whole_begin = (begin + row - 1) / row;
  const std::int64_t whole_end = end / row;
  if (begin < whole_begin * row) part_of_row(first, begin - first * row, row);
  if (whole_begin < whole_end) {
    box.ranges.push_back({whole_begin, whole_end});
    for (std::size_t inner = d + 1; inner < shape.size(); ++inner) {
      box.ranges.push_back({0, shape[inner]});
    }
    boxes->push_back(std::move(box));
  }
  if (whole_end * row < end) part_of_row(whole_end, 0, end - whole_end * row);
}

}  // namespace

std::int64_t SizeOf(DType dtype) { return RowOf(dtype).size; }

std::string_view DTypeName(DType dtype) { return RowOf(dtype).name; }

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

Result<std::int64_t> CountElements(const Shape& shape) {
  for (const std::int64_t extent : shape) {
    if (extent < 0) {
      return InvalidArgument(fmt::format("shape [{}] has a negative extent; extents are 0 or more",
                                         fmt::join(shape, ",")));
    }
  }
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return std::int64_t{0};
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    if (__builtin_mul_overflow(count, extent, &count)) {
      return InvalidArgument(fmt::format("shape [{}] has more than 2^63 - 1 elements; split it",
                                         fmt::join(shape, ",")));
    }
  }
  return count;
}

Box Box::Whole(const Shape& shape) {
  Box box;
  box.ranges.reserve(shape.size());
  for (const std::int64_t extent : shape) box.ranges.push_back(Range{0, extent});
  return box;
}

std::int64_t Box::count() const {
  // Emptiness first: the other extents of an empty tensor may multiply to anything.
  for (const Range& range : ranges) {
    if (range.lo >= range.hi) return 0;
  }
  return CountFrom(ranges, 0);
}

Shape Box::shape() const {
  Shape shape;
  shape.reserve(ranges.size());
  for (const Range& range : ranges) shape.push_back(range.size());
  return shape;
}

std::string Box::ToString() const {
  std::string text = "[";
  for (const Range& range : ranges) {
    fmt::format_to(std::back_inserter(text), "{}{}:{}", text.size() > 1 ? "," : "", range.lo,
                   range.hi);
  }
  return text + "]";
}

bool Fits(const Box& box, const Shape& shape) {
  if (box.ranges.size() != shape.size()) return false;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const Range& range = box.ranges[d];
    if (range.lo < 0 || range.lo > range.hi || range.hi > shape[d]) return false;
  }
  return true;
}

std::optional<Box> Intersect(const Box& a, const Box& b) {
  if (IsEmptyAnywhere(a) || IsEmptyAnywhere(b)) return std::nullopt;
  MUSTER_CHECK(a.ranges.size() == b.ranges.size(), "boxes of different numbers of dimensions");
  Box common;
  common.ranges.reserve(a.ranges.size());
  for (std::size_t d = 0; d < a.ranges.size(); ++d) {
    const Range range{std::max(a.ranges[d].lo, b.ranges[d].lo),
                      std::min(a.ranges[d].hi, b.ranges[d].hi)};
    if (range.lo >= range.hi) return std::nullopt;
    common.ranges.push_back(range);
  }
  return common;
}

Status TilesExactly(const Shape& shape, std::vector<Box> boxes) {
  const Result<std::int64_t> total = CountElements(shape);
  if (!total.ok()) return total.status();
  std::erase_if(boxes, IsEmptyAnywhere);
  for (const Box& box : boxes) {
    if (!Fits(box, shape)) {
      return InvalidArgument(fmt::format("box {} does not lie within shape [{}]", box.ToString(),
                                         fmt::join(shape, ",")));
    }
  }
  if (*total == 0) return Status();
  std::sort(boxes.begin(), boxes.end());
  if (std::optional<Status> overlap = FindOverlap(boxes)) return *std::move(overlap);
  // Disjoint boxes within the tensor cannot hold more than it does, so the sum cannot overflow.
  std::int64_t held = 0;
  std::vector<const Box*> pointers;
  pointers.reserve(boxes.size());
  for (const Box& box : boxes) {
    held += box.count();
    pointers.push_back(&box);
  }
  if (held == *total) return Status();
  return InvalidArgument(fmt::format("no box holds {} of shape [{}]",
                                     FindGap(shape, std::move(pointers)).ToString(),
                                     fmt::join(shape, ",")));
}

Range EvenCut(std::int64_t extent, std::int64_t part, std::int64_t parts) {
  MUSTER_CHECK(extent >= 0, "a negative extent cannot be cut");
  MUSTER_CHECK(part >= 0 && part < parts, "there is no such part");
  const std::int64_t size = extent / parts;
  const std::int64_t larger = extent % parts;
  const std::int64_t lo = part * size + std::min(part, larger);
  return Range{lo, lo + size + (part < larger ? 1 : 0)};
}

std::vector<Box> FlatBoxes(const Shape& shape, std::int64_t begin, std::int64_t end) {
  MUSTER_CHECK(begin >= 0 && begin <= end, "a range of elements");
  std::vector<Box> boxes;
  if (begin < end) AppendFlat(shape, 0, begin, end, Box(), &boxes);
  return boxes;
}

Box BoxOf(const TensorSpec& tensor, std::int64_t rank, std::int64_t world_size) {
  Box box = Box::Whole(tensor.shape);
  if (!tensor.sharded()) return box;
  MUSTER_CHECK(tensor.cut_dimension >= 0 && tensor.cut_dimension < std::ssize(tensor.shape),
               "cut along one of its dimensions");
  Range& range = box.ranges[static_cast<std::size_t>(tensor.cut_dimension)];
  range = EvenCut(range.hi, rank, world_size);
  return box;
}

std::vector<Box> BoxesOf(const TensorSpec& tensor, std::int64_t rank, std::int64_t world_size) {
  MUSTER_CHECK(tensor.cut_dimension != kListed, "no rule says who has which box");
  if (tensor.cut_dimension == kFlat) {
    const Range range = EvenCut(Box::Whole(tensor.shape).count(), rank, world_size);
    return FlatBoxes(tensor.shape, range.lo, range.hi);
  }
  Box box = BoxOf(tensor, rank, world_size);
  if (box.empty()) return {};
  return {std::move(box)};
}

std::vector<Box> StoredBoxesOf(const TensorSpec& tensor, std::int64_t rank,
                               std::int64_t world_size) {
  if (!tensor.alias_of.empty()) return {};
  if (tensor.sharded()) return BoxesOf(tensor, rank, world_size);
  Box box = Box::Whole(tensor.shape);
  if (box.empty()) return {};
  if (box.ranges.empty()) {
    if (rank != 0) return {};
  } else {
    box.ranges[0] = EvenCut(box.ranges[0].hi, rank, world_size);
    if (box.empty()) return {};
  }
  return {std::move(box)};
}

}  // namespace muster
