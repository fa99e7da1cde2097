// Durations and instants as values. There is no clock here: a core is told the time, and only
// protocol/transport/steady_clock.cc reads one.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>

namespace muster {

// A signed span of time in nanoseconds.
class Duration {
 public:
  constexpr Duration() = default;
  static constexpr Duration Nanos(std::int64_t n) { return Duration(n); }
  static constexpr Duration Micros(std::int64_t n) { return Duration(n * 1'000); }
  static constexpr Duration Millis(std::int64_t n) { return Duration(n * 1'000'000); }
  static constexpr Duration Seconds(std::int64_t n) { return Duration(n * 1'000'000'000); }
  static constexpr Duration Max() { return Duration(std::numeric_limits<std::int64_t>::max()); }

  [[nodiscard]] constexpr std::int64_t nanos() const { return nanos_; }
  [[nodiscard]] constexpr std::int64_t millis() const { return nanos_ / 1'000'000; }
  [[nodiscard]] constexpr double ToMillis() const { return static_cast<double>(nanos_) / 1e6; }
  [[nodiscard]] constexpr double ToSeconds() const { return static_cast<double>(nanos_) / 1e9; }

  friend constexpr auto operator<=>(Duration, Duration) = default;
  friend constexpr Duration operator+(Duration a, Duration b) {
    return Duration(a.nanos_ + b.nanos_);
  }
  friend constexpr Duration operator-(Duration a, Duration b) {
    return Duration(a.nanos_ - b.nanos_);
  }
  friend constexpr Duration operator*(Duration a, std::int64_t k) { return Duration(a.nanos_ * k); }
  friend constexpr Duration operator/(Duration a, std::int64_t k) { return Duration(a.nanos_ / k); }

 private:
  constexpr explicit Duration(std::int64_t nanos) : nanos_(nanos) {}
  std::int64_t nanos_ = 0;
};

// A point on one machine's monotonic clock. Instants of different machines are never compared.
class Instant {
 public:
  constexpr Instant() = default;
  static constexpr Instant FromNanos(std::int64_t n) { return Instant(n); }
  // Later than every instant that occurs: "no deadline".
  static constexpr Instant Never() { return Instant(std::numeric_limits<std::int64_t>::max()); }

  [[nodiscard]] constexpr std::int64_t nanos() const { return nanos_; }

  friend constexpr auto operator<=>(Instant, Instant) = default;
  friend constexpr Duration operator-(Instant a, Instant b) {
    return Duration::Nanos(a.nanos_ - b.nanos_);
  }
  // Saturates at Never().
  friend constexpr Instant operator+(Instant t, Duration d) {
    if (d.nanos() > 0 && t.nanos_ > std::numeric_limits<std::int64_t>::max() - d.nanos()) {
      return Never();
    }
    return Instant(t.nanos_ + d.nanos());
  }

 private:
  constexpr explicit Instant(std::int64_t nanos) : nanos_(nanos) {}
  std::int64_t nanos_ = 0;
};

}  // namespace muster
