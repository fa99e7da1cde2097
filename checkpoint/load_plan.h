// Which bytes of which files make up the wanted boxes, and how they get there. Internal to the
// reader; pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "checkpoint/layout.h"
#include "checkpoint/reader.h"
#include "checkpoint/reshard.h"
#include "checkpoint/shard_file.h"
#include "protocol/records.h"
#include "protocol/status.h"

namespace muster::checkpoint {

// A wanted box with its target worked out.
struct Target {
  std::size_t owner = 0;  // the tensor whose bytes are stored
  std::int64_t element_bytes = 0;
  Placement placement;
  std::span<std::byte> memory;  // not owned
};

// A part of a wanted box that one file has.
struct Piece {
  std::size_t target = 0;
  Box stored;  // the part of the tensor in the file
  Box part;    // what of it is wanted
};

struct LoadPlan {
  std::vector<Target> targets;                 // by wanted box
  std::map<Rank, std::vector<Piece>> by_rank;  // whose files are needed for what
  std::int64_t bytes_live = 0;                 // copied already
};

// Plans for the wanted boxes, after copying what `live` has of them. No global plan: it takes time
// in the number of wanted boxes and of the parts that they are made of, however many ranks and
// tensors the checkpoint has. kInvalidArgument names the tensor whose box or target does not fit.
// REQUIRES: the record passed CheckRecord.
[[nodiscard]] Result<LoadPlan> PlanLoad(const StoredLayout& layout, const CheckpointRecord& record,
                                        std::span<const WantedBox> wanted,
                                        std::span<const LiveBox> live);

// A piece and where its file has it.
struct PlacedPiece {
  const Target* target = nullptr;
  Placement stored;
  Box part;
  std::int64_t begin = 0;  // of the stored part, in bytes of the data
  std::int64_t end = 0;
  std::int64_t first_block = 0;  // of the stored part
};

// The pieces in the order of the file. kInternal when the file lacks one.
[[nodiscard]] Result<std::vector<PlacedPiece>> PlacePieces(const ShardFile& file,
                                                           const std::vector<Piece>& pieces,
                                                           const std::vector<Target>& targets);

// The same blocks as sorted ranges that neither meet nor overlap.
[[nodiscard]] std::vector<BlockRange> MergeRanges(std::vector<BlockRange> ranges);

// The blocks that the pieces touch. REQUIRES: as PlacePieces gives them.
[[nodiscard]] std::vector<BlockRange> BlocksFor(const std::vector<PlacedPiece>& pieces,
                                                std::int64_t block_bytes);

// What to read at once: neighbouring blocks together, over gaps that are cheaper to read than to
// skip, up to kExtentBytes. `needed` as MergeRanges gives it.
inline constexpr std::int64_t kExtentBytes = std::int64_t{4} << 20U;
[[nodiscard]] std::vector<Extent> CutExtents(const std::vector<Block>& blocks,
                                             const std::vector<BlockRange>& needed);

// Copies what the data from byte `begin` on, `bytes`, has of the pieces to their targets; returns
// how many bytes. Different bytes may be scattered by different threads at once.
std::int64_t Scatter(const std::vector<PlacedPiece>& pieces, std::int64_t begin,
                     std::span<const std::byte> bytes);

}  // namespace muster::checkpoint
