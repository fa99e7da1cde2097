// Lines of a trace, made only when somebody wants to read them. For the sources of World alone.
#pragma once

#include <fmt/format.h>

#include "chaos/sim/world.h"

namespace muster::sim {

template <class... Args>
void World::Trace(const char* format, const Args&... args) {
  if (!options_.trace) return;
  const double ms = (now_ - Instant::FromNanos(1'000'000'000'000)).ToMillis();
  result_.trace.push_back(
      fmt::format("{:10.3f} {}", ms, fmt::vformat(format, fmt::make_format_args(args...))));
}

}  // namespace muster::sim
