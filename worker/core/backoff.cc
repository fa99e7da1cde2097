#include "worker/core/backoff.h"

#include <algorithm>

#include "protocol/check.h"

namespace muster::worker {

Backoff::Backoff(Duration first, Duration most) : first_(first), most_(most), current_(first) {
  MUSTER_CHECK(first > Duration() && first <= most, "a backoff needs 0 < first <= most");
}

Duration Backoff::Next(Prng& prng) {
  const Duration half = current_ / 2;
  const auto spread = static_cast<std::uint64_t>((current_ - half).nanos()) + 1;
  const Duration wait = half + Duration::Nanos(static_cast<std::int64_t>(prng.Below(spread)));
  current_ = std::min(current_ * 2, most_);
  return wait;
}

}  // namespace muster::worker
