#include "checkpoint/reshard.h"

#include <algorithm>
#include <optional>

#include "checkpoint/stream_copy.h"
#include "protocol/check.h"

namespace muster::checkpoint {
namespace {

// The part of an even cut that has `position`: the inverse of EvenCut. The first `extent % parts`
// parts have one element more.
std::int64_t PartAt(std::int64_t position, std::int64_t extent, std::int64_t parts) {
  const std::int64_t size = extent / parts;
  const std::int64_t larger = extent % parts;
  const std::int64_t in_larger = larger * (size + 1);
  if (position < in_larger) return position / (size + 1);
  return larger + (position - in_larger) / size;
}

// The dimension along which the rule cuts the tensor over the ranks; nothing when one rank has, or
// all ranks have, the whole.
std::optional<std::size_t> CutDimension(CutRule rule, const TensorSpec& tensor) {
  if (tensor.sharded()) return static_cast<std::size_t>(tensor.cut_dimension);
  if (rule == CutRule::kStored && !tensor.shape.empty()) return 0;
  return std::nullopt;
}

bool Contains(const Box& outer, const Box& inner) {
  if (outer.ranges.size() != inner.ranges.size()) return false;
  for (std::size_t d = 0; d < outer.ranges.size(); ++d) {
    if (inner.ranges[d].lo < outer.ranges[d].lo || inner.ranges[d].hi > outer.ranges[d].hi) {
      return false;
    }
  }
  return true;
}

}  // namespace

Box CutBox(CutRule rule, const TensorSpec& tensor, Rank rank, std::int32_t world_size) {
  return rule == CutRule::kHeld ? BoxOf(tensor, rank.value(), world_size)
                                : StoredBoxOf(tensor, rank.value(), world_size);
}

std::vector<Source> SourcesOf(const TensorSpec& tensor, CutRule rule, std::int32_t world_size,
                              const Box& want, Rank replica) {
  MUSTER_CHECK(Fits(want, tensor.shape), "the wanted box lies outside of the tensor");
  MUSTER_CHECK(replica.value() >= 0 && replica.value() < world_size, "there is no such replica");
  std::vector<Source> sources;
  if (want.empty()) return sources;
  const std::optional<std::size_t> cut = CutDimension(rule, tensor);
  if (!cut) {
    // A stored scalar is with rank 0 alone.
    sources.push_back({rule == CutRule::kHeld ? replica : Rank(0), want});
    return sources;
  }
  const std::int64_t extent = tensor.shape[*cut];
  const Range range = want.ranges[*cut];
  const std::int64_t last = PartAt(range.hi - 1, extent, world_size);
  for (std::int64_t part = PartAt(range.lo, extent, world_size); part <= last; ++part) {
    const Rank rank(static_cast<std::int32_t>(part));
    std::optional<Box> common = Intersect(want, CutBox(rule, tensor, rank, world_size));
    MUSTER_CHECK(common.has_value(), "each part between the first and the last holds something");
    sources.push_back({rank, *std::move(common)});
  }
  return sources;
}

RunCursor::RunCursor(const Box& from, const Box& to, const Box& part) {
  MUSTER_CHECK(Contains(from, part) && Contains(to, part), "the part lies within both boxes");
  if (part.empty()) return;
  valid_ = true;
  run_.count = 1;
  std::int64_t from_stride = 1;
  std::int64_t to_stride = 1;
  // Inner dimensions merge into the run as long as everything inside them is whole in both buffers.
  bool merging = true;
  for (std::size_t d = part.ranges.size(); d-- > 0;) {
    const std::int64_t extent = part.ranges[d].size();
    run_.from += (part.ranges[d].lo - from.ranges[d].lo) * from_stride;
    run_.to += (part.ranges[d].lo - to.ranges[d].lo) * to_stride;
    if (merging) {
      run_.count *= extent;
      merging = part.ranges[d] == from.ranges[d] && part.ranges[d] == to.ranges[d];
    } else if (extent > 1) {
      outer_.insert(outer_.begin(), {extent, from_stride, to_stride, 0});
    }
    from_stride *= from.ranges[d].size();
    to_stride *= to.ranges[d].size();
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

void CopyBox(const Box& from, std::span<const std::byte> source, const Box& to,
             std::span<std::byte> target, const Box& part, std::int64_t element_bytes) {
  MUSTER_CHECK(std::ssize(source) == from.count() * element_bytes, "the source has its box's size");
  MUSTER_CHECK(std::ssize(target) == to.count() * element_bytes, "the target has its box's size");
  for (RunCursor cursor(from, to, part); cursor.valid(); cursor.Advance()) {
    const Run& run = cursor.run();
    StreamCopy(target.data() + run.to * element_bytes, source.data() + run.from * element_bytes,
               static_cast<std::size_t>(run.count * element_bytes));
  }
}

}  // namespace muster::checkpoint
