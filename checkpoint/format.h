// Names, sizes and the layout rule of checkpoints on disk. README.md has the grammar. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/box.h"
#include "protocol/ids.h"
#include "protocol/records.h"
#include "protocol/status.h"

namespace muster::checkpoint {

inline constexpr int kFormatVersion = 1;
// The unit of verification: each block of a file's data has a digest, the last one may be shorter.
inline constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20U;
// Data starts at a multiple of this, so that it can be written and read around the page cache.
inline constexpr std::int64_t kDataAlignment = 4096;
inline constexpr std::string_view kManifestName = "manifest.json";
// Names that one file may try before its writer gives up; see ShardFileName.
inline constexpr int kMaxAttempts = 100;

// "s000000000042-g00000007": unique for each (step, generation), never used again.
[[nodiscard]] std::string DirectoryName(const CheckpointKey& key);
// The reverse; nothing for any other name.
[[nodiscard]] std::optional<CheckpointKey> ParseDirectoryName(std::string_view name);

// "r00003.safetensors" for attempt 0, "r00003-01.safetensors" for attempt 1: a file that met an
// error is never written again, the next attempt has another name. REQUIRES: 0 <= attempt <
// kMaxAttempts
[[nodiscard]] std::string ShardFileName(Rank rank, int attempt);
// Is `name` one of those that ShardFileName gives this rank? A name that is cannot lead out of the
// checkpoint's directory.
[[nodiscard]] bool IsShardFileName(std::string_view name, Rank rank);

// The name of a tensor's part in a file: the tensor's own name when it is the whole, otherwise
// "name[lo:hi,…]", so that no reader takes a slice for the tensor.
[[nodiscard]] std::string StoredName(const TensorSpec& tensor, const Box& box);

// Bytes of the box of this tensor. REQUIRES: the tensor passed CheckTensors, and the box fits.
[[nodiscard]] std::int64_t ByteCount(const TensorSpec& tensor, const Box& box);

// Can these tensors be stored? Names are there, unique and none is reserved, names and numbers of
// dimensions keep to protocol/limits.h, no extent is negative, no tensor passes 2^63 - 1 bytes, and
// each cut lies within its shape. kInvalidArgument names the tensor.
Status CheckTensors(const std::vector<TensorSpec>& tensors);

// A tensor's part in the file of one rank.
struct StoredTensor {
  std::size_t index = 0;   // in the job's list of tensors
  TensorSpec spec;         // of the whole tensor
  Box box;                 // the part
  std::string name;        // StoredName
  std::int64_t begin = 0;  // bytes from the start of the data
  std::int64_t end = 0;
  friend bool operator==(const StoredTensor&, const StoredTensor&) = default;
};

// What the file of rank `rank` of `world_size` holds, in the order of its data: StoredBoxOf of each
// tensor, larger element types first so that each is aligned to its size. Empty boxes are left out;
// a tensor that is empty as a whole is in the file of rank 0, so that its shape is in a file too.
// REQUIRES: 0 <= rank < world_size, and the tensors passed CheckTensors. kInvalidArgument when the
// data passes 2^63 - 1 bytes.
[[nodiscard]] Result<std::vector<StoredTensor>> LayoutOf(const std::vector<TensorSpec>& tensors,
                                                         Rank rank, std::int32_t world_size);

// Is the record one that can be committed? Its directory fits its key; its tensors can be stored;
// each rank has exactly one file, in order, with a name of its own; the sizes add up. Every byte of
// every tensor is then stored exactly once, by the layout rule. kInvalidArgument names what is not.
Status CheckRecord(const CheckpointRecord& record);

}  // namespace muster::checkpoint
