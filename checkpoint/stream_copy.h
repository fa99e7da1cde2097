// memcpy for large copies whose target is not read soon.
#pragma once

#include <cstddef>

namespace muster::checkpoint {

// Copies `count` bytes that do not overlap. Large copies go around the processor's caches, where it
// can do that: storing then does not read the old content of the target first, which makes up to
// twice the speed, and the caches keep what they hold. memcpy does the same, but only for single
// copies larger than most tensors.
void StreamCopy(std::byte* to, const std::byte* from, std::size_t count);

}  // namespace muster::checkpoint
