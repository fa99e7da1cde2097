#include "checkpoint/format.h"

#include <fmt/format.h>

#include <charconv>
#include <tuple>

#include "checkpoint/layout.h"
#include "protocol/check.h"
#include "protocol/tiling.h"

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

bool CommittedBefore(const CheckpointKey& a, const CheckpointKey& b) {
  return std::tie(a.generation, a.step) < std::tie(b.generation, b.step);
}

std::string ShardFileName(Rank rank, int attempt) {
  MUSTER_CHECK(attempt >= 0 && attempt < kMaxAttempts, "attempts are bounded");
  if (attempt == 0) return fmt::format("r{:05}.safetensors", rank.value());
  return fmt::format("r{:05}-{:02}.safetensors", rank.value(), attempt);
}

std::optional<ShardName> ParseShardFileName(std::string_view name) {
  if (name.empty() || name.front() != 'r') return std::nullopt;
  const std::string_view numbers = name.substr(1, name.find('.') - 1);
  const std::size_t dash = numbers.find('-');
  const std::optional<std::int64_t> rank = ParseNumber(numbers.substr(0, dash));
  const std::optional<std::int64_t> attempt =
      dash == std::string_view::npos ? 0 : ParseNumber(numbers.substr(dash + 1));
  if (!rank || *rank >= kMaxWorldSize || !attempt || *attempt >= kMaxAttempts) return std::nullopt;
  const ShardName parsed{Rank(static_cast<std::int32_t>(*rank)), static_cast<int>(*attempt)};
  if (ShardFileName(parsed.rank, parsed.attempt) != name) return std::nullopt;
  return parsed;
}

bool IsShardFileName(std::string_view name, Rank rank) {
  const std::optional<ShardName> parsed = ParseShardFileName(name);
  return parsed && parsed->rank == rank;
}

std::string StoredName(const TensorSpec& tensor, const Box& box) {
  if (box == Box::Whole(tensor.shape)) return tensor.name;
  return tensor.name + box.ToString();
}

std::int64_t ByteCount(const TensorSpec& tensor, const Box& box) {
  return box.count() * SizeOf(tensor.dtype);
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
  return CheckTiling(record.tensors, record.files);
}

}  // namespace muster::checkpoint
