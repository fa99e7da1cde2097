// Which rank's file has which boxes of which tensors, where in it they lie, and in which blocks
// they are verified. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "protocol/box.h"
#include "protocol/ids.h"
#include "protocol/records.h"
#include "protocol/status.h"

namespace muster::checkpoint {

// Can these tensors be stored? Names are there, unique and none is reserved, names and numbers of
// dimensions keep to protocol/limits.h, no extent is negative, no tensor passes 2^63 - 1 bytes,
// each cut lies within its shape, and an alias is another name of a tensor that is like it and is
// no alias itself. kInvalidArgument names the tensor.
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

// What the file of rank `rank` of `world_size` holds, in the order of its data: StoredBoxesOf each
// tensor, and for those that are cut kListed the boxes of `listed`; larger element types first so
// that each part is aligned to its elements. A tensor that is empty as a whole is in the file of
// rank 0, so that its shape is in a file too. REQUIRES: 0 <= rank < world_size, and the tensors
// passed CheckTensors. kInvalidArgument when a listed box fits no such tensor, or the data passes
// 2^63 - 1 bytes.
[[nodiscard]] Result<std::vector<StoredTensor>> LayoutOf(const std::vector<TensorSpec>& tensors,
                                                         Rank rank, std::int32_t world_size,
                                                         std::span<const ListedBox> listed);

// The unit of verification in a file with this much data: each part is cut into blocks of this many
// bytes from its start, the last one may be shorter, and each has a digest. A power of two, so that
// no element lies in two blocks; small, so that a slice can be read and verified without much
// around it, and larger in large files, so that their headers stay small.
[[nodiscard]] std::int64_t BlockBytes(std::int64_t data_bytes);

// Bytes [begin, end) of a file's data.
struct Block {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  friend bool operator==(const Block&, const Block&) = default;
};
// The blocks of all parts, in the order of the data; they leave nothing out.
[[nodiscard]] std::vector<Block> BlocksOf(const std::vector<StoredTensor>& layout);

// Who has the parts of a box, in the files of one checkpoint.
class StoredLayout {
 public:
  struct Source {
    Rank rank;
    Box stored;  // in the rank's file
    Box part;    // the common part of that and of the wanted box
    friend bool operator==(const Source&, const Source&) = default;
  };

  // REQUIRES: the record passed CheckRecord; it must outlive this.
  explicit StoredLayout(const CheckpointRecord& record);

  // The index of the tensor whose bytes are stored for this one: itself, or of what it is an alias.
  [[nodiscard]] std::size_t OwnerOf(std::size_t tensor) const { return owners_[tensor]; }
  // The sources that together are exactly `want`; none for an empty box. For cuts by rule it takes
  // time in the number of sources, not of ranks. REQUIRES: `want` fits the tensor.
  [[nodiscard]] std::vector<Source> SourcesOf(std::size_t tensor, const Box& want) const;

 private:
  struct Listed {
    Rank rank;
    Box box;
    std::int64_t reach = 0;  // greatest end along dimension 0 of this and all before it
  };
  [[nodiscard]] static std::vector<Source> SourcesByList(const std::vector<Listed>& boxes,
                                                         const Box& want);

  const CheckpointRecord& record_;
  std::vector<std::size_t> owners_;                    // by tensor
  std::map<std::size_t, std::vector<Listed>> listed_;  // by tensor; in the order of dimension 0
};

}  // namespace muster::checkpoint
