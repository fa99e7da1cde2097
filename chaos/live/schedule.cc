#include "chaos/live/schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "protocol/prng.h"

namespace muster::chaos {
namespace {

struct Defaults {
  Between<Duration> hold;
  Between<std::int64_t> amount;
};

constexpr Between<Duration> Millis(std::int64_t lo, std::int64_t hi) {
  return {Duration::Millis(lo), Duration::Millis(hi)};
}

// What a file leaves open, and what the swarm takes.
Defaults DefaultsOf(FaultKind kind) {
  switch (kind) {
    case FaultKind::kLoseNode:
    case FaultKind::kKillLauncher:
    case FaultKind::kStop:
    case FaultKind::kStopNode: return {Millis(1000, 4000), {}};
    case FaultKind::kPause: return {Millis(500, 6000), {}};
    case FaultKind::kDrain: return {Millis(2000, 5000), {}};
    case FaultKind::kNotice:
    case FaultKind::kWithdrawnNotice: return {Millis(1500, 4000), {}};
    case FaultKind::kKillCoordinator: return {Millis(300, 4000), {}};
    case FaultKind::kPauseCoordinator: return {Millis(300, 3000), {}};
    case FaultKind::kLoseStore: return {Millis(100, 1000), {}};
    case FaultKind::kCut:
    case FaultKind::kLinkDown: return {Millis(500, 6000), {}};
    case FaultKind::kSlow: return {Millis(2000, 6000), {4000, 40000}};
    case FaultKind::kLossy: return {Millis(2000, 6000), {1, 10}};
    case FaultKind::kDelay: return {Millis(2000, 6000), {2, 30}};
    case FaultKind::kFillCheckpointDisk:
    case FaultKind::kFillIndexDisk: return {Millis(2000, 6000), {}};
    case FaultKind::kStarve: return {Millis(2000, 6000), {4, 16}};
    case FaultKind::kKill:
    case FaultKind::kReset:
    case FaultKind::kFlipBit:
    case FaultKind::kTruncate: return {};
  }
  return {};
}

bool HitsNodes(FaultKind kind) {
  switch (kind) {
    case FaultKind::kKillCoordinator:
    case FaultKind::kPauseCoordinator:
    case FaultKind::kLoseStore:
    case FaultKind::kFillCheckpointDisk:
    case FaultKind::kFillIndexDisk:
    case FaultKind::kFlipBit:
    case FaultKind::kTruncate:
    case FaultKind::kStarve: return false;
    default: return true;
  }
}

class Drawer {
 public:
  Drawer(const Scenario& scenario, std::uint64_t seed) : scenario_(scenario), dice_(seed) {}

  PlannedFault Of(const FaultSpec& spec) {
    PlannedFault fault;
    fault.kind = spec.kind;
    fault.when = spec.trigger.kind;
    fault.time = Draw(spec.trigger.time);
    fault.step = Draw(spec.trigger.step);
    fault.phase = spec.trigger.phase;
    const Defaults defaults = DefaultsOf(spec.kind);
    fault.hold = Draw(spec.hold.hi > Duration() ? spec.hold : defaults.hold);
    fault.amount = Draw(spec.amount.hi > 0 ? spec.amount : defaults.amount);
    fault.direction = spec.direction;
    if (HitsNodes(spec.kind)) DrawPlaces(spec, &fault);
    fault.dice = dice_.Next();
    return fault;
  }

  // One of the swarm: everything is drawn.
  PlannedFault OfSwarm(Duration at, const std::vector<FaultKind>& kinds) {
    FaultSpec spec;
    spec.kind = kinds[dice_.Below(kinds.size())];
    spec.trigger.kind = Trigger::Kind::kAt;
    spec.trigger.time = {at, at};
    constexpr std::array kFrom = {"coordinator", "one", "nodes", "all"};
    constexpr std::array kDirections = {"both", "out", "in"};
    spec.from = kFrom[dice_.Below(kFrom.size())];
    spec.direction = kDirections[dice_.Below(kDirections.size())];
    return Of(spec);
  }

  // The distance to the next event of a Poisson process.
  Duration Wait(Duration mean) {
    const double wait = -std::log(1.0 - dice_.Unit()) * static_cast<double>(mean.nanos());
    return Duration::Nanos(static_cast<std::int64_t>(wait));
  }

  Duration Draw(const Between<Duration>& range) {
    return Duration::Nanos(
        Draw(Between<std::int64_t>{range.lo.nanos() / 1'000'000, range.hi.nanos() / 1'000'000}) *
        1'000'000);
  }
  std::int64_t Draw(const Between<std::int64_t>& range) {
    const auto span = static_cast<std::uint64_t>(range.hi - range.lo);
    return range.lo + static_cast<std::int64_t>(dice_.Below(span + 1));
  }

 private:
  void DrawPlaces(const FaultSpec& spec, PlannedFault* fault) {
    std::vector<std::string> nodes;
    for (std::int64_t i = 0; i < scenario_.nodes; ++i) nodes.push_back(NodeName(i));
    for (std::size_t i = nodes.size(); i > 1; --i) std::swap(nodes[i - 1], nodes[dice_.Below(i)]);
    fault->named = spec.target.kind == Target::Kind::kNode;
    if (fault->named) {
      const auto named = std::find(nodes.begin(), nodes.end(), spec.target.node);
      if (named != nodes.end()) std::iter_swap(nodes.begin(), named);
    }
    if (spec.target.kind == Target::Kind::kRank) fault->rank = spec.target.rank;
    const auto hit = nodes.begin() + spec.target.count;
    fault->nodes.assign(nodes.begin(), hit);
    fault->local_rank = static_cast<std::int64_t>(
        dice_.Below(static_cast<std::uint64_t>(scenario_.workers_per_node)));
    if (spec.kind != FaultKind::kCut && spec.kind != FaultKind::kReset) return;
    if (spec.from == "one" && hit != nodes.end()) fault->peers.assign(hit, hit + 1);
    if (spec.from == "nodes" || spec.from == "all") fault->peers.assign(hit, nodes.end());
    if (spec.from == "coordinator" || spec.from == "all") fault->peers.emplace_back("musterd");
  }

  const Scenario& scenario_;
  Prng dice_;
};

// So many of these, at random distances, until the run is over.
void AddAtRandom(const Scenario& scenario, Drawer* drawer, const std::vector<FaultSpec>& repeated,
                 std::vector<PlannedFault>* faults) {
  for (const FaultSpec& spec : repeated) {
    const Duration mean = drawer->Draw(spec.trigger.time);
    for (Duration at = drawer->Wait(mean); at < scenario.run_for; at = at + drawer->Wait(mean)) {
      FaultSpec once = spec;
      once.trigger.kind = Trigger::Kind::kAt;
      once.trigger.time = {at, at};
      faults->push_back(drawer->Of(once));
    }
  }
}

std::string PlacesOf(const PlannedFault& fault) {
  std::string text;
  if (fault.rank >= 0) {
    text = fmt::format(", rank {}", fault.rank);
  } else if (!fault.nodes.empty()) {
    text =
        fmt::format(", node{} {}", fault.nodes.size() > 1 ? "s" : "", fmt::join(fault.nodes, ", "));
  }
  if (!fault.peers.empty()) text += fmt::format(", from {}", fmt::join(fault.peers, ", "));
  if (fault.kind == FaultKind::kCut && fault.direction != "both") {
    text += fault.direction == "out" ? ", only what it sends" : ", only what it is sent";
  }
  return text;
}

std::string MomentOf(const PlannedFault& fault) {
  switch (fault.when) {
    case Trigger::Kind::kAfter:
      return fmt::format("{:.1f} s after the one before", fault.time.ToSeconds());
    case Trigger::Kind::kStep: return fmt::format("at step {}", fault.step);
    case Trigger::Kind::kDuring: return fmt::format("during the next {}", fault.phase);
    default: return fmt::format("at {:.1f} s", fault.time.ToSeconds());
  }
}

std::string_view UnitOf(FaultKind kind) {
  switch (kind) {
    case FaultKind::kSlow: return "kbit/s";
    case FaultKind::kLossy: return "% lost";
    case FaultKind::kDelay: return "ms late";
    default: return "loops";
  }
}

}  // namespace

std::string NodeName(std::int64_t index) {
  constexpr std::int64_t kLetters = 26;
  if (index < kLetters) return std::string(1, static_cast<char>('a' + index));
  return fmt::format("n{}", index);
}

Schedule Draw(const Scenario& scenario, std::uint64_t seed, const Powers& powers) {
  Schedule schedule;
  Drawer drawer(scenario, seed);
  std::vector<PlannedFault> at_random;
  std::vector<FaultSpec> repeated;
  std::vector<FaultKind> swarm;
  const auto possible = [&](FaultKind kind) {
    const std::string reason = WhyNot(kind, powers);
    if (!reason.empty()) schedule.left_out.push_back({kind, reason});
    return reason.empty();
  };
  for (const FaultSpec& spec : scenario.faults) {
    if (!possible(spec.kind)) continue;
    if (spec.trigger.kind == Trigger::Kind::kEvery) {
      repeated.push_back(spec);
    } else {
      schedule.faults.push_back(drawer.Of(spec));
    }
  }
  AddAtRandom(scenario, &drawer, repeated, &at_random);
  std::copy_if(scenario.swarm.begin(), scenario.swarm.end(), std::back_inserter(swarm), possible);
  if (!swarm.empty()) {
    const Duration mean = scenario.swarm_every;
    for (Duration at = drawer.Wait(mean); at < scenario.run_for; at = at + drawer.Wait(mean)) {
      at_random.push_back(drawer.OfSwarm(at, swarm));
    }
  }
  std::stable_sort(at_random.begin(), at_random.end(),
                   [](const auto& a, const auto& b) { return a.time < b.time; });
  schedule.faults.insert(schedule.faults.end(), at_random.begin(), at_random.end());
  for (std::size_t i = 0; i < schedule.faults.size(); ++i) {
    schedule.faults[i].number = static_cast<int>(i) + 1;
  }
  return schedule;
}

std::string Describe(const PlannedFault& fault) {
  std::string text = fmt::format("{}. {}, {}: {}{}", fault.number, NameOf(fault.kind),
                                 MomentOf(fault), DescriptionOf(fault.kind), PlacesOf(fault));
  if (fault.amount > 0) text += fmt::format(", {} {}", fault.amount, UnitOf(fault.kind));
  if (fault.hold > Duration()) text += fmt::format(", for {:.1f} s", fault.hold.ToSeconds());
  return text;
}

}  // namespace muster::chaos
