#include "checkpoint/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "checkpoint/format.h"
#include "protocol/check.h"
#include "protocol/limits.h"

namespace muster::checkpoint {
namespace {

constexpr std::int64_t kSmallestBlock = std::int64_t{1} << 16U;
// Digests of this many blocks are 2 MiB of a header.
constexpr std::int64_t kMostBlocks = std::int64_t{1} << 17U;

Status CheckTensor(const TensorSpec& tensor) {
  if (tensor.name.empty()) return InvalidArgument("a tensor has no name: give it one");
  if (tensor.name.size() > kMaxNameBytes) {
    return InvalidArgument(fmt::format("tensor {}: a name has at most {} bytes, this has {}",
                                       tensor.name, kMaxNameBytes, tensor.name.size()));
  }
  if (tensor.shape.size() > kMaxDimensions) {
    return InvalidArgument(fmt::format("tensor {} has {} dimensions, and {} are the most",
                                       tensor.name, tensor.shape.size(), kMaxDimensions));
  }
  if (tensor.name == "__metadata__") {
    return InvalidArgument(
        "the name __metadata__ is reserved by the file format: rename the tensor");
  }
  const Result<std::int64_t> elements = CountElements(tensor.shape);
  if (!elements.ok()) {
    return InvalidArgument(fmt::format("tensor {}: {}", tensor.name, elements.status().message()));
  }
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(*elements, SizeOf(tensor.dtype), &bytes)) {
    return InvalidArgument(fmt::format("tensor {} passes 2^63 - 1 bytes", tensor.name));
  }
  if (tensor.cut_dimension < kListed || tensor.cut_dimension >= std::ssize(tensor.shape)) {
    return InvalidArgument(fmt::format("tensor {} is cut along dimension {}, and has {} dimensions",
                                       tensor.name, tensor.cut_dimension, tensor.shape.size()));
  }
  return {};
}

Status CheckAlias(const TensorSpec& alias, const TensorSpec* of) {
  if (of == nullptr || !of->alias_of.empty()) {
    return InvalidArgument(fmt::format("tensor {} is an alias of {}, which is {}", alias.name,
                                       alias.alias_of,
                                       of == nullptr ? "no tensor" : "an alias itself"));
  }
  if (alias.dtype == of->dtype && alias.shape == of->shape &&
      alias.logical_dtype == of->logical_dtype) {
    return {};
  }
  return InvalidArgument(fmt::format("tensor {} is an alias of {}, and has another type or shape",
                                     alias.name, alias.alias_of));
}

// The part of an even cut that has `position`: the inverse of EvenCut. The first `extent % parts`
// parts have one element more.
std::int64_t PartAt(std::int64_t position, std::int64_t extent, std::int64_t parts) {
  const std::int64_t size = extent / parts;
  const std::int64_t larger = extent % parts;
  const std::int64_t in_larger = larger * (size + 1);
  if (position < in_larger) return position / (size + 1);
  return larger + (position - in_larger) / size;
}

// The ranks, first to last, whose stored parts can meet a box that is not empty.
std::pair<std::int64_t, std::int64_t> RanksFor(const TensorSpec& tensor, const Box& want,
                                               std::int32_t world_size) {
  if (want.ranges.empty()) return {0, 0};
  if (tensor.cut_dimension == kFlat) {
    std::int64_t first = 0;
    std::int64_t last = 0;
    for (std::size_t d = 0; d < want.ranges.size(); ++d) {
      first = first * tensor.shape[d] + want.ranges[d].lo;
      last = last * tensor.shape[d] + want.ranges[d].hi - 1;
    }
    const std::int64_t count = Box::Whole(tensor.shape).count();
    return {PartAt(first, count, world_size), PartAt(last, count, world_size)};
  }
  const auto cut = static_cast<std::size_t>(std::max(tensor.cut_dimension, 0));
  const Range range = want.ranges[cut];
  return {PartAt(range.lo, tensor.shape[cut], world_size),
          PartAt(range.hi - 1, tensor.shape[cut], world_size)};
}

void AppendPart(const TensorSpec& spec, std::size_t index, Box box,
                std::vector<StoredTensor>* layout) {
  std::string name = StoredName(spec, box);
  layout->push_back({index, spec, std::move(box), std::move(name), 0, 0});
}

// Empty ones first, by name: they all lie at the same place, so that it must be their names that
// order them for whoever reads the file. Then larger elements first.
bool ComesFirst(const StoredTensor& a, const StoredTensor& b) {
  if (a.box.empty() != b.box.empty()) return a.box.empty();
  if (a.box.empty()) return a.name < b.name;
  return SizeOf(a.spec.dtype) > SizeOf(b.spec.dtype);
}

// By rule, in the order of the tensors.
std::vector<StoredTensor> PartsByRule(const std::vector<TensorSpec>& tensors, Rank rank,
                                      std::int32_t world_size) {
  std::vector<StoredTensor> parts;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorSpec& tensor = tensors[i];
    const Box whole = Box::Whole(tensor.shape);
    if (whole.empty()) {
      if (rank == Rank(0) && tensor.alias_of.empty()) AppendPart(tensor, i, whole, &parts);
    } else if (tensor.cut_dimension != kListed) {
      for (Box& box : StoredBoxesOf(tensor, rank.value(), world_size)) {
        AppendPart(tensor, i, std::move(box), &parts);
      }
    }
  }
  return parts;
}

}  // namespace

Status CheckTensors(const std::vector<TensorSpec>& tensors) {
  std::unordered_map<std::string_view, const TensorSpec*> by_name;
  by_name.reserve(tensors.size());
  for (const TensorSpec& tensor : tensors) {
    MUSTER_RETURN_IF_ERROR(CheckTensor(tensor));
    if (!by_name.emplace(tensor.name, &tensor).second) {
      return InvalidArgument(fmt::format("two tensors are named {}: rename one", tensor.name));
    }
  }
  for (const TensorSpec& tensor : tensors) {
    if (tensor.alias_of.empty()) continue;
    const auto of = by_name.find(tensor.alias_of);
    MUSTER_RETURN_IF_ERROR(CheckAlias(tensor, of == by_name.end() ? nullptr : of->second));
  }
  return {};
}

Result<std::vector<StoredTensor>> LayoutOf(const std::vector<TensorSpec>& tensors, Rank rank,
                                           std::int32_t world_size,
                                           std::span<const ListedBox> listed) {
  MUSTER_CHECK(rank.value() >= 0 && rank.value() < world_size, "there is no such rank");
  std::vector<StoredTensor> layout = PartsByRule(tensors, rank, world_size);
  for (const ListedBox& part : listed) {
    const auto index = static_cast<std::size_t>(part.tensor);
    if (index >= tensors.size() || tensors[index].cut_dimension != kListed ||
        !tensors[index].alias_of.empty() || !Fits(part.box, tensors[index].shape) ||
        part.box.empty()) {
      return InvalidArgument(fmt::format("rank {} lists the box {} of tensor {}, which has none",
                                         rank.value(), part.box.ToString(),
                                         index < tensors.size() ? tensors[index].name : "?"));
    }
    AppendPart(tensors[index], index, part.box, &layout);
  }
  std::stable_sort(layout.begin(), layout.end(), ComesFirst);
  std::int64_t position = 0;
  for (StoredTensor& tensor : layout) {
    tensor.begin = position;
    if (__builtin_add_overflow(position, ByteCount(tensor.spec, tensor.box), &position)) {
      return InvalidArgument(
          fmt::format("the shard of rank {} passes 2^63 - 1 bytes at tensor {}: use more ranks",
                      rank.value(), tensor.spec.name));
    }
    tensor.end = position;
  }
  return layout;
}

std::int64_t BlockBytes(std::int64_t data_bytes) {
  std::int64_t block = kSmallestBlock;
  while (data_bytes / block > kMostBlocks) block *= 2;
  return block;
}

std::vector<Block> BlocksOf(const std::vector<StoredTensor>& layout) {
  const std::int64_t size = BlockBytes(layout.empty() ? 0 : layout.back().end);
  std::vector<Block> blocks;
  for (const StoredTensor& part : layout) {
    for (std::int64_t begin = part.begin; begin < part.end; begin += size) {
      blocks.push_back({begin, std::min(begin + size, part.end)});
    }
  }
  return blocks;
}

StoredLayout::StoredLayout(const CheckpointRecord& record) : record_(record) {
  std::unordered_map<std::string_view, std::size_t> by_name;
  const std::vector<TensorSpec>& tensors = record.tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    owners_.push_back(i);
    if (tensors[i].alias_of.empty()) by_name.emplace(tensors[i].name, i);
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].alias_of.empty()) owners_[i] = by_name.at(tensors[i].alias_of);
  }
  for (const FileRecord& file : record.files) {
    for (const ListedBox& part : file.listed) {
      listed_[static_cast<std::size_t>(part.tensor)].push_back({file.rank, part.box, 0});
    }
  }
  for (auto& [tensor, boxes] : listed_) {
    std::sort(boxes.begin(), boxes.end(), [](const Listed& a, const Listed& b) {
      return a.box != b.box ? a.box < b.box : a.rank < b.rank;
    });
    std::int64_t reach = 0;
    for (Listed& listed : boxes) {
      if (!listed.box.ranges.empty()) reach = std::max(reach, listed.box.ranges[0].hi);
      listed.reach = reach;
    }
  }
}

std::vector<StoredLayout::Source> StoredLayout::SourcesByList(const std::vector<Listed>& boxes,
                                                              const Box& want) {
  if (want.ranges.empty()) return {{boxes.front().rank, boxes.front().box, want}};
  std::vector<Source> sources;
  auto it = std::partition_point(boxes.begin(), boxes.end(), [&](const Listed& listed) {
    return listed.box.ranges[0].lo < want.ranges[0].hi;
  });
  while (it != boxes.begin() && (--it)->reach > want.ranges[0].lo) {
    if (std::optional<Box> part = Intersect(it->box, want)) {
      sources.push_back({it->rank, it->box, *std::move(part)});
    }
  }
  return sources;
}

std::vector<StoredLayout::Source> StoredLayout::SourcesOf(std::size_t tensor,
                                                          const Box& want) const {
  const std::size_t owner = owners_[tensor];
  const TensorSpec& spec = record_.tensors[owner];
  MUSTER_CHECK(Fits(want, spec.shape), "the wanted box lies outside of the tensor");
  if (want.empty()) return {};
  if (const auto listed = listed_.find(owner); listed != listed_.end()) {
    return SourcesByList(listed->second, want);
  }
  std::vector<Source> sources;
  const auto [first, last] = RanksFor(spec, want, record_.world_size);
  for (std::int64_t rank = first; rank <= last; ++rank) {
    for (Box& stored : StoredBoxesOf(spec, rank, record_.world_size)) {
      std::optional<Box> part = Intersect(stored, want);
      if (!part) continue;
      sources.push_back(
          {Rank(static_cast<std::int32_t>(rank)), std::move(stored), *std::move(part)});
    }
  }
  return sources;
}

}  // namespace muster::checkpoint
