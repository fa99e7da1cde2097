#include "protocol/transport/steady_clock.h"

#include <time.h>

#include "protocol/check.h"

namespace muster {

Instant MonotonicNow() {
  timespec now{};
  MUSTER_CHECK(::clock_gettime(CLOCK_BOOTTIME, &now) == 0, "no CLOCK_BOOTTIME");
  return Instant::FromNanos(std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec);
}

double UnixMillisNow() {
  timespec now{};
  MUSTER_CHECK(::clock_gettime(CLOCK_REALTIME, &now) == 0, "no CLOCK_REALTIME");
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

}  // namespace muster
