#include "worker/collective/reduce.h"

#include <cstring>
#include <string>

#include "protocol/check.h"

namespace muster {
namespace {

// memcpy is how an element of a byte buffer is read without promises about alignment; compilers
// turn the loop into vector loads.
template <class T, class Function>
void ForEach(std::span<std::byte> into, std::span<const std::byte> from, Function function) {
  std::byte* const a = into.data();
  const std::byte* const b = from.data();
  const std::size_t count = into.size() / sizeof(T);
  for (std::size_t i = 0; i < count; ++i) {
    T x;
    T y;
    std::memcpy(&x, a + i * sizeof(T), sizeof(T));
    std::memcpy(&y, b + i * sizeof(T), sizeof(T));
    x = static_cast<T>(function(x, y));
    std::memcpy(a + i * sizeof(T), &x, sizeof(T));
  }
}

// A NaN is unequal to itself; the first operand's stays, the second's loses no comparison.
template <class T>
T Greater(T a, T b) {
  return a >= b || a != a ? a : b;
}
template <class T>
T Lesser(T a, T b) {
  return a <= b || a != a ? a : b;
}

template <class T>
void CombineAs(std::span<std::byte> into, std::span<const std::byte> from, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return ForEach<T>(into, from, [](T a, T b) { return a + b; });
    case ReduceOp::kMax: return ForEach<T>(into, from, Greater<T>);
    case ReduceOp::kMin: return ForEach<T>(into, from, Lesser<T>);
    case ReduceOp::kBitOr: MUSTER_CHECK(false, "floating-point numbers have no bit_or");
  }
}

template <class T>
void CombineIntegers(std::span<std::byte> into, std::span<const std::byte> from, ReduceOp op) {
  // Unsigned, where wrapping around is defined; the bits of the sum are the same.
  if (op == ReduceOp::kSum) {
    return ForEach<std::uint64_t>(into, from, [](auto a, auto b) { return a + b; });
  }
  if (op == ReduceOp::kBitOr) {
    return ForEach<std::uint64_t>(into, from, [](auto a, auto b) { return a | b; });
  }
  CombineAs<T>(into, from, op);
}

}  // namespace

std::size_t SizeOfElement(ElementType type) {
  switch (type) {
    case ElementType::kFloat32: return 4;
    case ElementType::kFloat64:
    case ElementType::kInt64:
    case ElementType::kUInt64: return 8;
    case ElementType::kBytes: return 1;
  }
  return 1;
}

Status CheckReduction(std::size_t bytes, ElementType type, ReduceOp op) {
  if (bytes % SizeOfElement(type) != 0) {
    return InvalidArgument("a buffer of " + std::to_string(bytes) +
                           " bytes is not a whole number of elements of " +
                           std::to_string(SizeOfElement(type)) + " bytes");
  }
  const bool floating = type == ElementType::kFloat32 || type == ElementType::kFloat64;
  if (floating && op == ReduceOp::kBitOr) {
    return InvalidArgument("bit_or is not defined for floating-point numbers");
  }
  if (type == ElementType::kBytes && op != ReduceOp::kBitOr) {
    return InvalidArgument("bytes can only be combined by bit_or");
  }
  return {};
}

void Combine(std::span<std::byte> into, std::span<const std::byte> from, ElementType type,
             ReduceOp op) {
  MUSTER_CHECK(into.size() == from.size(), "buffers of different sizes are combined");
  switch (type) {
    case ElementType::kFloat32: return CombineAs<float>(into, from, op);
    case ElementType::kFloat64: return CombineAs<double>(into, from, op);
    case ElementType::kInt64: return CombineIntegers<std::int64_t>(into, from, op);
    case ElementType::kUInt64: return CombineIntegers<std::uint64_t>(into, from, op);
    case ElementType::kBytes:
      return ForEach<std::uint8_t>(into, from, [](auto a, auto b) { return a | b; });
  }
}

void AddInto(std::span<float> into, std::span<const float> from) {
  Combine(std::as_writable_bytes(into), std::as_bytes(from), ElementType::kFloat32, ReduceOp::kSum);
}

void AddInto(std::span<double> into, std::span<const double> from) {
  Combine(std::as_writable_bytes(into), std::as_bytes(from), ElementType::kFloat64, ReduceOp::kSum);
}

}  // namespace muster
