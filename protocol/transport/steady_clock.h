// The only place that reads a clock.
#pragma once

#include "protocol/time.h"

namespace muster {

// The time since the machine started, time asleep included: a lease runs out while its holder's
// machine sleeps. Never goes back. Thread-safe.
[[nodiscard]] Instant MonotonicNow();

// Milliseconds since 1970 by the wall clock, for people and for comparing logs of several machines.
// It may jump; nothing is decided by it. Thread-safe.
[[nodiscard]] double UnixMillisNow();

}  // namespace muster
