// The part of muster-sim that measures: it has the clock.
#include "chaos/sim/scale_main.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>

#include "chaos/sim/scale.h"

namespace muster::sim {

namespace {

std::int64_t Nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double Millis(std::int64_t nanos) { return static_cast<double>(nanos) / 1e6; }

double MicrosPerMessage(const ScaleCost& cost) {
  if (cost.messages() == 0) return 0;
  return static_cast<double>(cost.spent) / 1e3 / static_cast<double>(cost.messages());
}

nlohmann::json ToJson(const ScaleCost& cost) {
  return {{"received", cost.received},
          {"sent", cost.sent},
          {"calls", cost.calls},
          {"ms", Millis(cost.spent)},
          {"us_per_message", MicrosPerMessage(cost)},
          {"most_sent_in_a_call", cost.most_sent},
          {"longest_call_ms", Millis(cost.most_spent)}};
}

void PrintRow(const std::string& name, const ScalePhase& phase, const ScaleCost& cost) {
  fmt::print("{:<22} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9.1f} {:>9.2f} {:>9} {:>10.1f} {:>9.3f}\n",
             name, phase.world_size, phase.decisions, cost.received, cost.sent, cost.calls,
             Millis(cost.spent), MicrosPerMessage(cost), cost.most_sent, Millis(cost.most_spent),
             phase.took.ToSeconds());
}

}  // namespace

int RunScale(std::int32_t workers) {
  ScaleOptions options;
  options.workers = workers;
  options.meter = Nanoseconds;
  if (workers < 2 * (options.rack + options.workers_per_node)) {
    fmt::print(stderr, "muster-sim: --workers {} is too few to lose a rack of {} and go on\n",
               workers, options.rack);
    return 2;
  }
  const std::int64_t begun = Nanoseconds();
  const ScaleResult result = MeasureScale(options);
  nlohmann::json phases = nlohmann::json::object();
  fmt::print("{:<22} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10} {:>9}\n", "phase",
             "workers", "decisions", "received", "sent", "calls", "ms", "us/msg", "most sent",
             "longest ms", "virtual s");
  for (const ScalePhase& phase : result.phases) {
    if (phase.protocol.calls > 0) PrintRow(phase.name, phase, phase.protocol);
    if (phase.heartbeats.calls > 0) PrintRow("  its heartbeats", phase, phase.heartbeats);
    phases[phase.name] = {{"workers", phase.world_size},
                          {"decisions", phase.decisions},
                          {"virtual_s", phase.took.ToSeconds()},
                          {"protocol", ToJson(phase.protocol)},
                          {"heartbeats", ToJson(phase.heartbeats)}};
  }
  const double seconds = Millis(Nanoseconds() - begun) / 1e3;
  if (!result.problem.empty()) fmt::print("FAILED {}\n", result.problem);
  const nlohmann::json line = {{"workers", workers},
                               {"phases", phases},
                               {"seconds", seconds},
                               {"cpu_seconds", static_cast<double>(std::clock()) / CLOCKS_PER_SEC},
                               {"problem", result.problem}};
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
  return result.problem.empty() ? 0 : 1;
}

}  // namespace muster::sim
