// How the elements of a box move between two buffers that hold it in different ways: other boxes
// around it, other strides. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "protocol/box.h"
#include "protocol/status.h"

namespace muster::checkpoint {

// Where in a buffer the elements of a box lie: the one at (i, j, …), in the coordinates of the
// tensor, at `offset` + (i - lo of dimension 0) * strides[0] + …, counted in elements.
struct Placement {
  Box box;
  std::vector<std::int64_t> strides;  // one for each dimension; may be 0 or negative
  std::int64_t offset = 0;
};

// The box alone, row-major and contiguous.
[[nodiscard]] Placement RowMajor(const Box& box);

// Do all elements lie within a buffer of `elements` elements, and, when they are to be written,
// none in the place of another? Judges the second by strides alone, so that it may refuse unusual
// but harmless ones. kInvalidArgument says what is wrong.
Status CheckPlacement(const Placement& placement, std::int64_t elements, bool written);

// Elements that are evenly spaced in two buffers; positions and steps in elements.
struct Run {
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t count = 0;
  std::int64_t from_step = 1;
  std::int64_t to_step = 1;
};

// The runs that `part` is made of between the buffer read and the one written, longest possible; in
// ascending order in a buffer that is row-major.
class RunCursor {
 public:
  // REQUIRES: `part` lies within both boxes, all three with the same number of dimensions.
  RunCursor(const Placement& from, const Placement& to, const Box& part);
  // Is there a run? Advance goes to the next one.
  [[nodiscard]] bool valid() const { return valid_; }
  [[nodiscard]] const Run& run() const { return run_; }
  void Advance();
  // Goes to the first run with an element at or after `position` of the buffer read, or behind the
  // last run. REQUIRES: that buffer is row-major.
  void Seek(std::int64_t position);

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

// Copies a run; `source` and `target` are the starts of the buffers. REQUIRES: element_bytes is 1,
// 2, 4 or 8.
void CopyRun(const Run& run, const std::byte* source, std::byte* target,
             std::int64_t element_bytes);

// Copies `part` between two buffers that do not overlap. REQUIRES: as RunCursor, and both
// placements pass CheckPlacement for their buffers.
void CopyBox(const Placement& from, std::span<const std::byte> source, const Placement& to,
             std::span<std::byte> target, const Box& part, std::int64_t element_bytes);
// The same between row-major buffers that have exactly the size of their boxes.
void CopyBox(const Box& from, std::span<const std::byte> source, const Box& to,
             std::span<std::byte> target, const Box& part, std::int64_t element_bytes);

// What is left of `box` without `hole`, as boxes that do not overlap: at most two for each
// dimension.
[[nodiscard]] std::vector<Box> Subtract(const Box& box, const Box& hole);

}  // namespace muster::checkpoint
