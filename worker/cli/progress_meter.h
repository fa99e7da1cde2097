// One line on stderr for work that takes long.
#pragma once

#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>

#include "protocol/time.h"

namespace muster::cli {

// "verifying s…: 1.2 GiB of 4.0 GiB (30 %), 850.0 MiB/s, 3.3 s left"
[[nodiscard]] std::string ProgressText(const std::string& what, std::int64_t done,
                                       std::int64_t total, Duration elapsed);

// On a terminal the line is written over again and again, and removed in the end; elsewhere there
// is a new one every few seconds. Work that is done soon shows none. Thread-safe.
class ProgressMeter {
 public:
  // `total` bytes are to be done. `out` must outlive this.
  ProgressMeter(std::string what, std::int64_t total, std::FILE* out = stderr);
  ProgressMeter(const ProgressMeter&) = delete;
  ProgressMeter& operator=(const ProgressMeter&) = delete;
  ~ProgressMeter();

  // So many more bytes are done.
  void Add(std::int64_t bytes);
  // Takes the line away; it comes back with the next Add.
  void Remove();
  [[nodiscard]] Duration elapsed() const;

 private:
  const std::string what_;
  const std::int64_t total_;
  std::FILE* const out_;
  const bool terminal_;
  const Instant started_;
  std::mutex mutex_;
  std::int64_t done_ = 0;  // guarded by mutex_, as are the next two
  Instant shown_;
  bool visible_ = false;  // a line has to be removed
};

}  // namespace muster::cli
