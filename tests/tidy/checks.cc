#include "tests/tidy/checks.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "tests/tidy/source.h"

namespace muster::tidy {
namespace {

bool IsCpp(const std::string& path) { return path.ends_with(".cc") || path.ends_with(".h"); }

// Code points, as clang-format counts them; the wide ones among them do not occur here.
int Columns(std::string_view line) {
  return static_cast<int>(std::count_if(line.begin(), line.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

void Append(Findings* all, Findings more) {
  all->insert(all->end(), std::make_move_iterator(more.begin()),
              std::make_move_iterator(more.end()));
}

std::string WithoutCMakeComments(std::string_view text) {
  std::string kept;
  for (const std::string_view line : SplitLines(text)) {
    kept.append(line.substr(0, line.find('#'))).push_back('\n');
  }
  return kept;
}

bool IsListedIn(std::string_view cmake, std::string_view relative) {
  for (const std::size_t at : FindWord(cmake, relative)) {
    const char before = at == 0 ? '\n' : cmake[at - 1];
    const std::size_t end = at + relative.size();
    const char after = end == cmake.size() ? '\n' : cmake[end];
    const bool starts = std::string_view(" \n\t(\"").find(before) != std::string_view::npos ||
                        (before == '/' && at > 1 && cmake[at - 2] == '}');
    if (starts && std::string_view(" \n\t)\"").find(after) != std::string_view::npos) return true;
  }
  return false;
}

// "form_failed" for "FormFailed".
std::string TagOf(std::string_view type) {
  std::string tag;
  for (const char c : type) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isupper(byte) != 0 && !tag.empty()) tag.push_back('_');
    tag.push_back(static_cast<char>(std::tolower(byte)));
  }
  return tag;
}

}  // namespace

std::string Finding::ToString() const {
  return path + (line > 0 ? ":" + std::to_string(line) : "") + ": " + message;
}

Findings CheckSizes(const std::string& path, std::string_view text) {
  Findings findings;
  const std::vector<std::string_view> lines = SplitLines(text);
  if (static_cast<int>(lines.size()) > kMaxFileLines) {
    findings.push_back(Finding{path, 0,
                               std::to_string(lines.size()) + " lines; split it, the limit is " +
                                   std::to_string(kMaxFileLines)});
  }
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (Columns(lines[i]) > kMaxColumns) {
      findings.push_back(Finding{path, static_cast<int>(i) + 1, "wider than 100 columns"});
    }
  }
  for (const Function& function : FunctionsOf(BlankNonCode(text))) {
    if (function.lines() <= kMaxFunctionLines) continue;
    findings.push_back(Finding{path, function.first_line,
                               "a function of " + std::to_string(function.lines()) +
                                   " lines; the limit is " + std::to_string(kMaxFunctionLines) +
                                   ": " + function.signature});
  }
  return findings;
}

Findings CheckLeftovers(const std::string& path, std::string_view text) {
  Findings findings;
  // Spelt in two halves, so that this file passes its own rule.
  for (const std::string_view word : {"TO"
                                      "DO",
                                      "FIX"
                                      "ME",
                                      "XX"
                                      "X"}) {
    for (const std::size_t at : FindWord(text, word)) {
      findings.push_back(Finding{path, LineAt(text, at), std::string(word) + " left behind"});
    }
  }
  return findings;
}

Findings CheckSleeps(const std::string& path, std::string_view text) {
  Findings findings;
  if (!path.starts_with("tests/") && !path.starts_with("chaos/")) return findings;
  const std::string code = BlankNonCode(text);
  for (const std::string_view word :
       {"sleep_for", "sleep_until", "usleep(", "nanosleep(", "clock_nanosleep(", "sleep("}) {
    for (const std::size_t at : FindWord(code, word)) {
      findings.push_back(
          Finding{path, LineAt(code, at), std::string(word) + ": wait for an event instead"});
    }
  }
  return findings;
}

Findings CheckPragmaOnce(const std::string& path, std::string_view text) {
  if (!path.ends_with(".h")) return {};
  for (const std::string_view line : SplitLines(text)) {
    if (line == "#pragma once") return {};
  }
  return {Finding{path, 0, "a header without #pragma once"}};
}

Findings CheckListed(const Tree& tree) {
  Findings findings;
  for (const auto& [path, text] : tree) {
    if (!path.ends_with(".cc")) continue;
    bool listed = false;
    for (std::size_t slash = path.rfind('/'); slash != std::string::npos && !listed;
         slash = slash == 0 ? std::string::npos : path.rfind('/', slash - 1)) {
      const auto cmake = tree.find(path.substr(0, slash + 1) + "CMakeLists.txt");
      listed = cmake != tree.end() && IsListedIn(WithoutCMakeComments(cmake->second),
                                                 std::string_view(path).substr(slash + 1));
    }
    if (!listed) findings.push_back(Finding{path, 0, "no CMakeLists.txt builds it"});
  }
  return findings;
}

Findings CheckTopLevel(const Tree& tree) {
  constexpr std::array kFolders = {"protocol", "coordinator", "worker", "checkpoint",
                                   "chaos",    "tests",       ".ci"};
  Findings findings;
  for (const auto& [path, text] : tree) {
    const std::size_t slash = path.find('/');
    if (slash == std::string::npos) continue;
    const std::string_view folder = std::string_view(path).substr(0, slash);
    if (std::find(kFolders.begin(), kFolders.end(), folder) == kFolders.end()) {
      findings.push_back(Finding{path, 0, "lies in a top-level folder that the design lacks"});
    }
  }
  return findings;
}

Findings CheckMessageTable(const Tree& tree) {
  const auto messages = tree.find("protocol/messages.h");
  const auto readme = tree.find("protocol/README.md");
  if (messages == tree.end()) return {};
  if (readme == tree.end()) return {Finding{"protocol/README.md", 0, "is missing"}};
  constexpr std::string_view kVariant = "std::variant<";
  const std::string code = BlankNonCode(messages->second);
  const std::size_t begin = code.find(kVariant, code.find("using Message ="));
  if (begin == std::string::npos) {
    return {Finding{messages->first, 0, "no `using Message = std::variant<`"}};
  }
  const std::size_t first = begin + kVariant.size();
  std::string names = code.substr(first, code.find('>', first) - first);
  std::replace(names.begin(), names.end(), ',', '\n');
  Findings findings;
  for (std::string_view name : SplitLines(names)) {
    name.remove_prefix(std::min(name.find_first_not_of(' '), name.size()));
    if (name.empty()) continue;
    if (readme->second.find("`" + TagOf(name) + "`") == std::string::npos) {
      findings.push_back(Finding{readme->first, 0, "does not name `" + TagOf(name) + "`"});
    }
  }
  return findings;
}

Findings CheckTree(const Tree& tree) {
  Findings findings;
  for (const auto& [path, text] : tree) {
    Append(&findings, CheckLeftovers(path, text));
    if (!IsCpp(path)) continue;
    Append(&findings, CheckLayering(path, text));
    Append(&findings, CheckSizes(path, text));
    Append(&findings, CheckSleeps(path, text));
    Append(&findings, CheckPragmaOnce(path, text));
    Append(&findings, CheckVisitState(path, text));
  }
  Append(&findings, CheckListed(tree));
  Append(&findings, CheckTopLevel(tree));
  Append(&findings, CheckPublicHeaders(tree));
  Append(&findings, CheckMessageTable(tree));
  return findings;
}

}  // namespace muster::tidy
