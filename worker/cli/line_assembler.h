// Marks each line of a worker's output with its name, so that the lines of many workers can share
// one stream and none is torn.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace muster::cli {

// Longer lines are passed on in pieces of this size, each marked and on a line of its own.
inline constexpr std::size_t kMaxLineBytes = std::size_t{64} << 10U;

// One per stream. Holds at most one unfinished line.
class LineAssembler {
 public:
  // `prefix` goes before each line as it is: "[n1-0] ".
  explicit LineAssembler(std::string prefix, std::size_t max_line_bytes = kMaxLineBytes);

  // Takes the next bytes of the stream; appends the lines that they complete to `out`.
  void Feed(std::string_view bytes, std::string* out);
  // The stream has ended: an unfinished line is given its end and appended to `out`.
  void Finish(std::string* out);

 private:
  void Emit(std::string_view line, std::string* out);

  std::string prefix_;
  std::size_t max_line_bytes_;
  std::string partial_;
};

}  // namespace muster::cli
