#include "worker/cli/output_queue.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace muster::cli {

void OutputQueue::WriteSome() {
  if (broken_) begin_ = bytes_.size();
  if (!empty()) {
    // A pipe that polls writable takes PIPE_BUF bytes without blocking.
    const std::size_t size = std::min<std::size_t>(bytes_.size() - begin_, PIPE_BUF);
    const ssize_t written = write(fd_, bytes_.data() + begin_, size);
    if (written >= 0) {
      begin_ += static_cast<std::size_t>(written);
    } else if (errno != EINTR && errno != EAGAIN) {
      broken_ = true;
      begin_ = bytes_.size();
    }
  }
  if (empty()) {
    bytes_.clear();
    begin_ = 0;
  } else if (begin_ >= kFullBytes) {
    bytes_.erase(0, begin_);
    begin_ = 0;
  }
}

void OutputQueue::Flush(int limit_ms) {
  while (!empty()) {
    pollfd entry{.fd = fd_, .events = POLLOUT, .revents = 0};
    const int ready = poll(&entry, 1, limit_ms);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return;
    WriteSome();
  }
}

}  // namespace muster::cli
