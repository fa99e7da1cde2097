// Durations as people write them on a command line.
#pragma once

#include <string>
#include <string_view>

#include "protocol/status.h"
#include "protocol/time.h"

namespace muster {

// "500ms", "2s", "1.5s", "10m", "1h", "0". Refused with a reason: no unit, a negative number, more
// than 10,000 hours.
[[nodiscard]] Result<Duration> ParseDuration(std::string_view text);

// The shortest way to write it that ParseDuration reads back: "2s", "1500ms", "10m".
[[nodiscard]] std::string DurationText(Duration duration);

}  // namespace muster
