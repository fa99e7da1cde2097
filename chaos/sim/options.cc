#include "chaos/sim/options.h"

#include <fmt/format.h>

namespace muster::sim {

Options Options::Draw(std::uint64_t seed) {
  Prng prng(seed);
  Options o;
  o.seed = seed;
  o.workers = 2 + static_cast<int>(prng.Below(4));
  o.max_workers = prng.Chance(1, 4) && o.workers > 2 ? o.workers - 1 : o.workers;
  o.min_workers = 1 + static_cast<int>(prng.Below(static_cast<std::uint64_t>(o.max_workers)));
  o.sharded = prng.Chance(1, 2);
  o.launchers = prng.Chance(1, 2);
  o.faults = 1 + static_cast<int>(prng.Below(8));
  o.kills = prng.Chance(3, 4);
  o.pauses = prng.Chance(1, 2);
  o.coordinator_crashes = prng.Chance(1, 2);
  o.partitions = prng.Chance(1, 2);
  o.leaves = prng.Chance(1, 4);
  o.step = Duration::Millis(5 + static_cast<std::int64_t>(prng.Below(200)));
  o.delay = Duration::Micros(50 + static_cast<std::int64_t>(prng.Below(5000)));
  return o;
}

std::string Options::ToString() const {
  return fmt::format(
      "seed={} workers={} min={} max={} sharded={} launchers={} faults={} kills={} pauses={} "
      "coordinator_crashes={} partitions={} leaves={} step_ms={} delay_us={}",
      seed, workers, min_workers, max_workers, sharded, launchers, faults, kills, pauses,
      coordinator_crashes, partitions, leaves, step.millis(), delay.nanos() / 1000);
}

}  // namespace muster::sim
