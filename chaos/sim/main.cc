// muster-sim: runs simulated jobs by seed and reports the first promise that one of them breaks.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>

#include "chaos/sim/cluster.h"
#include "chaos/sim/scale_main.h"

int main(int argc, char** argv) {
  CLI::App app{"Runs the cores of Muster in virtual time under faults drawn from seeds."};
  std::uint64_t first = 1;
  std::uint64_t count = 100;
  bool trace = false;
  app.add_option("--seed", first, "first seed")->capture_default_str();
  app.add_option("--count", count, "how many seeds")->capture_default_str();
  app.add_flag("--trace", trace, "print every event of a run that fails");
  std::int32_t workers = 10'000;
  CLI::App* scale = app.add_subcommand("scale", "what a job of very many workers costs");
  scale->add_option("--workers", workers, "in the first generation")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (*scale) return muster::sim::RunScale(workers);
  std::uint64_t failed = 0;
  std::int64_t steps = 0;
  std::int64_t reforms = 0;
  std::int64_t rollbacks = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    muster::sim::Options options = muster::sim::Options::Draw(seed);
    options.trace = trace;
    const muster::sim::RunResult result = muster::sim::Cluster(options).Run();
    steps += result.steps;
    reforms += result.reforms;
    rollbacks += result.rollbacks;
    if (result.violation.empty()) continue;
    ++failed;
    for (const std::string& line : result.trace) fmt::print("{}\n", line);
    fmt::print("FAILED {}\n  {}\n", options.ToString(), result.violation);
    std::fflush(stdout);
  }
  fmt::print("{} seeds, {} failed; {} steps, {} generations, {} rollbacks\n", count, failed, steps,
             reforms, rollbacks);
  return failed == 0 ? 0 : 1;
}
