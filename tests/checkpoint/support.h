// What the checkpoint tests share: temporary directories, tensors with known bytes, and saving and
// loading them as a whole job would. The box arithmetic here goes row by row, so that it shares
// nothing with the code under test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "protocol/records.h"

namespace muster::checkpoint {

using Bytes = std::vector<std::byte>;
// By rank.
using ListedBoxes = std::vector<std::vector<ListedBox>>;

// A directory that is removed, with everything in it, at the end of the scope.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory();
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The whole bytes of each tensor.
struct State {
  std::vector<TensorSpec> tensors;
  std::vector<Bytes> bytes;
};

// Tensors of these specs with pseudo-random bytes, different for each seed.
[[nodiscard]] State MakeState(std::vector<TensorSpec> tensors, std::uint64_t seed);

// One of each kind that a job can have: scalars, one element, empty ones, uneven ones cut along
// dimension 0 and along dimension 1, replicated ones, of many dtypes.
[[nodiscard]] std::vector<TensorSpec> VariedTensors();

// The bytes of a box, taken one row of the last dimension after the other.
[[nodiscard]] Bytes Extract(const TensorSpec& tensor, const Bytes& whole, const Box& box);

// The data of the file of rank `rank`.
[[nodiscard]] AlignedBuffer ShardData(const State& state, Rank rank, std::int32_t world_size,
                                      std::span<const ListedBox> listed = {});

// WriteShard by the calling thread alone, so that the calls to the file system come in one order,
// and a forked child can do it too.
[[nodiscard]] Result<FileRecord> WriteAlone(FileSystem& fs, const std::string& root,
                                            const ShardPlan& plan, const AlignedBuffer& data);

[[nodiscard]] ShardPlan PlanOf(const State& state, const CheckpointKey& key, Rank rank,
                               std::int32_t world_size);

// The record of a checkpoint with these files.
[[nodiscard]] CheckpointRecord RecordOf(const State& state, const CheckpointKey& key,
                                        std::vector<FileRecord> files);

// Writes the shards of all ranks, without the manifest.
[[nodiscard]] Result<CheckpointRecord> SaveShards(FileSystem& fs, const std::string& root,
                                                  const State& state, const CheckpointKey& key,
                                                  std::int32_t world_size);

// The same with what each rank lists.
[[nodiscard]] Result<CheckpointRecord> SaveShards(FileSystem& fs, const std::string& root,
                                                  const State& state, const CheckpointKey& key,
                                                  const ListedBoxes& listed);

// Writes the shards of all ranks and the manifest.
[[nodiscard]] Result<CheckpointRecord> Save(FileSystem& fs, const std::string& root,
                                            const State& state, const CheckpointKey& key,
                                            std::int32_t world_size);

[[nodiscard]] Result<CheckpointRecord> SaveListed(FileSystem& fs, const std::string& root,
                                                  const State& state, const CheckpointKey& key,
                                                  const ListedBoxes& listed);

// Loads the checkpoint as each rank of a world of this size would, and compares every byte with the
// state: kDataLoss, with a message that starts with "WRONG", when one differs.
[[nodiscard]] Status LoadAndCompare(FileSystem& fs, const std::string& root,
                                    const CheckpointRecord& record, const State& state,
                                    std::int32_t world_size);

[[nodiscard]] std::string ReadFileBytes(const std::filesystem::path& path);
void WriteFileBytes(const std::filesystem::path& path, const std::string& content);

[[nodiscard]] inline CheckpointKey Key(std::int64_t step, std::int64_t generation) {
  return {Step(step), Generation(generation)};
}

}  // namespace muster::checkpoint
