// muster-sim-mutants: plants known bugs in the cores, one at a time, and runs seeds until a checker
// of the simulator sees a violation. A mutant that escapes shows what the simulator cannot see.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "chaos/sim/hunt.h"
#include "chaos/sim/options.h"
#include "chaos/sim/world.h"
#include "protocol/mutants.h"

namespace muster::sim {
namespace {

constexpr std::uint64_t kHealthySeeds = 200;

struct Run {
  std::string violation;  // empty: all promises held
  std::uint64_t trace_hash = 0;
};

Run RunOne(std::uint64_t seed, std::optional<Mutant> mutant) {
  Plant(mutant);
  try {
    RunResult result = World(Options::Draw(seed)).Run();
    return {std::move(result.violation), result.trace_hash};
  } catch (const std::exception& failure) {
    return {failure.what(), 0};
  }
}

// What the runs are without a mutant, as far as it was asked for: from seed 1.
class Healthy {
 public:
  const Run& Of(std::uint64_t seed) {
    while (runs_.size() < seed) runs_.push_back(RunOne(runs_.size() + 1, std::nullopt));
    return runs_[seed - 1];
  }
  // How many of the seeds asked for failed. A checker that accuses healthy cores proves nothing by
  // accusing a mutant.
  [[nodiscard]] std::int64_t failed() const {
    return std::ranges::count_if(runs_, [](const Run& run) { return !run.violation.empty(); });
  }
  bool Pass() {
    for (std::uint64_t seed = 1; seed <= kHealthySeeds; ++seed) {
      if (Of(seed).violation.empty()) continue;
      fmt::print("no mutant planted, and seed {} fails: {}\n", seed, Of(seed).violation);
      return false;
    }
    fmt::print("no mutant planted: {} seeds pass\n", kHealthySeeds);
    std::fflush(stdout);
    return true;
  }

 private:
  std::vector<Run> runs_;
};

struct Hunted {
  std::uint64_t seed = 0;  // that caught it; zero: none did
  std::string how;
  std::uint64_t changed = 0;  // runs that went otherwise than without the mutant
};

Hunted Hunt(Mutant mutant, std::uint64_t seeds, Healthy& healthy) {
  Hunted hunted;
  std::vector<Run> runs;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    runs.push_back(RunOne(seed, mutant));
    // A seed that fails without the mutant too is no catch.
    if (runs.back().violation.empty() || !healthy.Of(seed).violation.empty()) continue;
    hunted.seed = seed;
    hunted.how = runs.back().violation;
    return hunted;
  }
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    if (runs[seed - 1].trace_hash != healthy.Of(seed).trace_hash) ++hunted.changed;
  }
  return hunted;
}

void List() {
  for (const MutantInfo& info : MutantTable()) {
    const std::string rule = info.rule > 0 ? fmt::format("rule {}", info.rule) : "design";
    fmt::print("{:<30} {:<8} {}\n", info.name, rule, info.breaks);
  }
}

int RunAll(const std::vector<MutantInfo>& mutants, std::uint64_t seeds) {
  Healthy healthy;
  if (!healthy.Pass()) return 1;
  std::size_t caught = 0;
  std::string json;
  for (const MutantInfo& info : mutants) {
    const Hunted hunted = Hunt(info.mutant, seeds, healthy);
    if (hunted.seed > 0) {
      ++caught;
      json += fmt::format("{}\"{}\":{}", json.empty() ? "" : ",", info.name, hunted.seed);
      fmt::print("{:<30} caught at seed {}: {}\n", info.name, hunted.seed, hunted.how);
    } else {
      // None changed: never reached. Some: reached, and no checker looks at what it breaks.
      fmt::print("{:<30} NOT CAUGHT in {} seeds, {} of them changed: {}\n", info.name, seeds,
                 hunted.changed, info.breaks);
    }
    std::fflush(stdout);
  }
  if (healthy.failed() > 0) {
    fmt::print("{} seeds fail with no mutant planted, and were not counted\n", healthy.failed());
  }
  fmt::print("{{\"mutants\":{},\"caught\":{},\"seeds_to_catch\":{{{}}}}}\n", mutants.size(), caught,
             json);
  return caught == mutants.size() && healthy.failed() == 0 ? 0 : 1;
}

// The same with the explorer: each mutant is hunted with one small search after another.
int ExploreAll(const std::vector<MutantInfo>& mutants) {
  std::size_t caught = 0;
  for (const MutantInfo& info : mutants) {
    std::string how;
    std::uint64_t states = 0;
    for (SmallSearch search : SmallSearches()) {
      search.options.max_shorten = 0;
      Plant(info.mutant);
      const ExploreResult result = Explorer(search.options).Run();
      states += result.states;
      if (result.violation.empty()) continue;
      how = fmt::format("caught by '{}': {}", search.name, result.violation);
      break;
    }
    if (!how.empty()) ++caught;
    if (how.empty()) how = "NOT CAUGHT";
    fmt::print("{:<30} {} ({} states)\n", info.name, how, states);
    std::fflush(stdout);
  }
  fmt::print("{{\"mutants\":{},\"caught\":{}}}\n", mutants.size(), caught);
  return 0;
}

}  // namespace
}  // namespace muster::sim

int main(int argc, char** argv) {
  CLI::App app{"Plants known bugs in the cores of Muster and shows which seeds catch them."};
  std::uint64_t seeds = 4000;
  std::vector<std::string> only;
  bool list = false;
  app.add_option("--seeds", seeds, "how many seeds to try before a mutant has escaped")
      ->capture_default_str();
  app.add_option("--only", only, "names of the mutants to plant; all without it");
  bool explore = false;
  app.add_flag("--explore", explore,
               "hunt with small exhaustive searches instead: says which mutants those catch");
  app.add_flag("--list", list, "print the mutants and what each of them breaks");
  CLI11_PARSE(app, argc, argv);
  if (list) {
    muster::sim::List();
    return 0;
  }
  std::vector<muster::MutantInfo> chosen;
  for (const muster::MutantInfo& info : muster::MutantTable()) {
    if (only.empty()) chosen.push_back(info);
  }
  for (const std::string& name : only) {
    const std::size_t before = chosen.size();
    for (const muster::MutantInfo& info : muster::MutantTable()) {
      if (info.name == name) chosen.push_back(info);
    }
    if (chosen.size() > before) continue;
    fmt::print(stderr, "no mutant is called {}: --list names them\n", name);
    return 2;
  }
  if (explore) return muster::sim::ExploreAll(chosen);
  return muster::sim::RunAll(chosen, seeds);
}
