// Boxes: N-d slices of a tensor, and the question whether a set of them tiles it. Plain arithmetic
// in 64 bits; no storage, no types of elements beyond their size.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/status.h"

namespace muster {

enum class DType {
  kBool,
  kU8,
  kI8,
  kI16,
  kU16,
  kI32,
  kU32,
  kI64,
  kU64,
  kFloat8E4M3,
  kFloat8E5M2,
  kFloat8E8M0,
  kFloat8E4M3Fnuz,
  kFloat8E5M2Fnuz,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kComplex64,
};

// Bytes of one element.
[[nodiscard]] std::int64_t SizeOf(DType dtype);
// The name that safetensors uses: "F32", "BF16", "F8_E4M3", …
[[nodiscard]] std::string_view DTypeName(DType dtype);
[[nodiscard]] std::optional<DType> DTypeFromName(std::string_view name);

// Extents per dimension; empty for a scalar. A zero makes an empty tensor.
using Shape = std::vector<std::int64_t>;

// Number of elements (1 for a scalar), or an error when an extent is negative or the product
// passes 2^63 - 1.
[[nodiscard]] Result<std::int64_t> CountElements(const Shape& shape);

// [lo, hi) in one dimension.
struct Range {
  std::int64_t lo = 0;
  std::int64_t hi = 0;
  [[nodiscard]] std::int64_t size() const { return hi - lo; }
  friend auto operator<=>(const Range&, const Range&) = default;
};

// One range per dimension of the tensor; empty for a scalar, and then it holds one element.
struct Box {
  std::vector<Range> ranges;

  // The box that is the whole tensor.
  [[nodiscard]] static Box Whole(const Shape& shape);
  // REQUIRES: valid for some tensor, so that the product cannot overflow.
  [[nodiscard]] std::int64_t count() const;
  [[nodiscard]] bool empty() const { return count() == 0; }
  [[nodiscard]] Shape shape() const;
  // "[0:4,2:8]"; "[]" for a scalar.
  [[nodiscard]] std::string ToString() const;
  friend auto operator<=>(const Box&, const Box&) = default;
};

// Does `box` have the rank of `shape` and lie within it, with lo <= hi everywhere?
[[nodiscard]] bool Fits(const Box& box, const Shape& shape);
// The common part, or nothing when it is empty. REQUIRES: same number of dimensions.
[[nodiscard]] std::optional<Box> Intersect(const Box& a, const Box& b);
// Ok when the boxes cover every element of `shape` exactly once; otherwise says the first gap or
// overlap. Empty boxes count for nothing. O(n^2) at worst in the number of boxes, O(n log n) when
// they are sorted along dimension 0.
[[nodiscard]] Status TilesExactly(const Shape& shape, std::vector<Box> boxes);

// Values of TensorSpec::cut_dimension that are no dimension.
inline constexpr int kReplicated = -1;  // every rank holds all of it
inline constexpr int kFlat = -2;    // its elements in row-major order are cut evenly over the ranks
inline constexpr int kListed = -3;  // each rank says which boxes it has; no rule knows them

// A tensor of a job's state: what a layout is made of.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape shape;
  // The dimension along which it is cut evenly over the ranks, the first (extent mod world size)
  // ranks holding one more; or one of the values above.
  int cut_dimension = kReplicated;
  // What the elements are, when dtype cannot say it (packed 4-bit floats in kU8): kept, never used.
  std::string logical_dtype = {};
  // The name of the tensor that this is another name of (tied weights); empty for none. It has the
  // same type and shape, and no bytes of its own.
  std::string alias_of = {};
  [[nodiscard]] bool sharded() const { return cut_dimension != kReplicated; }
  friend auto operator<=>(const TensorSpec&, const TensorSpec&) = default;
};

// The range of `extent` that `part` of `parts` gets in an even cut: sizes differ by at most one,
// larger ones first. REQUIRES: 0 <= part < parts.
[[nodiscard]] Range EvenCut(std::int64_t extent, std::int64_t part, std::int64_t parts);
// The boxes that the elements [begin, end) of `shape` in row-major order are, in that order: at
// most 2 d - 1 for d dimensions, so that their rows one after the other are those very elements.
// REQUIRES: 0 <= begin <= end <= number of elements.
[[nodiscard]] std::vector<Box> FlatBoxes(const Shape& shape, std::int64_t begin, std::int64_t end);

// The box that rank `rank` of `world_size` holds of `tensor`; the whole for a replicated one.
// REQUIRES: not cut kFlat or kListed.
[[nodiscard]] Box BoxOf(const TensorSpec& tensor, std::int64_t rank, std::int64_t world_size);
// The same for every rule: one box, none or several; never an empty one. REQUIRES: not cut kListed.
[[nodiscard]] std::vector<Box> BoxesOf(const TensorSpec& tensor, std::int64_t rank,
                                       std::int64_t world_size);
// The boxes that the rank *stores* in a checkpoint: as BoxesOf, but a replicated tensor is cut
// along dimension 0 over the ranks, so that each byte is written once (a scalar goes to rank 0),
// and an alias is not stored. REQUIRES: not cut kListed.
[[nodiscard]] std::vector<Box> StoredBoxesOf(const TensorSpec& tensor, std::int64_t rank,
                                             std::int64_t world_size);

}  // namespace muster
