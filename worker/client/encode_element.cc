// The value of a Fill as the bytes of any dtype.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "worker/client/state_table.h"

namespace muster::worker {

namespace {

template <class T>
std::vector<std::byte> BytesOf(T value) {
  std::vector<std::byte> bytes(sizeof(T));
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

Status DoesNotFit(DType dtype, double value) {
  return InvalidArgument(
      fmt::format("the fill value {} is not a value of dtype {}", value, DTypeName(dtype)));
}

template <class T>
Result<std::vector<std::byte>> Whole(DType dtype, double value) {
  // The upper limit of a 64-bit type rounds up to a double that does not fit any more.
  const bool fits = std::trunc(value) == value &&
                    value >= static_cast<double>(std::numeric_limits<T>::min()) &&
                    value < std::ldexp(1.0, std::numeric_limits<T>::digits);
  if (!fits) return DoesNotFit(dtype, value);
  return BytesOf(static_cast<T>(value));
}

// A binary floating-point format smaller than float.
struct SmallFloat {
  int exponent_bits;
  int mantissa_bits;
  std::uint32_t greatest;  // the code of the greatest finite value
  std::uint32_t infinity;  // the code of infinity; of NaN where there is none
  std::uint32_t nan;
};

// The nearest code, ties to even. Exact in double: both formats are subsets of it.
std::uint32_t CodeOf(const SmallFloat& format, double value) {
  const std::uint32_t sign = std::signbit(value) ? 1U : 0U;
  const int shift = format.exponent_bits + format.mantissa_bits;
  if (std::isnan(value)) return (sign << shift) | format.nan;
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return sign << shift;
  int exponent = 0;
  (void)std::frexp(magnitude, &exponent);
  // The exponent of the unit in the last place: that of the value, or of subnormals.
  const int unit = std::max(exponent - 1, 1 - bias) - format.mantissa_bits;
  const double scaled = std::nearbyint(std::ldexp(magnitude, -unit));
  if (std::isinf(magnitude) || scaled > 4.0 * (1 << format.mantissa_bits)) {
    return (sign << shift) | format.infinity;
  }
  const auto units = static_cast<std::uint32_t>(scaled);
  const auto biased = static_cast<std::uint32_t>(unit + format.mantissa_bits + bias - 1);
  // A carry out of the mantissa runs into the exponent, which is just what it means; a subnormal
  // has no leading one to run over.
  const std::uint32_t code = (biased << format.mantissa_bits) + units;
  return (sign << shift) | (code > format.greatest ? format.infinity : code);
}

template <class T>
Result<std::vector<std::byte>> Small(DType dtype, const SmallFloat& format, double value) {
  const std::uint32_t code = CodeOf(format, value);
  const std::uint32_t magnitude = code & ~(1U << (format.exponent_bits + format.mantissa_bits));
  if (!std::isnan(value) && magnitude > format.greatest &&
      (std::isfinite(value) || format.infinity == format.nan)) {
    return DoesNotFit(dtype, value);
  }
  return BytesOf(static_cast<T>(code));
}

}  // namespace

Result<std::vector<std::byte>> EncodeElement(DType dtype, double value) {
  switch (dtype) {
    case DType::kBool:
      if (value != 0 && value != 1) return DoesNotFit(dtype, value);
      return BytesOf(static_cast<std::uint8_t>(value));
    case DType::kU8: return Whole<std::uint8_t>(dtype, value);
    case DType::kI8: return Whole<std::int8_t>(dtype, value);
    case DType::kI16: return Whole<std::int16_t>(dtype, value);
    case DType::kU16: return Whole<std::uint16_t>(dtype, value);
    case DType::kI32: return Whole<std::int32_t>(dtype, value);
    case DType::kU32: return Whole<std::uint32_t>(dtype, value);
    case DType::kI64: return Whole<std::int64_t>(dtype, value);
    case DType::kU64: return Whole<std::uint64_t>(dtype, value);
    case DType::kFloat8E4M3: return Small<std::uint8_t>(dtype, {4, 3, 0x7e, 0x7f, 0x7f}, value);
    case DType::kFloat8E5M2: return Small<std::uint8_t>(dtype, {5, 2, 0x7b, 0x7c, 0x7e}, value);
    case DType::kFloat16:
      return Small<std::uint16_t>(dtype, {5, 10, 0x7bff, 0x7c00, 0x7e00}, value);
    case DType::kBFloat16:
      return Small<std::uint16_t>(dtype, {8, 7, 0x7f7f, 0x7f80, 0x7fc0}, value);
    case DType::kFloat32: return BytesOf(static_cast<float>(value));
    case DType::kFloat64: return BytesOf(value);
    case DType::kFloat8E8M0:
    case DType::kFloat8E4M3Fnuz:
    case DType::kFloat8E5M2Fnuz:
    case DType::kComplex64:
      return Unimplemented(
          fmt::format("a tensor of dtype {} cannot be filled with a value: give "
                      "initial bytes",
                      DTypeName(dtype)));
  }
  return InvalidArgument("an unknown dtype");
}

}  // namespace muster::worker
