#include "checkpoint/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "protocol/check.h"

namespace muster::checkpoint {
namespace {

// The decimal number that `text` is, digits alone.
std::optional<std::int64_t> ParseNumber(std::string_view text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < 0) return std::nullopt;
  return value;
}

// Where rank `rank` keeps its part of `tensor` in its file; nothing when it keeps none.
std::optional<Box> FileBoxOf(const TensorSpec& tensor, Rank rank, std::int32_t world_size) {
  const Box whole = Box::Whole(tensor.shape);
  if (whole.empty()) {
    if (rank.value() == 0) return whole;
    return std::nullopt;
  }
  Box box = StoredBoxOf(tensor, rank.value(), world_size);
  if (box.empty()) return std::nullopt;
  return box;
}

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
  if (tensor.cut_dimension < -1 || tensor.cut_dimension >= std::ssize(tensor.shape)) {
    return InvalidArgument(fmt::format("tensor {} is cut along dimension {}, and has {} dimensions",
                                       tensor.name, tensor.cut_dimension, tensor.shape.size()));
  }
  return {};
}

}  // namespace

std::string DirectoryName(const CheckpointKey& key) {
  return fmt::format("s{:012}-g{:08}", key.step.value(), key.generation.value());
}

std::optional<CheckpointKey> ParseDirectoryName(std::string_view name) {
  const std::size_t dash = name.find("-g");
  if (name.empty() || name.front() != 's' || dash == std::string_view::npos) return std::nullopt;
  const std::optional<std::int64_t> step = ParseNumber(name.substr(1, dash - 1));
  const std::optional<std::int64_t> generation = ParseNumber(name.substr(dash + 2));
  if (!step || !generation) return std::nullopt;
  const CheckpointKey key{Step(*step), Generation(*generation)};
  if (DirectoryName(key) != name) return std::nullopt;
  return key;
}

std::string ShardFileName(Rank rank, int attempt) {
  MUSTER_CHECK(attempt >= 0 && attempt < kMaxAttempts, "attempts are bounded");
  if (attempt == 0) return fmt::format("r{:05}.safetensors", rank.value());
  return fmt::format("r{:05}-{:02}.safetensors", rank.value(), attempt);
}

bool IsShardFileName(std::string_view name, Rank rank) {
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    if (name == ShardFileName(rank, attempt)) return true;
  }
  return false;
}

std::string StoredName(const TensorSpec& tensor, const Box& box) {
  if (box == Box::Whole(tensor.shape)) return tensor.name;
  return tensor.name + box.ToString();
}

std::int64_t ByteCount(const TensorSpec& tensor, const Box& box) {
  return box.count() * SizeOf(tensor.dtype);
}

Status CheckTensors(const std::vector<TensorSpec>& tensors) {
  std::set<std::string_view> names;
  for (const TensorSpec& tensor : tensors) {
    MUSTER_RETURN_IF_ERROR(CheckTensor(tensor));
    if (!names.insert(tensor.name).second) {
      return InvalidArgument(fmt::format("two tensors are named {}: rename one", tensor.name));
    }
  }
  return {};
}

Result<std::vector<StoredTensor>> LayoutOf(const std::vector<TensorSpec>& tensors, Rank rank,
                                           std::int32_t world_size) {
  MUSTER_CHECK(rank.value() >= 0 && rank.value() < world_size, "there is no such rank");
  std::vector<StoredTensor> layout;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    std::optional<Box> box = FileBoxOf(tensors[i], rank, world_size);
    if (!box) continue;
    std::string name = StoredName(tensors[i], *box);
    layout.push_back({i, tensors[i], *std::move(box), std::move(name), 0, 0});
  }
  std::stable_sort(layout.begin(), layout.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return SizeOf(a.spec.dtype) > SizeOf(b.spec.dtype);
  });
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

Status CheckRecord(const CheckpointRecord& record) {
  if (record.key.step.value() < 0 || record.key.generation.value() < 0 ||
      record.directory != DirectoryName(record.key)) {
    return InvalidArgument(fmt::format("directory {} is not that of step {}, generation {}",
                                       record.directory, record.key.step.value(),
                                       record.key.generation.value()));
  }
  if (record.world_size < 1 || record.world_size > kMaxWorldSize) {
    return InvalidArgument(
        fmt::format("world size {} is not in 1 to {}", record.world_size, kMaxWorldSize));
  }
  if (std::ssize(record.files) != record.world_size) {
    return InvalidArgument(fmt::format("{} files are recorded for {} ranks: each writes one",
                                       record.files.size(), record.world_size));
  }
  MUSTER_RETURN_IF_ERROR(CheckTensors(record.tensors));
  std::int64_t bytes = 0;
  for (std::int32_t r = 0; r < record.world_size; ++r) {
    const FileRecord& file = record.files[static_cast<std::size_t>(r)];
    if (file.rank != Rank(r) || !IsShardFileName(file.name, Rank(r))) {
      return InvalidArgument(fmt::format("file {} of rank {} stands where rank {}'s belongs",
                                         file.name, file.rank.value(), r));
    }
    if (file.bytes < 0 || __builtin_add_overflow(bytes, file.bytes, &bytes)) {
      return InvalidArgument(fmt::format("file {} cannot have {} bytes", file.name, file.bytes));
    }
  }
  if (bytes != record.bytes) {
    return InvalidArgument(
        fmt::format("the files have {} bytes, the record says {}", bytes, record.bytes));
  }
  return {};
}

}  // namespace muster::checkpoint
