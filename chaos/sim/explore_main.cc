#include "chaos/sim/explore_main.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace muster::sim {

namespace {
using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begun) {
  return std::chrono::duration<double>(Clock::now() - begun).count();
}

}  // namespace

void ExploreCommand::AddOptions(CLI::App& app) {
  Budget& budget = options.budget;
  app.add_option("--workers", options.job.workers, "processes")->capture_default_str();
  app.add_option("--min-workers", options.job.min_workers)->capture_default_str();
  app.add_option("--steps", options.job.steps, "after which the job ends")->capture_default_str();
  app.add_option("--skip-every", options.job.skip_every, "this step and its multiples are skipped")
      ->capture_default_str();
  app.add_flag("--sharded", options.job.sharded, "state dies with its rank");
  app.add_flag_callback(
      "--nccl", [this] { options.job.backend = Backend::kNccl; },
      "its members meet by an id that rank 0 mints");
  app.add_flag("--checkpoints", options.job.checkpoints, "of a replicated job");
  app.add_option("--save-every", options.job.save_every, "steps")->capture_default_str();
  app.add_flag("--launchers", options.job.launchers, "attest deaths");
  app.add_flag("--warm", warm, "begin when the first generation has started");
  app.add_option("--kills", budget.kills, "workers killed, and perhaps started again");
  app.add_option("--vanishings", budget.vanishings, "the same, without a word to anyone");
  app.add_option("--coordinator-crashes", budget.coordinator_crashes,
                 "the batch being synced is lost or not");
  app.add_option("--store-losses", budget.store_losses, "crashes that lose the store");
  app.add_option("--pauses", budget.pauses, "workers that stand still, and perhaps wake");
  app.add_option("--cuts", budget.cuts, "connections that break");
  app.add_option("--blocks", budget.blocks, "links between worker and coordinator that block");
  app.add_option("--early-timers", budget.early_timers, "timers that overtake what is pending");
  app.add_option("--leaves", budget.leaves, "workers asked to leave");
  app.add_option("--failures", budget.failures, "calls on the data plane that fail");
  app.add_option("--max-depth", options.max_depth)->capture_default_str();
  app.add_option("--max-states", options.max_states);
  app.add_option("--seconds", seconds, "to search at most");
}

int ExploreCommand::Run() {
  options.job.max_workers = options.job.workers;
  options.from_start = !warm;
  const Clock::time_point begun = Clock::now();
  Clock::time_point said = begun;
  const auto go_on = [&](const ExploreResult& so_far, std::size_t depth) {
    const double passed = SecondsSince(begun);
    if (SecondsSince(said) >= 5) {
      said = Clock::now();
      fmt::print(stderr, "{} states, {} transitions, depth {} (most {}), {:.0f} states/s\n",
                 so_far.states, so_far.transitions, depth, so_far.depth,
                 static_cast<double>(so_far.states) / passed);
    }
    return seconds <= 0 || passed < seconds;
  };
  const ExploreResult result = Explorer(options).Run(go_on);
  for (const std::string& line : result.path) fmt::print("{}\n", line);
  if (!result.violation.empty()) fmt::print("VIOLATION {}\n", result.violation);
  nlohmann::ordered_json line;
  line["states"] = result.states;
  line["transitions"] = result.transitions;
  line["depth"] = result.depth;
  line["complete"] = result.complete;
  line["violations"] = result.violation.empty() ? 0 : 1;
  line["seconds"] = SecondsSince(begun);
  fmt::print("{}\n", line.dump());
  return result.violation.empty() ? 0 : 1;
}

}  // namespace muster::sim
