#include "checkpoint/load_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "checkpoint/format.h"
#include "protocol/check.h"

namespace muster::checkpoint {
namespace {

// A gap of this size takes about as long to read as another request does to begin.
constexpr std::int64_t kGapBytes = std::int64_t{1} << 15U;

std::int64_t DivideUp(std::int64_t a, std::int64_t b) { return a <= 0 ? 0 : (a + b - 1) / b; }

Result<Target> TargetOf(const StoredLayout& layout, const CheckpointRecord& record,
                        const WantedBox& wanted) {
  if (wanted.tensor >= record.tensors.size()) {
    return InvalidArgument(fmt::format("tensor number {} is wanted of a checkpoint with {}",
                                       wanted.tensor, record.tensors.size()));
  }
  const TensorSpec& tensor = record.tensors[wanted.tensor];
  if (!Fits(wanted.box, tensor.shape)) {
    return InvalidArgument(fmt::format("tensor {}: the wanted box {} lies outside of its shape {}",
                                       tensor.name, wanted.box.ToString(),
                                       Box::Whole(tensor.shape).ToString()));
  }
  Target target;
  target.owner = layout.OwnerOf(wanted.tensor);
  target.element_bytes = SizeOf(tensor.dtype);
  target.memory = wanted.into;
  if (wanted.strides.empty()) {
    if (std::ssize(wanted.into) != ByteCount(tensor, wanted.box) || wanted.offset != 0) {
      return InvalidArgument(fmt::format("tensor {}: the box {} has {} bytes, and its buffer {}",
                                         tensor.name, wanted.box.ToString(),
                                         ByteCount(tensor, wanted.box), wanted.into.size()));
    }
    target.placement = RowMajor(wanted.box);
    return target;
  }
  target.placement = {wanted.box, wanted.strides, wanted.offset};
  const Status fits = CheckPlacement(
      target.placement, std::ssize(wanted.into) / target.element_bytes, /*written=*/true);
  if (!fits.ok()) return InvalidArgument(fmt::format("tensor {}: {}", tensor.name, fits.message()));
  return target;
}

// Copies what memory has of the target, and returns what it lacks.
Result<std::vector<Box>> TakeLive(const StoredLayout& layout, const CheckpointRecord& record,
                                  const Target& target, std::span<const LiveBox> live,
                                  std::int64_t* bytes) {
  std::vector<Box> missing;
  if (!target.placement.box.empty()) missing.push_back(target.placement.box);
  for (const LiveBox& source : live) {
    if (source.tensor >= record.tensors.size() || layout.OwnerOf(source.tensor) != target.owner) {
      continue;
    }
    const TensorSpec& tensor = record.tensors[source.tensor];
    if (!Fits(source.box, tensor.shape) ||
        std::ssize(source.bytes) != ByteCount(tensor, source.box)) {
      return InvalidArgument(fmt::format("tensor {}: the box {} in memory does not fit",
                                         tensor.name, source.box.ToString()));
    }
    std::vector<Box> rest;
    for (const Box& box : missing) {
      if (const std::optional<Box> common = Intersect(box, source.box)) {
        CopyBox(RowMajor(source.box), source.bytes, target.placement, target.memory, *common,
                target.element_bytes);
        *bytes += ByteCount(tensor, *common);
      }
      for (Box& left : Subtract(box, source.box)) rest.push_back(std::move(left));
    }
    missing = std::move(rest);
  }
  return missing;
}

// What one run has within elements [lo, hi) of the buffer read; count 0 when it has nothing.
Run Clip(Run run, std::int64_t lo, std::int64_t hi) {
  const std::int64_t skip = DivideUp(lo - run.from, run.from_step);
  run.count = std::min(run.count, DivideUp(hi - run.from, run.from_step)) - skip;
  run.from += skip * run.from_step;
  run.to += skip * run.to_step;
  run.count = std::max<std::int64_t>(run.count, 0);
  return run;
}

}  // namespace

Result<LoadPlan> PlanLoad(const StoredLayout& layout, const CheckpointRecord& record,
                          std::span<const WantedBox> wanted, std::span<const LiveBox> live) {
  LoadPlan plan;
  for (const WantedBox& want : wanted) {
    Result<Target> target = TargetOf(layout, record, want);
    if (!target.ok()) return target.status();
    const Result<std::vector<Box>> missing =
        TakeLive(layout, record, *target, live, &plan.bytes_live);
    if (!missing.ok()) return missing.status();
    for (const Box& box : *missing) {
      std::int64_t covered = 0;
      for (StoredLayout::Source& source : layout.SourcesOf(target->owner, box)) {
        covered += source.part.count();
        plan.by_rank[source.rank].push_back(
            {plan.targets.size(), std::move(source.stored), std::move(source.part)});
      }
      if (covered != box.count()) {
        return Internal(fmt::format("tensor {}: the files hold {} of the {} elements of box {}",
                                    record.tensors[want.tensor].name, covered, box.count(),
                                    box.ToString()));
      }
    }
    plan.targets.push_back(std::move(*target));
  }
  return plan;
}

Result<std::vector<PlacedPiece>> PlacePieces(const ShardFile& file,
                                             const std::vector<Piece>& pieces,
                                             const std::vector<Target>& targets) {
  const std::vector<StoredTensor>& parts = file.header().tensors;
  const auto key = [](const StoredTensor& part) { return std::tie(part.index, part.box); };
  std::vector<std::size_t> order(parts.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return key(parts[a]) < key(parts[b]); });
  std::vector<PlacedPiece> placed;
  for (const Piece& piece : pieces) {
    const Target& target = targets[piece.target];
    const auto wanted = std::tie(target.owner, piece.stored);
    const auto it = std::partition_point(order.begin(), order.end(),
                                         [&](std::size_t i) { return key(parts[i]) < wanted; });
    if (it == order.end() || key(parts[*it]) != wanted) {
      return Internal(fmt::format("the file of rank {} has no part {} of tensor {}",
                                  file.header().rank.value(), piece.stored.ToString(),
                                  target.owner));
    }
    placed.push_back({&target, RowMajor(piece.stored), piece.part, parts[*it].begin, parts[*it].end,
                      file.first_blocks()[*it]});
  }
  std::stable_sort(placed.begin(), placed.end(),
                   [](const PlacedPiece& a, const PlacedPiece& b) { return a.begin < b.begin; });
  return placed;
}

std::vector<BlockRange> MergeRanges(std::vector<BlockRange> ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::vector<BlockRange> merged;
  for (const BlockRange& range : ranges) {
    if (range.first >= range.last) continue;
    if (!merged.empty() && range.first <= merged.back().last) {
      merged.back().last = std::max(merged.back().last, range.last);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

std::vector<BlockRange> BlocksFor(const std::vector<PlacedPiece>& pieces,
                                  std::int64_t block_bytes) {
  std::vector<BlockRange> ranges;
  for (const PlacedPiece& piece : pieces) {
    const std::int64_t in_block = block_bytes / piece.target->element_bytes;
    RunCursor cursor(piece.stored, piece.target->placement, piece.part);
    // From one block that is touched to the next one: however many runs there are in a block, it is
    // looked at once.
    const std::int64_t elements = piece.stored.box.count();
    std::int64_t position = 0;
    for (cursor.Seek(position); cursor.valid(); cursor.Seek(position)) {
      const Run run = Clip(cursor.run(), position, elements);
      const bool dense = run.from_step < in_block;
      const std::int64_t last = run.from + (dense ? (run.count - 1) * run.from_step : 0);
      const BlockRange range{piece.first_block + run.from / in_block,
                             piece.first_block + last / in_block + 1};
      ranges.push_back(range);
      position = (range.last - piece.first_block) * in_block;
    }
  }
  return MergeRanges(std::move(ranges));
}

std::vector<Extent> CutExtents(const std::vector<Block>& blocks,
                               const std::vector<BlockRange>& needed) {
  const auto begin_of = [&](std::int64_t block) {
    return blocks[static_cast<std::size_t>(block)].begin;
  };
  const auto end_of = [&](std::int64_t block) {
    return blocks[static_cast<std::size_t>(block)].end;
  };
  std::vector<Extent> extents;
  std::int64_t limit = 0;  // where the last extent has to end
  for (BlockRange rest : needed) {
    while (rest.first < rest.last) {
      const bool joins = !extents.empty() && end_of(rest.first) <= limit &&
                         begin_of(rest.first) - end_of(extents.back().blocks.last - 1) <= kGapBytes;
      if (!joins) {
        limit = std::max(begin_of(rest.first) + kExtentBytes, end_of(rest.first));
        extents.push_back({{rest.first, rest.first}, {}});
      }
      std::int64_t last = rest.first;
      while (last < rest.last && end_of(last) <= limit) ++last;
      extents.back().blocks.last = last;
      extents.back().needed.push_back({rest.first, last});
      rest.first = last;
    }
  }
  return extents;
}

std::int64_t Scatter(const std::vector<PlacedPiece>& pieces, std::int64_t begin,
                     std::span<const std::byte> bytes) {
  const std::int64_t end = begin + std::ssize(bytes);
  std::int64_t copied = 0;
  auto it = std::partition_point(pieces.begin(), pieces.end(),
                                 [&](const PlacedPiece& piece) { return piece.end <= begin; });
  for (; it != pieces.end() && it->begin < end; ++it) {
    const std::int64_t element = it->target->element_bytes;
    const std::int64_t lo = (std::max(begin, it->begin) - it->begin) / element;
    const std::int64_t hi = (std::min(end, it->end) - it->begin) / element;
    const std::byte* source = bytes.data() + (std::max(begin, it->begin) - begin);
    RunCursor cursor(it->stored, it->target->placement, it->part);
    for (cursor.Seek(lo); cursor.valid() && cursor.run().from < hi; cursor.Advance()) {
      Run run = Clip(cursor.run(), lo, hi);
      run.from -= lo;
      CopyRun(run, source, it->target->memory.data(), element);
      copied += run.count * element;
    }
  }
  return copied;
}

}  // namespace muster::checkpoint
