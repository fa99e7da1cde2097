#include "tests/tidy/source.h"

#include <algorithm>
#include <cctype>

namespace muster::tidy {
namespace {

bool IsIdentifier(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

void Blank(std::string* text, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < std::min(end, text->size()); ++i) {
    if ((*text)[i] != '\n') (*text)[i] = ' ';
  }
}

// One past the end of the literal that starts with the quote at `at`.
std::size_t EndOfLiteral(std::string_view text, std::size_t at) {
  const char quote = text[at];
  std::size_t i = at + 1;
  while (i < text.size() && text[i] != quote && text[i] != '\n') {
    i += text[i] == '\\' ? std::size_t{2} : std::size_t{1};
  }
  return i + 1;
}

// One past the end of the raw string whose quote is at `at`: R"delimiter( … )delimiter".
std::size_t EndOfRawString(std::string_view text, std::size_t at) {
  const std::size_t open = text.find('(', at);
  if (open == std::string_view::npos) return text.size();
  const std::string close = ")" + std::string(text.substr(at + 1, open - at - 1)) + "\"";
  const std::size_t end = text.find(close, open);
  return end == std::string_view::npos ? text.size() : end + close.size();
}

std::size_t FindOrEnd(std::string_view text, std::string_view what, std::size_t from) {
  return std::min(text.find(what, from), text.size());
}

// One past the end of whatever is no code at `i`; `i` itself when it is code.
std::size_t EndOfNonCode(std::string_view text, std::size_t i) {
  const char c = text[i];
  const char next = i + 1 < text.size() ? text[i + 1] : '\0';
  const char before = i > 0 ? text[i - 1] : '\n';
  if (c == '/' && next == '/') return FindOrEnd(text, "\n", i);
  if (c == '/' && next == '*') return FindOrEnd(text, "*/", i) + 2;
  if (c == '"') return before == 'R' ? EndOfRawString(text, i) : EndOfLiteral(text, i);
  // A quote behind a digit separates digits: 10'000.
  if (c == '\'' && !IsIdentifier(before)) return EndOfLiteral(text, i);
  return i;
}

void BlankDirectives(std::string* text) {
  bool continued = false;
  for (std::size_t begin = 0; begin < text->size();) {
    const std::size_t end = FindOrEnd(*text, "\n", begin);
    const std::size_t first = text->find_first_not_of(' ', begin);
    const bool directive = continued || (first < end && (*text)[first] == '#');
    continued = directive && end > begin && (*text)[end - 1] == '\\';
    if (directive) Blank(text, begin, end);
    begin = end + 1;
  }
}

std::string_view Trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \n\t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \n\t") - first + 1);
}

bool HasWord(std::string_view text, std::string_view word) { return !FindWord(text, word).empty(); }

enum class Opens { kScope, kFunction, kOther };

// What the brace behind `statement` opens, at namespace or class scope.
Opens Classify(std::string_view statement) {
  // clang-format puts no space before the brace of an initializer, and one before a body.
  if (statement.empty() || statement.back() != ' ') return Opens::kOther;
  const std::string_view head = Trim(statement);
  if (HasWord(head, "namespace") || head == "extern") return Opens::kScope;
  const std::size_t parenthesis = head.find('(');
  const std::size_t assignment = head.find(" = ");
  if (parenthesis != std::string_view::npos && parenthesis < assignment) return Opens::kFunction;
  for (const std::string_view word : {"class", "struct", "union", "enum"}) {
    if (assignment == std::string_view::npos && HasWord(head, word)) return Opens::kScope;
  }
  return Opens::kOther;
}

// One past the brace that closes the one at `open`.
std::size_t SkipBraces(std::string_view code, std::size_t open) {
  int depth = 0;
  for (std::size_t i = open; i < code.size(); ++i) {
    if (code[i] == '{') ++depth;
    if (code[i] == '}' && --depth == 0) return i + 1;
  }
  return code.size();
}

}  // namespace

std::string BlankNonCode(std::string_view text) {
  std::string code(text);
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t end = EndOfNonCode(text, i);
    if (end == i) {
      ++i;
      continue;
    }
    Blank(&code, i, end);
    i = end;
  }
  BlankDirectives(&code);
  return code;
}

std::vector<Include> IncludesOf(std::string_view text) {
  std::vector<Include> includes;
  int number = 0;
  for (const std::string_view line : SplitLines(text)) {
    ++number;
    constexpr std::string_view kDirective = "#include ";
    if (!line.starts_with(kDirective)) continue;
    const bool angled = line.substr(kDirective.size()).starts_with('<');
    const std::size_t begin = kDirective.size() + 1;
    const std::size_t end = line.find(angled ? '>' : '"', begin);
    if (end == std::string_view::npos) continue;
    includes.push_back(Include{std::string(line.substr(begin, end - begin)), angled, number});
  }
  return includes;
}

std::vector<Function> FunctionsOf(std::string_view code) {
  std::vector<Function> functions;
  std::size_t statement = 0;  // where the present statement of the enclosing scope begins
  for (std::size_t i = 0; i < code.size(); ++i) {
    if (code[i] == ';' || code[i] == '}') statement = i + 1;
    if (code[i] != '{') continue;
    const std::string_view head = code.substr(statement, i - statement);
    const Opens opens = Classify(head);
    if (opens == Opens::kScope) {
      statement = i + 1;
      continue;
    }
    const std::size_t end = SkipBraces(code, i);
    if (opens == Opens::kFunction) {
      const std::size_t first = code.find_first_not_of(" \n\t", statement);
      const std::string_view trimmed = Trim(head);
      functions.push_back(Function{std::string(trimmed.substr(0, trimmed.find('\n'))),
                                   LineAt(code, first), LineAt(code, end - 1)});
      statement = end;
    }
    i = end - 1;
  }
  return functions;
}

std::vector<std::size_t> FindWord(std::string_view text, std::string_view word) {
  std::vector<std::size_t> found;
  for (std::size_t at = text.find(word); at != std::string_view::npos;
       at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    const bool starts = at == 0 || !IsIdentifier(word.front()) || !IsIdentifier(text[at - 1]);
    const bool ends = end == text.size() || !IsIdentifier(word.back()) || !IsIdentifier(text[end]);
    if (starts && ends) found.push_back(at);
  }
  return found;
}

int LineAt(std::string_view text, std::size_t position) {
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(position, text.size()));
  return 1 + static_cast<int>(std::count(text.begin(), end, '\n'));
}

std::vector<std::string_view> SplitLines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = FindOrEnd(text, "\n", 0);
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

}  // namespace muster::tidy
