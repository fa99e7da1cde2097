// The rules of the tree, as functions from a file's path and text to findings. A path is relative
// to the root of the repository, with forward slashes.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace muster::tidy {

struct Finding {
  std::string path;
  int line = 0;  // 0: the file as a whole
  std::string message;
  // "protocol/box.cc:12: …"
  [[nodiscard]] std::string ToString() const;
  friend bool operator==(const Finding&, const Finding&) = default;
};
using Findings = std::vector<Finding>;

// Text of every file by path.
using Tree = std::map<std::string, std::string>;

inline constexpr int kMaxFileLines = 500;
inline constexpr int kMaxFunctionLines = 70;
inline constexpr int kMaxColumns = 100;

// What each folder may include (DESIGN's table of layers), and what a pure one may name.
[[nodiscard]] Findings CheckLayering(const std::string& path, std::string_view text);
// Lines in the file, columns in a line, lines in a function.
[[nodiscard]] Findings CheckSizes(const std::string& path, std::string_view text);
// Words that mark unfinished work; for every text file.
[[nodiscard]] Findings CheckLeftovers(const std::string& path, std::string_view text);
// No sleeping in tests and in the chaos lab: they wait for events.
[[nodiscard]] Findings CheckSleeps(const std::string& path, std::string_view text);
[[nodiscard]] Findings CheckPragmaOnce(const std::string& path, std::string_view text);
// A class with VisitState lists every member there that is not left out for a stated reason.
[[nodiscard]] Findings CheckVisitState(const std::string& path, std::string_view text);

// Every .cc is named in the CMakeLists.txt of its folder or of one above.
[[nodiscard]] Findings CheckListed(const Tree& tree);
// No top-level folder beyond the ones that the design names.
[[nodiscard]] Findings CheckTopLevel(const Tree& tree);
// Headers that users include reach no Asio and no JSON, not even through others.
[[nodiscard]] Findings CheckPublicHeaders(const Tree& tree);
// Every alternative of Message in protocol/messages.h is named in protocol/README.md.
[[nodiscard]] Findings CheckMessageTable(const Tree& tree);

// All of the above over a whole tree.
[[nodiscard]] Findings CheckTree(const Tree& tree);

}  // namespace muster::tidy
