// The training state that the checkpoint benchmark saves and loads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/aligned_buffer.h"
#include "checkpoint/io_pool.h"
#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "protocol/box.h"
#include "protocol/records.h"
#include "protocol/status.h"

namespace muster::bench {

// A transformer of 12 layers under mixed-precision Adam: its parameters in bfloat16, held whole by
// every rank, and two moments in float32, cut over the ranks. Of about `bytes` bytes, never more
// unless that is less than 2 MiB.
[[nodiscard]] std::vector<TensorSpec> TransformerState(std::int64_t bytes);

// Memory for the whole of each tensor, one after the other.
class TensorMemory {
 public:
  // kResourceExhausted when there is not so much.
  Status Allocate(const std::vector<TensorSpec>& tensors);
  // Fills it with bytes that no one can compress.
  void Randomize(checkpoint::IoPool& pool);
  [[nodiscard]] std::span<std::byte> all() { return memory_.span(); }
  [[nodiscard]] std::span<std::byte> of(std::size_t tensor);

 private:
  checkpoint::AlignedBuffer memory_;
  std::vector<std::int64_t> begins_;  // by tensor, and the end of the last one
};

// The plan of one rank's shard. Steps tell checkpoints apart.
[[nodiscard]] checkpoint::ShardPlan PlanOf(const std::vector<TensorSpec>& tensors,
                                           std::int64_t step, std::int32_t rank,
                                           std::int32_t world_size);
[[nodiscard]] CheckpointRecord RecordOf(const std::vector<TensorSpec>& tensors, std::int64_t step,
                                        std::vector<FileRecord> files);

// What rank `rank` of `world_size` stores, copied from `memory` as the data of its file.
Status GatherShard(TensorMemory& memory, const checkpoint::ShardPlan& plan,
                   checkpoint::AlignedBuffer* data);

// All that rank `rank` of `world_size` holds, to be loaded into `into`, which is made large enough.
// What is held of each tensor lies one after the other.
[[nodiscard]] Result<std::vector<checkpoint::WantedBox>> WantedBy(
    const std::vector<TensorSpec>& tensors, std::int32_t rank, std::int32_t world_size,
    checkpoint::AlignedBuffer* into);

}  // namespace muster::bench
