// How long to wait before the next attempt: doubling from `first` to `most`, each time a random
// part between a half and the whole, so that a thousand workers that lost the same coordinator do
// not come back in step.
#pragma once

#include "protocol/prng.h"
#include "protocol/time.h"

namespace muster::worker {

class Backoff {
 public:
  // REQUIRES: 0 < first <= most
  Backoff(Duration first, Duration most);
  // The wait before the next attempt.
  [[nodiscard]] Duration Next(Prng& prng);
  // After a success: the next wait is short again.
  void Reset() { current_ = first_; }
  // All of its state, for those who compare states.
  template <class Visit>
  void VisitState(Visit&& visit) const {
    visit(first_, most_, current_);
  }

 private:
  Duration first_;
  Duration most_;
  Duration current_;
};

}  // namespace muster::worker
