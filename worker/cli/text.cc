#include "worker/cli/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace muster::cli {

void Table::AppendTo(std::string* out) const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += fmt::format("{:<{}}  ", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    *out += line + "\n";
  }
}

std::string Plural(double count, const char* one) {
  return fmt::format("{:.0f} {}{}", count, one, count == 1 ? "" : "s");
}

std::string Printable(std::string text) {
  std::erase_if(text, [](char c) { return (c >= 0 && c < ' ') || c == '\x7f'; });
  return text;
}

std::string AgeText(double milliseconds) {
  if (!std::isfinite(milliseconds) || milliseconds < 0) return "?";
  if (milliseconds < 1000) return fmt::format("{:.0f} ms", milliseconds);
  if (milliseconds < 120e3) return fmt::format("{:.1f} s", milliseconds / 1e3);
  if (milliseconds < 7200e3) return fmt::format("{:.0f} min", milliseconds / 60e3);
  return fmt::format("{:.1f} h", milliseconds / 3600e3);
}

std::string TimeText(double unix_milliseconds) {
  if (!std::isfinite(unix_milliseconds) || unix_milliseconds < 0) return "?";
  const double of_day = std::fmod(std::floor(unix_milliseconds), 86'400e3);
  const auto ms = static_cast<std::int64_t>(of_day);
  return fmt::format("{:02}:{:02}:{:02}.{:03}", ms / 3'600'000, ms / 60'000 % 60, ms / 1000 % 60,
                     ms % 1000);
}

std::string BytesText(double bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

}  // namespace muster::cli
