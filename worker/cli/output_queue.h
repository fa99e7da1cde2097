// The launcher's own stdout or stderr, written only when it takes bytes, so that a reader who stops
// reading never keeps the launcher from seeing a death.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace muster::cli {

class OutputQueue {
 public:
  // Past this the launcher stops reading what its workers print, and they wait in their writes.
  static constexpr std::size_t kFullBytes = std::size_t{1} << 20U;

  // Does not own `fd`.
  explicit OutputQueue(int fd) : fd_(fd) {}

  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] bool empty() const { return begin_ == bytes_.size(); }
  [[nodiscard]] bool full() const { return bytes_.size() - begin_ >= kFullBytes; }
  // Where complete lines are appended.
  [[nodiscard]] std::string* tail() { return &bytes_; }

  // Writes a piece; call it when poll() says POLLOUT. A stream that fails (its reader is gone, the
  // disk is full) swallows everything from then on: the workers go on.
  void WriteSome();
  // Writes all, waiting for the reader for at most `limit_ms` between two pieces.
  void Flush(int limit_ms);

 private:
  int fd_;
  std::string bytes_;
  std::size_t begin_ = 0;  // before it: written
  bool broken_ = false;
};

}  // namespace muster::cli
