#include "worker/core/lease_watch.h"

#include <algorithm>

#include "protocol/mutants.h"

namespace muster::worker {

namespace {

// More than any healthy session leaves unacknowledged; past it the oldest is forgotten.
constexpr std::size_t kMaxPending = 64;

// Up to a tenth earlier, so that the workers of a job do not beat in step.
Duration Jittered(Duration interval, Prng& prng) {
  const auto tenth = static_cast<std::uint64_t>(std::max<std::int64_t>(1, interval.nanos() / 10));
  return interval - Duration::Nanos(static_cast<std::int64_t>(prng.Below(tenth)));
}

}  // namespace

void LeaseWatch::OnWelcome(Duration lease, Duration autonomy, Duration interval, Instant greeted,
                           Instant now, Prng& prng) {
  lease_ = lease;
  autonomy_ = autonomy;
  interval_ = interval;
  renewed_ = std::max(renewed_, Planted(Mutant::kLeaseFromAck) ? now : greeted);
  unreachable_.reset();
  pending_.clear();
  next_ = now + Jittered(interval_, prng);
  if (Valid(now)) asked_.reset();
}

std::int64_t LeaseWatch::OnHeartbeat(Instant now, Prng& prng) {
  pending_.emplace_back(++sequence_, now);
  if (pending_.size() > kMaxPending) pending_.pop_front();
  next_ = now + Jittered(interval_, prng);
  return sequence_;
}

void LeaseWatch::OnAck(std::int64_t sequence, Duration interval, Instant now) {
  while (!pending_.empty() && pending_.front().first <= sequence) {
    if (pending_.front().first == sequence) {
      const Instant from = Planted(Mutant::kLeaseFromAck) ? now : pending_.front().second;
      renewed_ = std::max(renewed_, from);
      asked_.reset();
    }
    pending_.pop_front();
  }
  if (interval > Duration()) interval_ = interval;
}

void LeaseWatch::OnUnreachable(Instant now) { unreachable_ = now; }

void LeaseWatch::Ask(Instant now) {
  if (!asked_) asked_ = now;
}

bool LeaseWatch::MayProceed(bool connected, Instant now) const {
  if (Valid(now)) return true;
  if (OutOfTouch(now) && !Planted(Mutant::kAutonomyAtBoundaryOnly)) return false;
  if (!connected && Unreachable(now)) return true;
  return asked_ && now - *asked_ >= lease_;
}

bool LeaseWatch::Silent(Instant now) const {
  return !pending_.empty() && now - pending_.front().second >= lease_;
}

Instant LeaseWatch::NextChange(bool connected, Instant now) const {
  Instant next = Instant::Never();
  if (connected) {
    next = next_;
    if (!pending_.empty()) next = std::min(next, pending_.front().second + lease_);
  }
  if (asked_ && *asked_ + lease_ > now) next = std::min(next, *asked_ + lease_);
  return next;
}

}  // namespace muster::worker
