// Reading C++ as text, just well enough for the tidy test: source that clang-format has laid out.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace muster::tidy {

// The same text with comments, string and character literals and preprocessor directives blanked;
// every byte keeps its place, so positions and line numbers stay true.
[[nodiscard]] std::string BlankNonCode(std::string_view text);

struct Include {
  std::string target;  // "protocol/box.h" or "boost/asio.hpp"
  bool angled = false;
  int line = 0;
};
[[nodiscard]] std::vector<Include> IncludesOf(std::string_view text);

// A function body at namespace or class scope, with its signature.
struct Function {
  std::string signature;  // the last line of it that has a parenthesis, for the message
  int first_line = 0;
  int last_line = 0;
  [[nodiscard]] int lines() const { return last_line - first_line + 1; }
};
// `code` is the result of BlankNonCode.
[[nodiscard]] std::vector<Function> FunctionsOf(std::string_view code);

// Positions where `word` stands with no identifier character on either side of it.
[[nodiscard]] std::vector<std::size_t> FindWord(std::string_view text, std::string_view word);
// 1 for the first line.
[[nodiscard]] int LineAt(std::string_view text, std::size_t position);
[[nodiscard]] std::vector<std::string_view> SplitLines(std::string_view text);

}  // namespace muster::tidy
