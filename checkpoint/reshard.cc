#include "checkpoint/reshard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "checkpoint/stream_copy.h"
#include "protocol/check.h"

namespace muster::checkpoint {
namespace {

bool Contains(const Box& outer, const Box& inner) {
  if (outer.ranges.size() != inner.ranges.size()) return false;
  for (std::size_t d = 0; d < outer.ranges.size(); ++d) {
    if (inner.ranges[d].lo < outer.ranges[d].lo || inner.ranges[d].hi > outer.ranges[d].hi) {
      return false;
    }
  }
  return true;
}

// The size is a constant, so that each copy is one instruction.
template <std::size_t kBytes>
void CopySteps(const Run& run, const std::byte* source, std::byte* target) {
  constexpr auto kElement = static_cast<std::int64_t>(kBytes);
  for (std::int64_t i = 0; i < run.count; ++i) {
    std::memcpy(target + (run.to + i * run.to_step) * kElement,
                source + (run.from + i * run.from_step) * kElement, kBytes);
  }
}

}  // namespace

Placement RowMajor(const Box& box) {
  Placement placement;
  placement.box = box;
  placement.strides.resize(box.ranges.size());
  std::int64_t stride = 1;
  for (std::size_t d = box.ranges.size(); d-- > 0;) {
    placement.strides[d] = stride;
    stride *= box.ranges[d].size();
  }
  return placement;
}

Status CheckPlacement(const Placement& placement, std::int64_t elements, bool written) {
  const std::vector<Range>& ranges = placement.box.ranges;
  if (placement.strides.size() != ranges.size()) {
    return InvalidArgument(fmt::format("{} strides are given for a box of {} dimensions",
                                       placement.strides.size(), ranges.size()));
  }
  if (placement.box.empty()) return {};
  std::int64_t first = placement.offset;
  std::int64_t last = placement.offset;
  std::vector<std::pair<std::int64_t, std::int64_t>> by_stride;  // stride, extent
  for (std::size_t d = 0; d < ranges.size(); ++d) {
    const std::int64_t extent = ranges[d].size();
    std::int64_t span = 0;
    std::int64_t& end = placement.strides[d] < 0 ? first : last;
    if (__builtin_mul_overflow(placement.strides[d], extent - 1, &span) ||
        __builtin_add_overflow(end, span, &end)) {
      return InvalidArgument(
          fmt::format("stride {} leads out of every buffer", placement.strides[d]));
    }
    if (extent > 1) by_stride.emplace_back(std::abs(placement.strides[d]), extent);
  }
  if (first < 0 || last >= elements) {
    return InvalidArgument(fmt::format("the box {} takes the elements {} to {}, and there are {}",
                                       placement.box.ToString(), first, last, elements));
  }
  if (!written) return {};
  std::sort(by_stride.begin(), by_stride.end());
  std::int64_t reach = 0;  // of the dimensions so far
  for (const auto& [stride, extent] : by_stride) {
    if (stride <= reach) {
      return InvalidArgument(fmt::format("two elements of the box {} would be written to one place",
                                         placement.box.ToString()));
    }
    reach += stride * (extent - 1);
  }
  return {};
}

RunCursor::RunCursor(const Placement& from, const Placement& to, const Box& part) {
  MUSTER_CHECK(Contains(from.box, part) && Contains(to.box, part),
               "the part lies within both boxes");
  if (part.empty()) return;
  valid_ = true;
  run_.from = from.offset;
  run_.to = to.offset;
  run_.count = 1;
  // Inner dimensions merge into the run as long as each goes on where the ones inside it end.
  bool merging = true;
  for (std::size_t d = part.ranges.size(); d-- > 0;) {
    const std::int64_t extent = part.ranges[d].size();
    run_.from += (part.ranges[d].lo - from.box.ranges[d].lo) * from.strides[d];
    run_.to += (part.ranges[d].lo - to.box.ranges[d].lo) * to.strides[d];
    if (extent == 1) continue;
    if (run_.count == 1) {
      run_.from_step = from.strides[d];
      run_.to_step = to.strides[d];
      run_.count = extent;
      continue;
    }
    merging = merging && from.strides[d] == run_.count * run_.from_step &&
              to.strides[d] == run_.count * run_.to_step;
    if (merging) {
      run_.count *= extent;
    } else {
      outer_.insert(outer_.begin(), {extent, from.strides[d], to.strides[d], 0});
    }
  }
}

void RunCursor::Advance() {
  MUSTER_CHECK(valid_, "there is no next run after the last one");
  for (std::size_t d = outer_.size(); d-- > 0;) {
    Dimension& dimension = outer_[d];
    run_.from += dimension.from_stride;
    run_.to += dimension.to_stride;
    if (++dimension.position < dimension.extent) return;
    run_.from -= dimension.from_stride * dimension.extent;
    run_.to -= dimension.to_stride * dimension.extent;
    dimension.position = 0;
  }
  valid_ = false;
}

void RunCursor::Seek(std::int64_t position) {
  if (!valid_) return;
  for (Dimension& dimension : outer_) {
    run_.from -= dimension.position * dimension.from_stride;
    run_.to -= dimension.position * dimension.to_stride;
  }
  // In a row-major buffer all that is inside one step of a dimension lies before its next step.
  std::int64_t ahead = position - run_.from;
  for (Dimension& dimension : outer_) {
    dimension.position =
        std::clamp<std::int64_t>(ahead / dimension.from_stride, 0, dimension.extent - 1);
    ahead -= dimension.position * dimension.from_stride;
    run_.from += dimension.position * dimension.from_stride;
    run_.to += dimension.position * dimension.to_stride;
  }
  if (run_.from + (run_.count - 1) * run_.from_step < position) Advance();
}

void CopyRun(const Run& run, const std::byte* source, std::byte* target,
             std::int64_t element_bytes) {
  if (run.from_step == 1 && run.to_step == 1) {
    StreamCopy(target + run.to * element_bytes, source + run.from * element_bytes,
               static_cast<std::size_t>(run.count * element_bytes));
    return;
  }
  switch (element_bytes) {
    case 1: return CopySteps<1>(run, source, target);
    case 2: return CopySteps<2>(run, source, target);
    case 4: return CopySteps<4>(run, source, target);
    default: break;
  }
  MUSTER_CHECK(element_bytes == 8, "elements have 1, 2, 4 or 8 bytes");
  CopySteps<8>(run, source, target);
}

void CopyBox(const Placement& from, std::span<const std::byte> source, const Placement& to,
             std::span<std::byte> target, const Box& part, std::int64_t element_bytes) {
  for (RunCursor cursor(from, to, part); cursor.valid(); cursor.Advance()) {
    CopyRun(cursor.run(), source.data(), target.data(), element_bytes);
  }
}

void CopyBox(const Box& from, std::span<const std::byte> source, const Box& to,
             std::span<std::byte> target, const Box& part, std::int64_t element_bytes) {
  MUSTER_CHECK(std::ssize(source) == from.count() * element_bytes, "the source has its box's size");
  MUSTER_CHECK(std::ssize(target) == to.count() * element_bytes, "the target has its box's size");
  CopyBox(RowMajor(from), source, RowMajor(to), target, part, element_bytes);
}

std::vector<Box> Subtract(const Box& box, const Box& hole) {
  const std::optional<Box> common = Intersect(box, hole);
  if (box.empty()) return {};
  if (!common) return {box};
  std::vector<Box> left;
  Box rest = box;
  for (std::size_t d = 0; d < box.ranges.size(); ++d) {
    const Range inner = common->ranges[d];
    for (const Range side : {Range{rest.ranges[d].lo, inner.lo}, {inner.hi, rest.ranges[d].hi}}) {
      if (side.size() == 0) continue;
      left.push_back(rest);
      left.back().ranges[d] = side;
    }
    rest.ranges[d] = inner;
  }
  return left;
}

}  // namespace muster::checkpoint
