// Strong identifiers. None converts to or from its raw type by itself, so a step can never be
// passed where a generation is wanted.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace muster {

// An integer with a meaning. `Tag` only makes the types distinct.
template <class Tag, class Rep>
class StrongInt {
 public:
  using rep = Rep;
  constexpr StrongInt() = default;
  constexpr explicit StrongInt(Rep value) : value_(value) {}
  [[nodiscard]] constexpr Rep value() const { return value_; }
  [[nodiscard]] constexpr StrongInt Next() const { return StrongInt(static_cast<Rep>(value_ + 1)); }
  friend constexpr auto operator<=>(StrongInt, StrongInt) = default;

 private:
  Rep value_{};
};

// A string with a meaning.
template <class Tag>
class StrongString {
 public:
  StrongString() = default;
  explicit StrongString(std::string value) : value_(std::move(value)) {}
  [[nodiscard]] const std::string& value() const { return value_; }
  [[nodiscard]] bool empty() const { return value_.empty(); }
  friend auto operator<=>(const StrongString&, const StrongString&) = default;

 private:
  std::string value_;
};

// A training run: one spec, one lineage of steps.
using JobName = StrongString<struct JobNameTag>;
// The stable name of a worker. Unique among the live workers of its job.
using WorkerId = StrongString<struct WorkerIdTag>;
// A failure domain: a host with its launcher and its workers.
using NodeName = StrongString<struct NodeNameTag>;

// One life of a worker: fresh at each start and after each fencing; dead is final. Zero is "none".
using Incarnation = StrongInt<struct IncarnationTag, std::uint64_t>;
// A numbered, sealed membership of a job. Zero is "none"; the first one is 1.
using Generation = StrongInt<struct GenerationTag, std::int64_t>;
// The number of committed optimizer updates. State "at step k" has applied steps 1 to k; step 0 is
// the initial state, and the first step to be taken is 1.
using Step = StrongInt<struct StepTag, std::int64_t>;
// A position in [0, world size) of one generation.
using Rank = StrongInt<struct RankTag, std::int32_t>;
// Names one lineage of a job's state; drawn when the job is created or adopted by force. Zero is
// "none".
using Lineage = StrongInt<struct LineageTag, std::uint64_t>;
// One connection to the coordinator, numbered by the server that accepted it; never reused.
using SessionId = StrongInt<struct SessionIdTag, std::int64_t>;

// A worker in one of its lives: what membership is made of.
struct Member {
  WorkerId worker;
  Incarnation incarnation;
  friend auto operator<=>(const Member&, const Member&) = default;
};

// 16 lower-case hexadecimal digits: how incarnations, lineages and digests are written. JSON
// readers that hold numbers as doubles would damage them otherwise.
[[nodiscard]] std::string ToHex(std::uint64_t value);
// The reverse; false when `text` is anything but 16 hexadecimal digits.
[[nodiscard]] bool FromHex(const std::string& text, std::uint64_t* value);

}  // namespace muster

template <class Tag, class Rep>
struct std::hash<muster::StrongInt<Tag, Rep>> {
  std::size_t operator()(muster::StrongInt<Tag, Rep> id) const {
    return std::hash<Rep>()(id.value());
  }
};
template <class Tag>
struct std::hash<muster::StrongString<Tag>> {
  std::size_t operator()(const muster::StrongString<Tag>& id) const {
    return std::hash<std::string>()(id.value());
  }
};
template <>
struct std::hash<muster::Member> {
  std::size_t operator()(const muster::Member& member) const {
    return std::hash<muster::WorkerId>()(member.worker) ^
           std::hash<muster::Incarnation>()(member.incarnation);
  }
};
