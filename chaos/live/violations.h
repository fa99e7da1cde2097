// What speaks against a finding, collected; its evidence shows the first few.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <utility>
#include <vector>

#include "chaos/live/checks.h"

namespace muster::chaos {

class Violations {
 public:
  template <class... Args>
  void Add(fmt::format_string<Args...> format, Args&&... args) {
    ++count_;
    constexpr std::size_t kShown = 3;
    if (shown_.size() < kShown) {
      shown_.push_back(fmt::format(format, std::forward<Args>(args)...));
    }
  }
  [[nodiscard]] Finding Close(std::string name, std::string evidence_when_ok) const {
    if (count_ == 0) return {std::move(name), true, std::move(evidence_when_ok)};
    std::string text = fmt::format("{}", fmt::join(shown_, "; "));
    if (count_ > shown_.size()) text += fmt::format("; and {} more", count_ - shown_.size());
    return {std::move(name), false, std::move(text)};
  }

 private:
  std::vector<std::string> shown_;
  std::size_t count_ = 0;
};

}  // namespace muster::chaos
