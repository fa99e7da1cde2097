#include "tests/checkpoint/support.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "checkpoint/format.h"
#include "checkpoint/layout.h"
#include "protocol/check.h"
#include "protocol/prng.h"

namespace muster::checkpoint {
namespace {

constexpr Lineage kLineage{0x1234};

}  // namespace

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern = (std::filesystem::temp_directory_path() / "muster-ckpt-XXXXXX").string();
  MUSTER_CHECK(mkdtemp(pattern.data()) != nullptr, "the tests need a temporary directory");
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

State MakeState(std::vector<TensorSpec> tensors, std::uint64_t seed) {
  State state;
  state.tensors = std::move(tensors);
  Prng prng(seed);
  for (const TensorSpec& tensor : state.tensors) {
    Bytes bytes(static_cast<std::size_t>(ByteCount(tensor, Box::Whole(tensor.shape))));
    for (std::size_t i = 0; i < bytes.size(); i += sizeof(std::uint64_t)) {
      const std::uint64_t random = prng.Next();
      std::memcpy(bytes.data() + i, &random, std::min(sizeof(random), bytes.size() - i));
    }
    state.bytes.push_back(std::move(bytes));
  }
  return state;
}

std::vector<TensorSpec> VariedTensors() {
  return {
      {"embedding", DType::kFloat32, {13, 3}, -1},
      {"adam.m", DType::kFloat32, {13, 3}, 0},
      {"columns", DType::kBFloat16, {3, 10}, 1},
      {"step", DType::kI64, {}, -1},
      {"scale", DType::kFloat64, {1}, -1},
      {"sharded.one", DType::kFloat16, {1}, 0},
      {"none", DType::kU8, {0}, 0},
      {"no.rows", DType::kFloat32, {0, 3}, -1},
      {"no.columns", DType::kI32, {3, 0}, 0},
      {"cube", DType::kI16, {2, 5, 3}, 1},
      {"mask", DType::kBool, {7}, -1},
      {"tiny", DType::kFloat8E4M3, {1, 1}, -1},
      {"name with \"quotes\" and [1:2] é", DType::kU64, {9}, 0},
  };
}

Bytes Extract(const TensorSpec& tensor, const Bytes& whole, const Box& box) {
  Bytes part;
  if (box.empty()) return part;
  std::vector<std::int64_t> at;
  for (const Range& range : box.ranges) at.push_back(range.lo);
  const std::int64_t row = box.ranges.empty() ? 1 : box.ranges.back().size();
  for (std::int64_t rows = box.count() / row; rows > 0; --rows) {
    std::int64_t position = 0;
    for (std::size_t d = 0; d < at.size(); ++d) position = position * tensor.shape[d] + at[d];
    const auto begin = whole.begin() + position * SizeOf(tensor.dtype);
    part.insert(part.end(), begin, begin + row * SizeOf(tensor.dtype));
    for (std::size_t d = at.size(); d-- > 0;) {
      if (d + 1 < at.size() && ++at[d] < box.ranges[d].hi) break;
      at[d] = box.ranges[d].lo;
    }
  }
  return part;
}

AlignedBuffer ShardData(const State& state, Rank rank, std::int32_t world_size,
                        std::span<const ListedBox> listed) {
  Bytes data;
  const Result<std::vector<StoredTensor>> layout =
      LayoutOf(state.tensors, rank, world_size, listed);
  for (const StoredTensor& stored : layout.value()) {
    const Bytes part = Extract(stored.spec, state.bytes[stored.index], stored.box);
    data.insert(data.end(), part.begin(), part.end());
  }
  AlignedBuffer buffer;
  MUSTER_CHECK(buffer.Resize(std::ssize(data)).ok(), "the tests need memory");
  std::copy(data.begin(), data.end(), buffer.span().begin());
  return buffer;
}

Result<FileRecord> WriteAlone(FileSystem& fs, const std::string& root, const ShardPlan& plan,
                              const AlignedBuffer& data) {
  IoPool alone(1);
  return WriteShard(fs, root, plan, data, alone);
}

ShardPlan PlanOf(const State& state, const CheckpointKey& key, Rank rank, std::int32_t world_size) {
  return {"test-job", key, kLineage, rank, world_size, state.tensors, {}};
}

CheckpointRecord RecordOf(const State& state, const CheckpointKey& key,
                          std::vector<FileRecord> files) {
  CheckpointRecord record;
  record.job = "test-job";
  record.key = key;
  record.lineage = kLineage;
  record.world_size = static_cast<std::int32_t>(files.size());
  record.directory = DirectoryName(key);
  record.tensors = state.tensors;
  for (const FileRecord& file : files) record.bytes += file.bytes;
  record.files = std::move(files);
  return record;
}

Result<CheckpointRecord> SaveShards(FileSystem& fs, const std::string& root, const State& state,
                                    const CheckpointKey& key, const ListedBoxes& listed) {
  std::vector<FileRecord> files;
  const auto world_size = static_cast<std::int32_t>(listed.size());
  for (std::int32_t r = 0; r < world_size; ++r) {
    ShardPlan plan = PlanOf(state, key, Rank(r), world_size);
    plan.listed = listed[static_cast<std::size_t>(r)];
    Result<FileRecord> file =
        WriteAlone(fs, root, plan, ShardData(state, Rank(r), world_size, plan.listed));
    if (!file.ok()) return file.status();
    files.push_back(*std::move(file));
  }
  return RecordOf(state, key, std::move(files));
}

Result<CheckpointRecord> SaveShards(FileSystem& fs, const std::string& root, const State& state,
                                    const CheckpointKey& key, std::int32_t world_size) {
  return SaveShards(fs, root, state, key, ListedBoxes(static_cast<std::size_t>(world_size)));
}

Result<CheckpointRecord> Save(FileSystem& fs, const std::string& root, const State& state,
                              const CheckpointKey& key, std::int32_t world_size) {
  return SaveListed(fs, root, state, key, ListedBoxes(static_cast<std::size_t>(world_size)));
}

Result<CheckpointRecord> SaveListed(FileSystem& fs, const std::string& root, const State& state,
                                    const CheckpointKey& key, const ListedBoxes& listed) {
  Result<CheckpointRecord> record = SaveShards(fs, root, state, key, listed);
  if (!record.ok()) return record.status();
  const Result<std::uint64_t> digest = WriteManifest(fs, root, *record);
  if (!digest.ok()) return digest.status();
  return record;
}

Status LoadAndCompare(FileSystem& fs, const std::string& root, const CheckpointRecord& record,
                      const State& state, std::int32_t world_size) {
  for (std::int32_t r = 0; r < world_size; ++r) {
    std::vector<Bytes> buffers;
    std::vector<WantedBox> wanted;
    for (const TensorSpec& tensor : state.tensors) {
      const Box box = BoxOf(tensor, r, world_size);
      buffers.emplace_back(static_cast<std::size_t>(ByteCount(tensor, box)), std::byte{0xEE});
    }
    for (std::size_t i = 0; i < state.tensors.size(); ++i) {
      wanted.push_back({i, BoxOf(state.tensors[i], r, world_size), buffers[i]});
    }
    const Result<LoadReport> report = LoadBoxes(fs, root, record, wanted);
    if (!report.ok()) return report.status();
    for (std::size_t i = 0; i < state.tensors.size(); ++i) {
      if (buffers[i] != Extract(state.tensors[i], state.bytes[i], wanted[i].box)) {
        return DataLoss(fmt::format("WRONG: rank {} of {} got other bytes of tensor {}", r,
                                    world_size, state.tensors[i].name));
      }
    }
  }
  return {};
}

std::string ReadFileBytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void WriteFileBytes(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

}  // namespace muster::checkpoint
