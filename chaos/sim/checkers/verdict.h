// The first promise that a simulated run broke.
#pragma once

#include <string>
#include <utility>

namespace muster::sim {

class Verdict {
 public:
  // `promise`: "S1", "S2" …
  void Violate(const char* promise, const std::string& what) {
    if (violation_.empty()) violation_ = std::string(promise) + ": " + what;
  }
  // Empty while all promises held.
  [[nodiscard]] const std::string& violation() const { return violation_; }
  [[nodiscard]] bool ok() const { return violation_.empty(); }

 private:
  std::string violation_;
};

}  // namespace muster::sim
