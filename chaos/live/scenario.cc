#include "chaos/live/scenario.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include "protocol/duration_text.h"

namespace muster::chaos {
namespace {

constexpr std::int64_t kMaxNodes = 64;
constexpr std::int64_t kMaxFaults = 1000;

// Thrown within this file alone, as yaml-cpp's own errors are.
struct BadScenario {
  YAML::Mark mark;
  std::string message;
};

[[noreturn]] void Refuse(const YAML::Node& node, std::string message) {
  throw BadScenario{node.Mark(), std::move(message)};
}

std::string TextOf(const YAML::Node& node) {
  if (node.IsNull()) return {};
  if (!node.IsScalar()) Refuse(node, "one value is expected here, not a list or a map");
  return node.Scalar();
}

std::int64_t NumberOf(const YAML::Node& node, std::string_view text, std::int64_t lo,
                      std::int64_t hi) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    Refuse(node, fmt::format("'{}' is not a whole number", text));
  }
  if (value < lo || value > hi) {
    Refuse(node, fmt::format("{} is not within {} to {}", value, lo, hi));
  }
  return value;
}

std::int64_t NumberOf(const YAML::Node& node, std::int64_t lo, std::int64_t hi) {
  return NumberOf(node, TextOf(node), lo, hi);
}

Duration DurationOf(const YAML::Node& node, std::string_view text) {
  const Result<Duration> parsed = ParseDuration(text);
  if (!parsed.ok()) Refuse(node, parsed.status().message());
  return *parsed;
}

// "A..B", or "A" alone.
std::pair<std::string, std::string> EndsOf(const YAML::Node& node) {
  const std::string text = TextOf(node);
  const std::size_t dots = text.find("..");
  if (dots == std::string::npos) return {text, text};
  return {text.substr(0, dots), text.substr(dots + 2)};
}

Between<Duration> DurationsOf(const YAML::Node& node) {
  const auto [lo, hi] = EndsOf(node);
  const Between<Duration> range{DurationOf(node, lo), DurationOf(node, hi)};
  if (range.hi < range.lo) Refuse(node, fmt::format("{} is less than {}", hi, lo));
  return range;
}

Between<std::int64_t> NumbersOf(const YAML::Node& node, std::int64_t least, std::int64_t most) {
  const auto [lo, hi] = EndsOf(node);
  const Between<std::int64_t> range{NumberOf(node, lo, least, most),
                                    NumberOf(node, hi, least, most)};
  if (range.hi < range.lo) Refuse(node, fmt::format("{} is less than {}", hi, lo));
  return range;
}

std::string OneOf(const YAML::Node& node, const std::vector<std::string>& allowed) {
  const std::string text = TextOf(node);
  if (std::find(allowed.begin(), allowed.end(), text) == allowed.end()) {
    Refuse(node,
           fmt::format("'{}' stands where one of these may: {}", text, fmt::join(allowed, ", ")));
  }
  return text;
}

std::vector<std::string> WordsOf(const YAML::Node& node) {
  if (node.IsScalar()) {
    std::vector<std::string> words;
    std::istringstream text(node.Scalar());
    for (std::string word; text >> word;) words.push_back(word);
    return words;
  }
  if (!node.IsSequence()) Refuse(node, "a list is expected here");
  std::vector<std::string> words;
  for (const YAML::Node& entry : node) words.push_back(TextOf(entry));
  return words;
}

// What may stand in a map: each key with what is done about its value. Everything else is refused.
using Keys = std::map<std::string, std::function<void(const YAML::Node&)>>;

void ReadMap(const YAML::Node& node, const Keys& keys, std::string_view what) {
  if (!node.IsMap()) Refuse(node, fmt::format("{} is a map: 'key: value' lines", what));
  for (const auto& entry : node) {
    const auto found = keys.find(TextOf(entry.first));
    if (found == keys.end()) {
      std::vector<std::string> known;
      for (const auto& [key, read] : keys) known.push_back(key);
      Refuse(entry.first, fmt::format("{} has no '{}'; it may have: {}", what, entry.first.Scalar(),
                                      fmt::join(known, ", ")));
    }
    found->second(entry.second);
  }
}

// "worker", "node", "rank 0", "node b", "2 workers", or nothing.
Target TargetOf(const YAML::Node& node) {
  Target target;
  const std::string text = TextOf(node);
  std::istringstream words(text);
  std::string first;
  std::string second;
  std::string rest;
  words >> first >> second >> rest;
  if (!rest.empty()) Refuse(node, fmt::format("'{}': too many words for a target", text));
  const bool plain = first.empty() || first == "any" || first == "worker" || first == "node";
  if (plain && second.empty()) return target;
  if (first == "rank" && !second.empty()) {
    target.kind = Target::Kind::kRank;
    target.rank = NumberOf(node, second, 0, kMaxNodes * kMaxNodes);
    return target;
  }
  if (first == "node") {
    target.kind = Target::Kind::kNode;
    target.node = second;
    return target;
  }
  if (second == "workers" || second == "nodes") {
    target.count = NumberOf(node, first, 1, kMaxNodes);
    return target;
  }
  Refuse(node, fmt::format("'{}' is no target; one of: worker, node, rank N, node NAME, N workers, "
                           "N nodes",
                           text));
}

// Which key says how much, and within what bounds.
struct AmountKey {
  std::string_view key;
  std::int64_t lo;
  std::int64_t hi;
};

std::optional<AmountKey> AmountKeyOf(FaultKind kind) {
  switch (kind) {
    case FaultKind::kSlow: return AmountKey{"kbit", 8, 100'000'000};
    case FaultKind::kLossy: return AmountKey{"percent", 1, 90};
    case FaultKind::kDelay: return AmountKey{"ms", 1, 60'000};
    case FaultKind::kStarve: return AmountKey{"loops", 1, 4096};
    default: return std::nullopt;
  }
}

void SetTrigger(FaultSpec* fault, bool* triggered, const YAML::Node& value, Trigger::Kind kind) {
  if (*triggered) Refuse(value, "a fault has one of at, after, step, during and every");
  *triggered = true;
  fault->trigger.kind = kind;
  if (kind == Trigger::Kind::kStep) {
    fault->trigger.step = NumbersOf(value, 1, 1'000'000'000'000);
  } else if (kind == Trigger::Kind::kDuring) {
    fault->trigger.phase = OneOf(value, {"reform", "save"});
  } else {
    fault->trigger.time = DurationsOf(value);
    if (kind == Trigger::Kind::kEvery && fault->trigger.time.lo < Duration::Millis(100)) {
      Refuse(value, "a mean distance of less than 100ms");
    }
  }
}

void CheckFault(const YAML::Node& node, const FaultSpec& fault) {
  if (const auto amount = AmountKeyOf(fault.kind); amount && fault.amount.hi == 0) {
    Refuse(node, fmt::format("'{}' needs '{}', how much", NameOf(fault.kind), amount->key));
  }
}

FaultSpec FaultOf(const YAML::Node& node) {
  if (!node.IsMap()) Refuse(node, "a fault is a map that begins with its kind, as 'kill: worker'");
  FaultSpec fault;
  bool named = false;
  bool triggered = false;
  Keys keys;
  for (const FaultKind kind : AllFaultKinds()) {
    keys[std::string(NameOf(kind))] = [&fault, &named, kind](const YAML::Node& value) {
      if (named) Refuse(value, "a fault has one kind");
      named = true;
      fault.kind = kind;
      fault.target = TargetOf(value);
    };
  }
  const auto trigger = [&](Trigger::Kind kind) {
    return [&fault, &triggered, kind](const YAML::Node& value) {
      SetTrigger(&fault, &triggered, value, kind);
    };
  };
  keys["at"] = trigger(Trigger::Kind::kAt);
  keys["after"] = trigger(Trigger::Kind::kAfter);
  keys["step"] = trigger(Trigger::Kind::kStep);
  keys["during"] = trigger(Trigger::Kind::kDuring);
  keys["every"] = trigger(Trigger::Kind::kEvery);
  keys["for"] = [&](const YAML::Node& value) { fault.hold = DurationsOf(value); };
  keys["from"] = [&](const YAML::Node& value) {
    fault.from = OneOf(value, {"coordinator", "one", "nodes", "all"});
  };
  keys["direction"] = [&](const YAML::Node& value) {
    fault.direction = OneOf(value, {"both", "out", "in"});
  };
  for (const FaultKind kind : AllFaultKinds()) {
    const auto amount = AmountKeyOf(kind);
    if (!amount) continue;
    keys[std::string(amount->key)] = [&fault, kind, amount](const YAML::Node& value) {
      if (fault.kind != kind) {
        Refuse(value, fmt::format("'{}' belongs to '{}'", amount->key, NameOf(kind)));
      }
      fault.amount = NumbersOf(value, amount->lo, amount->hi);
    };
  }
  ReadMap(node, keys, "a fault");
  if (!named) Refuse(node, "a fault begins with its kind, as 'kill: worker'");
  CheckFault(node, fault);
  return fault;
}

void ReadSwarm(const YAML::Node& node, Scenario* scenario) {
  ReadMap(
      node,
      {{"every", [&](const YAML::Node& v) { scenario->swarm_every = DurationOf(v, TextOf(v)); }},
       {"of",
        [&](const YAML::Node& v) {
          for (const std::string& name : WordsOf(v)) {
            const auto kind = FaultKindNamed(name);
            if (!kind) Refuse(v, fmt::format("'{}' is no kind of fault", name));
            scenario->swarm.push_back(*kind);
          }
        }}},
      "swarm");
  if (scenario->swarm_every < Duration::Millis(100)) {
    Refuse(node, "swarm needs 'every', a mean distance of at least 100ms");
  }
  if (scenario->swarm.empty()) scenario->swarm = AllFaultKinds();
}

void ReadExpect(const YAML::Node& node, Expectations* expect) {
  constexpr std::int64_t kMost = 1'000'000'000;
  const auto count = [&](std::int64_t* into) {
    return [into](const YAML::Node& v) { *into = TextOf(v) == "any" ? -1 : NumberOf(v, 0, kMost); };
  };
  ReadMap(node,
          {{"resume_within",
            [&](const YAML::Node& v) { expect->resume_within = DurationOf(v, TextOf(v)); }},
           {"steps_redone", count(&expect->steps_redone)},
           {"deaths", count(&expect->deaths)},
           {"reforms", [&](const YAML::Node& v) { expect->reforms = NumberOf(v, 0, kMost); }}},
          "expect");
}

void CheckScenario(const YAML::Node& root, const Scenario& scenario) {
  if (scenario.summary.empty()) Refuse(root, "a scenario needs a 'summary', one sentence");
  for (const FaultSpec& fault : scenario.faults) {
    if (fault.target.count > scenario.nodes) {
      Refuse(root, fmt::format("'{}' hits {} nodes, and there are {}", NameOf(fault.kind),
                               fault.target.count, scenario.nodes));
    }
    if (fault.trigger.kind == Trigger::Kind::kEvery && scenario.run_for <= Duration()) {
      Refuse(root, "'every' needs 'run_for', the length of the run");
    }
  }
  if (!scenario.swarm.empty() && scenario.run_for <= Duration()) {
    Refuse(root, "'swarm' needs 'run_for', the length of the run");
  }
}

Scenario ScenarioOf(const YAML::Node& root) {
  Scenario scenario;
  ReadMap(root,
          {{"summary", [&](const YAML::Node& v) { scenario.summary = TextOf(v); }},
           {"nodes", [&](const YAML::Node& v) { scenario.nodes = NumberOf(v, 1, kMaxNodes); }},
           {"workers_per_node",
            [&](const YAML::Node& v) { scenario.workers_per_node = NumberOf(v, 1, kMaxNodes); }},
           {"run_for", [&](const YAML::Node& v) { scenario.run_for = DurationOf(v, TextOf(v)); }},
           {"calm_steps",
            [&](const YAML::Node& v) { scenario.calm_steps = NumberOf(v, 1, 1'000'000); }},
           {"disk_mib", [&](const YAML::Node& v) { scenario.disk_mib = NumberOf(v, 8, 65536); }},
           {"musterd", [&](const YAML::Node& v) { scenario.coordinator_flags = WordsOf(v); }},
           {"launcher", [&](const YAML::Node& v) { scenario.launcher_flags = WordsOf(v); }},
           {"swarm", [&](const YAML::Node& v) { ReadSwarm(v, &scenario); }},
           {"faults",
            [&](const YAML::Node& v) {
              if (!v.IsSequence()) Refuse(v, "faults is a list: lines that begin with '-'");
              if (v.size() > kMaxFaults) Refuse(v, fmt::format("more than {} faults", kMaxFaults));
              for (const YAML::Node& entry : v) scenario.faults.push_back(FaultOf(entry));
            }},
           {"expect", [&](const YAML::Node& v) { ReadExpect(v, &scenario.expect); }}},
          "a scenario");
  CheckScenario(root, scenario);
  return scenario;
}

}  // namespace

Result<Scenario> ParseScenario(std::string_view text, std::string_view name) {
  const auto problem = [&](const YAML::Mark& mark, const std::string& message) {
    if (mark.is_null()) return InvalidArgument(fmt::format("scenario {}: {}", name, message));
    return InvalidArgument(fmt::format("scenario {}, line {}, column {}: {}", name, mark.line + 1,
                                       mark.column + 1, message));
  };
  try {
    Scenario scenario = ScenarioOf(YAML::Load(std::string(text)));
    scenario.name = name;
    return scenario;
  } catch (const BadScenario& bad) {
    return problem(bad.mark, bad.message);
  } catch (const YAML::Exception& error) {
    return problem(error.mark, error.msg);
  }
}

std::vector<std::string> ScenariosIn(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator file(directory, error), end; !error && file != end;
       file.increment(error)) {
    if (file->path().extension() == ".yaml") names.push_back(file->path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Result<Scenario> LoadScenario(const std::string& name, const std::string& directory) {
  const bool is_path = name.find('/') != std::string::npos || name.ends_with(".yaml");
  const std::filesystem::path path = is_path ? name : directory + "/" + name + ".yaml";
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    if (is_path) return NotFound(fmt::format("scenario {}: it cannot be read", path.string()));
    return NotFound(fmt::format("there is no scenario '{}' in {}; there are: {}", name, directory,
                                fmt::join(ScenariosIn(directory), ", ")));
  }
  std::ostringstream text;
  text << file.rdbuf();
  return ParseScenario(text.str(), path.stem().string());
}

}  // namespace muster::chaos
