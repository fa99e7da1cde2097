// Virtual time: things happen in the order of their instants, and of their scheduling where these
// are equal. One thread, no clock.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "protocol/time.h"

namespace muster::sim {

class Events {
 public:
  [[nodiscard]] Instant now() const { return now_; }
  void At(Instant when, std::function<void()> what) {
    queue_.emplace(std::pair(when < now_ ? now_ : when, sequence_++), std::move(what));
  }
  void After(Duration delay, std::function<void()> what) { At(now_ + delay, std::move(what)); }
  [[nodiscard]] bool empty() const { return queue_.empty(); }
  [[nodiscard]] Instant next() const {
    return queue_.empty() ? Instant::Never() : queue_.begin()->first.first;
  }
  // Makes the next thing happen. REQUIRES: !empty()
  void Step() {
    auto node = queue_.extract(queue_.begin());
    now_ = node.key().first;
    node.mapped()();
  }

 private:
  Instant now_ = Instant::FromNanos(1'000'000'000'000);
  std::uint64_t sequence_ = 0;
  std::map<std::pair<Instant, std::uint64_t>, std::function<void()>> queue_;
};

}  // namespace muster::sim
