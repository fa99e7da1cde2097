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
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
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

// A tensor of a job's state: what a layout is made of.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape shape;
  // -1: every rank holds all of it. Otherwise it is cut evenly along this dimension over the
  // ranks, the first (extent mod world size) ranks holding one more.
  int cut_dimension = -1;
  [[nodiscard]] bool sharded() const { return cut_dimension >= 0; }
  friend auto operator<=>(const TensorSpec&, const TensorSpec&) = default;
};

// The range of `extent` that `part` of `parts` gets in an even cut: sizes differ by at most one,
// larger ones first. REQUIRES: 0 <= part < parts.
[[nodiscard]] Range EvenCut(std::int64_t extent, std::int64_t part, std::int64_t parts);
// The box that rank `rank` of `world_size` holds of `tensor`; the whole for a replicated one.
[[nodiscard]] Box BoxOf(const TensorSpec& tensor, std::int64_t rank, std::int64_t world_size);
// The box that the rank *stores* in a checkpoint: like BoxOf, but a replicated tensor is cut along
// dimension 0 over the ranks, so that each byte is written once (a scalar goes to rank 0).
[[nodiscard]] Box StoredBoxOf(const TensorSpec& tensor, std::int64_t rank, std::int64_t world_size);

}  // namespace muster
