// What a worker knows of its own lease, and of whether the coordinator can be reached.
//
// The lease counts from when the last acknowledged heartbeat was *sent*: the coordinator heard it
// later, so its own count ends later. Once the lease has run out, the worker asks before it does
// anything that counts (one round trip), and goes on without an answer only when the coordinator
// cannot be reached. Out of touch for `autonomy`, it does not go on at all: the coordinator may
// then start a generation without it.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "protocol/prng.h"
#include "protocol/time.h"

namespace muster::worker {

class LeaseWatch {
 public:
  LeaseWatch(Duration lease, Duration autonomy) : lease_(lease), autonomy_(autonomy) {}

  // The hello that was sent at `greeted` got its welcome.
  void OnWelcome(Duration lease, Duration autonomy, Duration interval, Instant greeted, Instant now,
                 Prng& prng);
  // A heartbeat leaves now: its number.
  [[nodiscard]] std::int64_t OnHeartbeat(Instant now, Prng& prng);
  void OnAck(std::int64_t sequence, Duration interval, Instant now);
  // A dial failed or a connection ended.
  void OnUnreachable(Instant now);
  // The session is down: heartbeats that were not acknowledged never will be.
  void OnDown() { pending_.clear(); }

  // Something that counts waits for MayProceed. Idempotent until that is true again.
  void Ask(Instant now);
  [[nodiscard]] bool asking() const { return asked_.has_value(); }
  // It went on: the next such thing asks afresh.
  void Answered() { asked_.reset(); }

  [[nodiscard]] Instant next_heartbeat() const { return next_; }
  [[nodiscard]] bool Valid(Instant now) const { return now - renewed_ <= lease_; }
  [[nodiscard]] bool OutOfTouch(Instant now) const { return now - renewed_ >= autonomy_; }
  // May something be done that counts? `connected`: the session is up.
  [[nodiscard]] bool MayProceed(bool connected, Instant now) const;
  // A dial failed a short while ago. Older evidence says nothing about now: this process may have
  // been stopped since.
  [[nodiscard]] bool Unreachable(Instant now) const {
    return unreachable_ && now - *unreachable_ <= FreshFor();
  }
  // A heartbeat has waited for its acknowledgement for a whole lease: the connection is dead.
  [[nodiscard]] bool Silent(Instant now) const;
  // The next instant after `now` at which something has to be done, or one of the answers above can
  // change by itself.
  [[nodiscard]] Instant NextChange(bool connected, Instant now) const;
  [[nodiscard]] Duration lease() const { return lease_; }
  // All of its state, for those who compare states.
  template <class Visit>
  void VisitState(Visit&& visit) const {
    visit(lease_, autonomy_, interval_, renewed_, next_, unreachable_, asked_, pending_, sequence_);
  }

 private:
  [[nodiscard]] Duration FreshFor() const { return lease_ + Duration::Seconds(1); }

  Duration lease_;
  Duration autonomy_;
  Duration interval_;
  Instant renewed_ = Instant::FromNanos(0);
  Instant next_ = Instant::Never();
  std::optional<Instant> unreachable_;
  std::optional<Instant> asked_;
  std::deque<std::pair<std::int64_t, Instant>> pending_;  // sent, not acknowledged
  std::int64_t sequence_ = 0;
};

}  // namespace muster::worker
