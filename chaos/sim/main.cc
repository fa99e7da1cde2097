// muster-sim: runs simulated jobs by seed and reports the first promise that one of them breaks.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "chaos/sim/explore_main.h"
#include "chaos/sim/scale_main.h"
#include "chaos/sim/world.h"

namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begun) {
  return std::chrono::duration<double>(Clock::now() - begun).count();
}

struct Totals {
  std::uint64_t seeds = 0;
  std::int64_t events = 0;
  std::int64_t steps = 0;
  std::int64_t reforms = 0;
  std::int64_t rollbacks = 0;
  std::int64_t group_ids = 0;
  std::array<std::int64_t, muster::sim::kFaultKinds> faults{};
  std::uint64_t violations = 0;

  void Add(const muster::sim::RunResult& result) {
    ++seeds;
    events += result.events;
    steps += result.steps;
    reforms += result.reforms;
    rollbacks += result.rollbacks;
    group_ids += result.group_ids;
    for (std::size_t k = 0; k < faults.size(); ++k) faults[k] += result.faults[k];
    if (!result.violation.empty()) ++violations;
  }
};

void PrintFailure(const muster::sim::Options& options, const muster::sim::RunResult& result) {
  for (const std::string& line : result.trace) fmt::print("{}\n", line);
  fmt::print("FAILED {}\n  {}\n", options.ToString(), result.violation);
  std::fflush(stdout);
}

void PrintProgress(const Totals& totals, std::uint64_t of, double seconds) {
  const double rate = static_cast<double>(totals.seeds) / seconds;
  const double left = static_cast<double>(of - totals.seeds) / rate;
  fmt::print(stderr, "{} of {} seeds, {} violations, {:.0f} seeds a minute, {:.0f} s left\n",
             totals.seeds, of, totals.violations, rate * 60, left);
}

void PrintTotals(const Totals& totals, double seconds) {
  nlohmann::ordered_json faults;
  for (int k = 0; k < muster::sim::kFaultKinds; ++k) {
    const auto kind = static_cast<muster::sim::FaultKind>(k);
    faults[muster::sim::NameOf(kind)] = totals.faults[static_cast<std::size_t>(k)];
  }
  nlohmann::ordered_json line;
  line["seeds"] = totals.seeds;
  line["events"] = totals.events;
  line["steps"] = totals.steps;
  line["generations"] = totals.reforms;
  line["rollbacks"] = totals.rollbacks;
  line["group_ids"] = totals.group_ids;
  line["faults"] = faults;
  line["seconds"] = seconds;
  line["seeds_per_minute"] = static_cast<double>(totals.seeds) / seconds * 60;
  line["violations"] = totals.violations;
  fmt::print("{}\n", line.dump());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Runs the cores of Muster in virtual time under faults drawn from seeds."};
  std::uint64_t first = 1;
  std::uint64_t count = 1000;
  bool trace = false;
  app.add_option("--seed", first, "first seed")->capture_default_str();
  app.add_option("--seeds,--count", count, "how many seeds")->capture_default_str();
  app.add_flag("--trace", trace, "print every event of the runs that fail, or of the only one");
  muster::sim::ExploreCommand explore;
  CLI::App* exploring =
      app.add_subcommand("explore", "all interleavings of a small job, with a budget of faults");
  explore.AddOptions(*exploring);
  std::int32_t workers = 10'000;
  CLI::App* scale = app.add_subcommand("scale", "what a job of very many workers costs");
  scale->add_option("--workers", workers, "in the first generation")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (*exploring) return explore.Run();
  if (*scale) return muster::sim::RunScale(workers);
  Totals totals;
  const Clock::time_point begun = Clock::now();
  Clock::time_point said = begun;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    muster::sim::Options options = muster::sim::Options::Draw(seed);
    options.trace = trace;
    const muster::sim::RunResult result = muster::sim::World(options).Run();
    totals.Add(result);
    if (!result.violation.empty()) {
      PrintFailure(options, result);
    } else if (count == 1 && trace) {
      for (const std::string& line : result.trace) fmt::print("{}\n", line);
      fmt::print("passed {}\n", options.ToString());
    }
    if (SecondsSince(said) < 10) continue;
    said = Clock::now();
    PrintProgress(totals, count, SecondsSince(begun));
  }
  PrintTotals(totals, SecondsSince(begun));
  return totals.violations == 0 ? 0 : 1;
}
