#include "worker/cli/line_assembler.h"

#include <algorithm>
#include <utility>

#include "protocol/check.h"

namespace muster::cli {

LineAssembler::LineAssembler(std::string prefix, std::size_t max_line_bytes)
    : prefix_(std::move(prefix)), max_line_bytes_(max_line_bytes) {
  MUSTER_CHECK(max_line_bytes > 0, "a line has room for a byte");
}

void LineAssembler::Feed(std::string_view bytes, std::string* out) {
  while (!bytes.empty()) {
    const std::size_t room = max_line_bytes_ - partial_.size();
    const std::size_t end = bytes.substr(0, room + 1).find('\n');
    if (end != std::string_view::npos) {
      partial_.append(bytes.substr(0, end));
      bytes.remove_prefix(end + 1);
    } else if (bytes.size() <= room) {
      partial_.append(bytes);
      return;
    } else {
      partial_.append(bytes.substr(0, room));
      bytes.remove_prefix(room);
    }
    Emit(partial_, out);
    partial_.clear();
  }
}

void LineAssembler::Finish(std::string* out) {
  if (!partial_.empty()) Emit(partial_, out);
  partial_.clear();
}

void LineAssembler::Emit(std::string_view line, std::string* out) {
  out->append(prefix_).append(line).push_back('\n');
}

}  // namespace muster::cli
