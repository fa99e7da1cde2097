#include "protocol/duration_text.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace muster {
namespace {

// Longest first, so that a duration is written with the greatest unit that divides it.
constexpr std::array<std::pair<std::string_view, std::int64_t>, 6> kUnits = {{
    {"h", 3'600'000'000'000},
    {"m", 60'000'000'000},
    {"s", 1'000'000'000},
    {"ms", 1'000'000},
    {"us", 1'000},
    {"ns", 1},
}};

constexpr double kMaxNanos = 1e4 * 3.6e12;

}  // namespace

Result<Duration> ParseDuration(std::string_view text) {
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  if (error == std::errc() && std::isfinite(number) && number >= 0) {
    if (unit.empty() && number == 0) return Duration();
    for (const auto& [name, nanos] : kUnits) {
      if (unit != name) continue;
      const double value = number * static_cast<double>(nanos);
      if (value > kMaxNanos) break;
      return Duration::Nanos(std::llround(value));
    }
  }
  return InvalidArgument(
      fmt::format("'{}' is no duration: write a number with a unit, as in 500ms, 2s or 10m", text));
}

std::string DurationText(Duration duration) {
  if (duration == Duration()) return "0s";
  for (const auto& [name, nanos] : kUnits) {
    if (duration.nanos() % nanos == 0) return fmt::format("{}{}", duration.nanos() / nanos, name);
  }
  return fmt::format("{}ns", duration.nanos());
}

}  // namespace muster
