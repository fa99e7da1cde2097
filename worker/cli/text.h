// How things are written for people. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace muster::cli {

// Rows of cells with the columns lined up.
class Table {
 public:
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  void AppendTo(std::string* out) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// "1 file", "2 files"
[[nodiscard]] std::string Plural(double count, const char* one);
// Without control characters: names come from other machines, and go to a terminal.
[[nodiscard]] std::string Printable(std::string text);
// "12.5 s", "850 ms": for ages and phases.
[[nodiscard]] std::string AgeText(double milliseconds);
// "14:03:07.250" in UTC.
[[nodiscard]] std::string TimeText(double unix_milliseconds);
// "1.5 MiB"
[[nodiscard]] std::string BytesText(double bytes);

}  // namespace muster::cli
