// Names and sizes of checkpoints on disk, and what makes a record whole. README.md has the grammar.
// Pure.
#pragma once

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

inline constexpr int kFormatVersion = 2;
// Data starts at a multiple of this, so that it can be written and read around the page cache.
inline constexpr std::int64_t kDataAlignment = 4096;
inline constexpr std::string_view kManifestName = "manifest.json";
// Names that one file may try before its writer gives up; see ShardFileName.
inline constexpr int kMaxAttempts = 100;

// "s000000000042-g00000007": unique for each (step, generation), never used again.
[[nodiscard]] std::string DirectoryName(const CheckpointKey& key);
// The reverse; nothing for any other name.
[[nodiscard]] std::optional<CheckpointKey> ParseDirectoryName(std::string_view name);

// Was a committed before b? Steps alone do not say it: a job that was rolled back commits lower
// ones later.
[[nodiscard]] bool CommittedBefore(const CheckpointKey& a, const CheckpointKey& b);

// "r00003.safetensors" for attempt 0, "r00003-01.safetensors" for attempt 1: a file that met an
// error is never written again, the next attempt has another name. REQUIRES: 0 <= attempt <
// kMaxAttempts
[[nodiscard]] std::string ShardFileName(Rank rank, int attempt);
// The reverse; nothing for any other name.
struct ShardName {
  Rank rank;
  int attempt = 0;
};
[[nodiscard]] std::optional<ShardName> ParseShardFileName(std::string_view name);
// Is `name` one of those that ShardFileName gives this rank? A name that is cannot lead out of the
// checkpoint's directory.
[[nodiscard]] bool IsShardFileName(std::string_view name, Rank rank);

// The name of a tensor's part in a file: the tensor's own name when it is the whole, otherwise
// "name[lo:hi,…]", so that no reader takes a slice for the tensor.
[[nodiscard]] std::string StoredName(const TensorSpec& tensor, const Box& box);

// Bytes of the box of this tensor. REQUIRES: the tensor passed CheckTensors, and the box fits.
[[nodiscard]] std::int64_t ByteCount(const TensorSpec& tensor, const Box& box);

// Is the record one that can be committed? Its directory fits its key; its tensors can be stored;
// each rank has exactly one file, in order, with a name of its own; the sizes add up; and every
// byte of every tensor is stored exactly once. kInvalidArgument names what is not.
Status CheckRecord(const CheckpointRecord& record);

}  // namespace muster::checkpoint
