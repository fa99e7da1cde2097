#include "tests/bench/checkpoint_workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "checkpoint/format.h"
#include "checkpoint/layout.h"
#include "checkpoint/reshard.h"
#include "protocol/prng.h"

namespace muster::bench {
namespace {

constexpr std::int64_t kLayers = 12;
// Rows of the embedding for each unit of width: 32,000 at a width of 768.
constexpr std::int64_t kVocabularyPerWidth = 42;
constexpr std::int64_t kLeastWidth = 64;
constexpr std::int64_t kFillBytes = std::int64_t{8} << 20U;

std::vector<std::pair<std::string, Shape>> Parameters(std::int64_t width) {
  std::vector<std::pair<std::string, Shape>> parameters;
  parameters.emplace_back("embedding.weight", Shape{kVocabularyPerWidth * width, width});
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    const auto add = [&](const char* name, Shape shape) {
      parameters.emplace_back(fmt::format("layers.{}.{}", layer, name), std::move(shape));
    };
    add("norm1.weight", {width});
    add("attention.qkv.weight", {3 * width, width});
    add("attention.qkv.bias", {3 * width});
    add("attention.out.weight", {width, width});
    add("norm2.weight", {width});
    add("mlp.up.weight", {4 * width, width});
    add("mlp.up.bias", {4 * width});
    add("mlp.down.weight", {width, 4 * width});
  }
  parameters.emplace_back("norm.weight", Shape{width});
  return parameters;
}

std::int64_t BytesOf(const std::vector<TensorSpec>& tensors) {
  std::int64_t bytes = 0;
  for (const TensorSpec& tensor : tensors) {
    bytes += checkpoint::ByteCount(tensor, Box::Whole(tensor.shape));
  }
  return bytes;
}

std::vector<TensorSpec> StateOfWidth(std::int64_t width) {
  std::vector<TensorSpec> tensors;
  for (auto& [name, shape] : Parameters(width)) {
    tensors.push_back({"model." + name, DType::kBFloat16, shape, kReplicated});
    tensors.push_back({"adam.m." + name, DType::kFloat32, shape, 0});
    tensors.push_back({"adam.v." + name, DType::kFloat32, shape, 0});
  }
  tensors.push_back({"step", DType::kI64, {}, kReplicated});
  return tensors;
}

}  // namespace

std::vector<TensorSpec> TransformerState(std::int64_t bytes) {
  std::int64_t width = kLeastWidth;
  while (BytesOf(StateOfWidth(width + 32)) <= bytes) width += 32;
  return StateOfWidth(width);
}

Status TensorMemory::Allocate(const std::vector<TensorSpec>& tensors) {
  begins_ = {0};
  for (const TensorSpec& tensor : tensors) {
    begins_.push_back(begins_.back() + checkpoint::ByteCount(tensor, Box::Whole(tensor.shape)));
  }
  return memory_.Resize(begins_.back());
}

void TensorMemory::Randomize(checkpoint::IoPool& pool) {
  const std::int64_t pieces = (memory_.size() + kFillBytes - 1) / kFillBytes;
  static_cast<void>(pool.ForEach(pieces, [this](std::int64_t piece) {
    Prng prng(static_cast<std::uint64_t>(piece));
    const std::int64_t end = std::min(memory_.size(), (piece + 1) * kFillBytes);
    for (std::int64_t at = piece * kFillBytes; at < end; at += 8) {
      const std::uint64_t random = prng.Next();
      std::memcpy(memory_.span().data() + at, &random,
                  static_cast<std::size_t>(std::min<std::int64_t>(8, end - at)));
    }
    return Status();
  }));
}

std::span<std::byte> TensorMemory::of(std::size_t tensor) {
  return memory_.span().subspan(static_cast<std::size_t>(begins_[tensor]),
                                static_cast<std::size_t>(begins_[tensor + 1] - begins_[tensor]));
}

checkpoint::ShardPlan PlanOf(const std::vector<TensorSpec>& tensors, std::int64_t step,
                             std::int32_t rank, std::int32_t world_size) {
  return {"bench", {Step(step), Generation(1)}, Lineage(1), Rank(rank), world_size, tensors};
}

CheckpointRecord RecordOf(const std::vector<TensorSpec>& tensors, std::int64_t step,
                          std::vector<FileRecord> files) {
  CheckpointRecord record;
  record.job = "bench";
  record.key = {Step(step), Generation(1)};
  record.lineage = Lineage(1);
  record.world_size = static_cast<std::int32_t>(files.size());
  record.directory = checkpoint::DirectoryName(record.key);
  record.tensors = tensors;
  for (const FileRecord& file : files) record.bytes += file.bytes;
  record.files = std::move(files);
  return record;
}

Status GatherShard(TensorMemory& memory, const checkpoint::ShardPlan& plan,
                   checkpoint::AlignedBuffer* data) {
  const auto layout = checkpoint::LayoutOf(plan.tensors, plan.rank, plan.world_size, plan.listed);
  if (!layout.ok()) return layout.status();
  MUSTER_RETURN_IF_ERROR(data->Resize(layout->empty() ? 0 : layout->back().end));
  for (const checkpoint::StoredTensor& stored : *layout) {
    const auto begin = static_cast<std::size_t>(stored.begin);
    checkpoint::CopyBox(Box::Whole(stored.spec.shape), memory.of(stored.index), stored.box,
                        data->span().subspan(begin, static_cast<std::size_t>(stored.end) - begin),
                        stored.box, SizeOf(stored.spec.dtype));
  }
  return {};
}

Result<std::vector<checkpoint::WantedBox>> WantedBy(const std::vector<TensorSpec>& tensors,
                                                    std::int32_t rank, std::int32_t world_size,
                                                    checkpoint::AlignedBuffer* into) {
  std::vector<checkpoint::WantedBox> wanted;
  std::vector<std::int64_t> begins = {0};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (Box& box : BoxesOf(tensors[i], rank, world_size)) {
      begins.push_back(begins.back() + checkpoint::ByteCount(tensors[i], box));
      wanted.push_back({i, std::move(box), {}});
    }
  }
  if (Status status = into->Resize(begins.back()); !status.ok()) return status;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    wanted[i].into = into->span().subspan(static_cast<std::size_t>(begins[i]),
                                          static_cast<std::size_t>(begins[i + 1] - begins[i]));
  }
  return wanted;
}

}  // namespace muster::bench
