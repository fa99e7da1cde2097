// Communicators between threads of one process, for tests and single-machine tools: the same code
// as over TCP, over socket pairs, so everything communicator.h says holds, Abort included.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "protocol/status.h"
#include "protocol/time.h"
#include "worker/collective/communicator.h"

namespace muster {

// A connected group, by rank; each is for one thread. Takes world_size * (world_size - 1)
// descriptors. kResourceExhausted when there are too few. REQUIRES: world_size >= 1.
[[nodiscard]] Result<std::vector<std::unique_ptr<Communicator>>> MakeLocalGroup(
    std::int32_t world_size, Duration progress_deadline);

}  // namespace muster
