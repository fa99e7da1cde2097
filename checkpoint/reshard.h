// From one cut of the tensors to another: who has the parts of a wanted box, and how the bytes of a
// part move between two buffers. Both for checkpoints (the stored cut) and between living ranks
// (the held cut). Pure; no global plan: each rank works out its own reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "protocol/box.h"
#include "protocol/ids.h"

namespace muster::checkpoint {

enum class CutRule {
  kHeld,    // BoxOf: replicated tensors are whole on every rank
  kStored,  // StoredBoxOf: every byte is in one place
};

// A part of a wanted box, and the rank that has it.
struct Source {
  Rank rank;
  Box box;
  friend bool operator==(const Source&, const Source&) = default;
};

// The box of `tensor` that `rank` of `world_size` has under the rule.
[[nodiscard]] Box CutBox(CutRule rule, const TensorSpec& tensor, Rank rank,
                         std::int32_t world_size);

// The parts that together are exactly `want`, in the order of the ranks of the source world; none
// for an empty box. What every source rank holds whole (replicated tensors under kHeld) comes from
// `replica`. Takes time in the number of parts, not of ranks.
// REQUIRES: `want` fits the tensor, 0 <= replica < world_size.
[[nodiscard]] std::vector<Source> SourcesOf(const TensorSpec& tensor, CutRule rule,
                                            std::int32_t world_size, const Box& want,
                                            Rank replica = Rank(0));

// A stretch of elements that is contiguous in two buffers; positions in elements from their starts.
struct Run {
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t count = 0;
};

// The runs that `part` is made of, where the buffer read holds box `from` and the one written holds
// box `to`, both row-major; longest possible, in ascending order in both buffers.
class RunCursor {
 public:
  // REQUIRES: `part` lies within both boxes, all three with the same number of dimensions.
  RunCursor(const Box& from, const Box& to, const Box& part);
  // Is there a run? Advance goes to the next one.
  [[nodiscard]] bool valid() const { return valid_; }
  [[nodiscard]] const Run& run() const { return run_; }
  void Advance();

 private:
  struct Dimension {
    std::int64_t extent = 0;
    std::int64_t from_stride = 0;
    std::int64_t to_stride = 0;
    std::int64_t position = 0;
  };
  // Outer dimensions, those that are not within one run, outermost first.
  std::vector<Dimension> outer_;
  Run run_;
  bool valid_ = false;
};

// Copies `part` from a buffer that holds box `from` to one that holds box `to`, both contiguous and
// row-major, elements of `element_bytes` bytes. REQUIRES: as RunCursor; each buffer has exactly the
// size of its box; they do not overlap.
void CopyBox(const Box& from, std::span<const std::byte> source, const Box& to,
             std::span<std::byte> target, const Box& part, std::int64_t element_bytes);

}  // namespace muster::checkpoint
