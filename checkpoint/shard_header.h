// The header of a shard file: a safetensors header whose metadata says of which checkpoint, which
// rank and which tensors the file is, and holds a digest of each block of its data. README.md lists
// the keys. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format.h"
#include "protocol/ids.h"
#include "protocol/status.h"

namespace muster::checkpoint {

struct ShardHeader {
  std::string job;
  CheckpointKey key;
  Lineage lineage;
  Rank rank;
  std::int32_t world_size = 0;
  std::vector<StoredTensor> tensors;         // as LayoutOf gives them
  std::vector<std::uint64_t> block_digests;  // one for each kBlockBytes of the data, begun or full
  friend bool operator==(const ShardHeader&, const ShardHeader&) = default;

  [[nodiscard]] std::int64_t data_bytes() const { return tensors.empty() ? 0 : tensors.back().end; }
};

// Blocks in `data_bytes` bytes of data.
[[nodiscard]] std::int64_t BlockCount(std::int64_t data_bytes);

// All bytes of the file before its data; its length is a multiple of kDataAlignment and does not
// depend on the values of the digests, so that it is known before the data is written.
// kInvalidArgument when a name is no UTF-8, two parts would have one name, or there are too many.
[[nodiscard]] Result<std::string> EncodeShardHeader(const ShardHeader& header);

// Reads them back. `prefix` is the file up to its data, see DataStartOf. kDataLoss when it is no
// valid safetensors file or its metadata and its tensors contradict each other, kFailedPrecondition
// when it was written in another version of the format.
[[nodiscard]] Result<ShardHeader> DecodeShardHeader(std::string_view prefix,
                                                    std::int64_t file_bytes);

}  // namespace muster::checkpoint
