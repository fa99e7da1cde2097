// Combining two buffers element by element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "protocol/status.h"
#include "worker/collective/communicator.h"

namespace muster {

// Bytes of one element.
[[nodiscard]] std::size_t SizeOfElement(ElementType type);

// Ok when `bytes` is whole elements of `type` and `op` is defined for it: kBitOr needs integers or
// bytes, and kBytes admits nothing else.
[[nodiscard]] Status CheckReduction(std::size_t bytes, ElementType type, ReduceOp op);

// into[i] = into[i] op from[i]. Integer sums wrap around. kMax and kMin of a NaN and anything are
// NaN, so that one rank's NaN is seen by all. Needs no alignment.
// REQUIRES: equal sizes, no overlap, CheckReduction is ok.
void Combine(std::span<std::byte> into, std::span<const std::byte> from, ElementType type,
             ReduceOp op);

// into[i] += from[i]. REQUIRES: equal sizes, no overlap.
void AddInto(std::span<float> into, std::span<const float> from);
void AddInto(std::span<double> into, std::span<const double> from);

}  // namespace muster
