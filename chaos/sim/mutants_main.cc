// muster-sim-mutants: plants known bugs in the cores, one at a time, and runs seeds until a checker
// of the simulator sees a violation. A mutant that escapes shows what the simulator cannot see.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "chaos/sim/cluster.h"
#include "chaos/sim/options.h"
#include "protocol/mutants.h"

namespace muster::sim {
namespace {

constexpr std::uint64_t kHealthySeeds = 200;

// What went wrong in the run of this seed; empty when nothing did.
std::string RunOne(std::uint64_t seed, std::optional<Mutant> mutant) {
  Plant(mutant);
  try {
    return Cluster(Options::Draw(seed)).Run().violation;
  } catch (const std::exception& failure) {
    return failure.what();
  }
}

struct Caught {
  std::uint64_t seed = 0;
  std::string how;
};

std::optional<Caught> Hunt(Mutant mutant, std::uint64_t seeds) {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    if (std::string how = RunOne(seed, mutant); !how.empty()) return Caught{seed, std::move(how)};
  }
  return std::nullopt;
}

// A checker that accuses healthy cores proves nothing by accusing a mutant.
bool HealthyPass() {
  for (std::uint64_t seed = 1; seed <= kHealthySeeds; ++seed) {
    const std::string how = RunOne(seed, std::nullopt);
    if (how.empty()) continue;
    fmt::print("no mutant planted, and seed {} fails: {}\n", seed, how);
    return false;
  }
  fmt::print("no mutant planted: {} seeds pass\n", kHealthySeeds);
  std::fflush(stdout);
  return true;
}

void List() {
  for (const MutantInfo& info : MutantTable()) {
    const std::string rule = info.rule > 0 ? fmt::format("rule {}", info.rule) : "design";
    fmt::print("{:<30} {:<8} {}\n", info.name, rule, info.breaks);
  }
}

int RunAll(const std::vector<MutantInfo>& mutants, std::uint64_t seeds) {
  if (!HealthyPass()) return 1;
  std::size_t caught = 0;
  std::string json;
  for (const MutantInfo& info : mutants) {
    const std::optional<Caught> found = Hunt(info.mutant, seeds);
    if (found) {
      ++caught;
      json += fmt::format("{}\"{}\":{}", json.empty() ? "" : ",", info.name, found->seed);
      fmt::print("{:<30} caught at seed {}: {}\n", info.name, found->seed, found->how);
    } else {
      fmt::print("{:<30} NOT CAUGHT in {} seeds: {}\n", info.name, seeds, info.breaks);
    }
    std::fflush(stdout);
  }
  fmt::print("{{\"mutants\":{},\"caught\":{},\"seeds_to_catch\":{{{}}}}}\n", mutants.size(), caught,
             json);
  return caught == mutants.size() ? 0 : 1;
}

}  // namespace
}  // namespace muster::sim

int main(int argc, char** argv) {
  CLI::App app{"Plants known bugs in the cores of Muster and shows which seeds catch them."};
  std::uint64_t seeds = 2000;
  std::vector<std::string> only;
  bool list = false;
  app.add_option("--seeds", seeds, "how many seeds to try before a mutant has escaped")
      ->capture_default_str();
  app.add_option("--only", only, "names of the mutants to plant; all without it");
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
  return muster::sim::RunAll(chosen, seeds);
}
