// A fingerprint of a state: 64 bits that are equal for states that behave alike from now on, and
// for others only by chance. It walks plain structs, containers and whatever has VisitState.
//
// Alike means: instants count by their distance from now, in units of a given length and no further
// than a given horizon; durations by the same units. Not looked at, for nothing depends on them:
// texts for people (std::string; names are StrongString and count), the spec of the job (the same
// in all states), incidents, the numbers of heartbeats (their order on a session says which is
// which), and what measurements say (double).
#pragma once

#include <algorithm>
#include <boost/pfr.hpp>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "coordinator/core/effects.h"
#include "coordinator/core/lease_table.h"
#include "protocol/ids.h"
#include "protocol/messages.h"
#include "protocol/prng.h"
#include "protocol/time.h"

namespace muster::sim {

namespace fingerprint_detail {
// Accepts whatever a VisitState hands over.
struct AnyVisitor {
  template <class... Parts>
  void operator()(const Parts&...) const {}
};
template <class T>
concept Visitable = requires(const T& t) {
  t.VisitState(AnyVisitor());
};
template <class T>
concept Pointer = requires(const T& t) {
  t.get();
  *t;
  static_cast<bool>(t);
};
template <class T>
concept Container = requires(const T& t) {
  t.begin();
  t.end();
  t.size();
};
template <class T>
concept Strong = requires(const T& t) {
  t.value();
}
&&!requires(const T& t) { t.has_value(); };
template <class T>
inline constexpr bool kIsVariant = false;
template <class... Ts>
inline constexpr bool kIsVariant<std::variant<Ts...>> = true;
template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;
template <class T>
inline constexpr bool kIsPair = false;
template <class A, class B>
inline constexpr bool kIsPair<std::pair<A, B>> = true;
template <class T>
inline constexpr bool kIgnored =
    std::is_same_v<T, std::string> || std::is_same_v<T, double> || std::is_same_v<T, JobSpec> ||
    std::is_same_v<T, TensorSpec> || std::is_same_v<T, coordinator::Incident> ||
    std::is_same_v<T, Prng>;
}  // namespace fingerprint_detail

class Fingerprint {
 public:
  struct Time {
    Instant now;
    Duration unit;
    Duration horizon;
  };
  // `sessions`: those that exist, in order; they count by their place in it.
  Fingerprint(Time time, const std::vector<SessionId>* sessions)
      : time_(time), sessions_(sessions) {}

  // The clock that the instants walked from now on were read from.
  void SetNow(Instant now) { time_.now = now; }
  [[nodiscard]] std::uint64_t value() const { return Mix64(hash_); }
  [[nodiscard]] const Time& time() const { return time_; }

  void Word(std::uint64_t word) {
    hash_ = (hash_ ^ word) * 0x9fb21c651e98df25ULL;
    hash_ ^= hash_ >> 29U;
  }

  template <class... Parts>
  void operator()(const Parts&... parts) {
    (Walk(parts), ...);
  }

 private:
  template <class T>
  void Walk(const T& part) {
    namespace d = fingerprint_detail;
    if constexpr (std::is_same_v<T, SharedRecord>) {
      Walk(*part);
    } else if constexpr (d::kIgnored<T>) {
    } else if constexpr (std::is_enum_v<T> || std::is_integral_v<T>) {
      Word(static_cast<std::uint64_t>(part));
    } else if constexpr (std::is_same_v<T, Instant>) {
      WalkInstant(part);
    } else if constexpr (std::is_same_v<T, Duration>) {
      Word(static_cast<std::uint64_t>(Units(part)));
    } else if constexpr (std::is_same_v<T, SessionId>) {
      WalkSession(part);
    } else if constexpr (std::is_same_v<T, Heartbeat>) {
      (*this)(part.generation, part.committed, part.stage, part.operations, part.waiting,
              part.phase_left, part.skips);
    } else if constexpr (std::is_same_v<T, GroupId>) {
      Walk(part.generation);
      WalkValue(part.id);  // by which members meet: no text for people
    } else if constexpr (std::is_same_v<T, Ack>) {
      Walk(part.interval);
    } else if constexpr (std::is_same_v<T, Status>) {
      Walk(part.code());
    } else if constexpr (std::is_same_v<T, coordinator::LeaseTable>) {
      part.VisitState([&](const auto& entries) { WalkLeases(entries); });
    } else if constexpr (d::Visitable<T>) {
      part.VisitState([&](const auto&... parts) { (*this)(parts...); });
    } else {
      WalkShape(part);
    }
  }

  template <class T>
  void WalkShape(const T& part) {
    namespace d = fingerprint_detail;
    if constexpr (d::kIsVariant<T>) {
      Word(part.index());
      std::visit([&](const auto& one) { Walk(one); }, part);
    } else if constexpr (d::kIsOptional<T> || d::Pointer<T>) {
      Word(part ? 1 : 0);
      if (part) Walk(*part);
    } else if constexpr (d::kIsPair<T>) {
      Walk(part.first);
      Walk(part.second);
    } else if constexpr (d::Container<T>) {
      Word(part.size());
      for (const auto& one : part) Walk(one);
    } else if constexpr (d::Strong<T>) {
      WalkValue(part.value());
    } else {
      boost::pfr::for_each_field(part, [&](const auto& field) { Walk(field); });
    }
  }

  void WalkValue(const std::string& name) { Word(std::hash<std::string>()(name)); }
  template <std::integral T>
  void WalkValue(T value) {
    Word(static_cast<std::uint64_t>(value));
  }

  [[nodiscard]] std::int64_t Units(Duration d) const {
    const std::int64_t unit = std::max<std::int64_t>(1, time_.unit.nanos());
    const std::int64_t most = time_.horizon.nanos() / unit;
    const std::int64_t half = unit / 2;
    const std::int64_t nanos =
        std::clamp(d.nanos(), -time_.horizon.nanos() - half, time_.horizon.nanos() + half);
    return std::clamp((nanos + (nanos < 0 ? -half : half)) / unit, -most, most);
  }
  void WalkInstant(Instant at) {
    constexpr std::uint64_t kNever = 0x4e65766572ULL;
    Word(at == Instant::Never() ? kNever : static_cast<std::uint64_t>(Units(at - time_.now)));
  }
  void WalkSession(SessionId id) {
    const auto it = std::ranges::lower_bound(*sessions_, id);
    const bool found = it != sessions_->end() && *it == id;
    Word(found ? static_cast<std::uint64_t>(it - sessions_->begin()) + 1 : 0);
  }
  // The first look at each member counts: it arranges for the next one.
  template <class Entries>
  void WalkLeases(const Entries& entries) {
    std::vector<Member> seen;
    for (const auto& [at, member] : entries) {
      if (std::ranges::find(seen, member) != seen.end()) continue;
      seen.push_back(member);
      Walk(at);
      Walk(member);
    }
  }

  Time time_;
  const std::vector<SessionId>* sessions_;
  std::uint64_t hash_ = 0x243f6a8885a308d3ULL;
};

}  // namespace muster::sim
