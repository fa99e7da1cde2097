#pragma once

#include <cstdint>

namespace muster::sim {

// Prints what a job of this many workers costs, and a last line of JSON. The exit code.
int RunScale(std::int32_t workers);

}  // namespace muster::sim
