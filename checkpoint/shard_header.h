// The header of a shard file: a safetensors header whose metadata says of which checkpoint, which
// rank and which tensors the file is, and holds a digest of each block of its data. README.md lists
// the keys. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/layout.h"
#include "protocol/ids.h"
#include "protocol/status.h"

namespace muster::checkpoint {

// A tensor that is another name of one that is stored.
struct StoredAlias {
  std::size_t index = 0;  // in the job's list of tensors
  std::string name;
  std::string of;
  int cut_dimension = kReplicated;
  friend bool operator==(const StoredAlias&, const StoredAlias&) = default;
};
// Those of the list.
[[nodiscard]] std::vector<StoredAlias> AliasesIn(const std::vector<TensorSpec>& tensors);

struct ShardHeader {
  std::string job;
  CheckpointKey key;
  Lineage lineage;
  Rank rank;
  std::int32_t world_size = 0;
  std::vector<StoredTensor> tensors;         // as LayoutOf gives them
  std::vector<StoredAlias> aliases;          // all of the job, in the file of rank 0 alone
  std::vector<std::uint64_t> block_digests;  // one for each of BlocksOf(tensors)
  friend bool operator==(const ShardHeader&, const ShardHeader&) = default;

  [[nodiscard]] std::int64_t data_bytes() const { return tensors.empty() ? 0 : tensors.back().end; }
};

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
