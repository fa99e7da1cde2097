#include "chaos/sim/options.h"

#include <fmt/format.h>

#include <algorithm>

#include "protocol/codec.h"

namespace muster::sim {

const char* NameOf(FaultKind kind) {
  static constexpr const char* kNames[kFaultKinds] = {"kill",         "host-lost",
                                                      "pause",        "cut-connection",
                                                      "block-up",     "block-down",
                                                      "block-both",   "block-peers",
                                                      "slow-link",    "stuck",
                                                      "slow-compute", "coordinator-crash",
                                                      "store-lost",   "coordinator-pause",
                                                      "damage",       "disk-full",
                                                      "leave",        "launcher-lost",
                                                      "flap",         "cut-group"};
  return kNames[static_cast<int>(kind)];
}

Options Options::Draw(std::uint64_t seed) {
  Prng prng(seed);
  const auto below = [&](int bound) {
    return static_cast<int>(prng.Below(static_cast<std::uint64_t>(bound)));
  };
  Options o;
  o.seed = seed;
  o.workers = 2 + below(5);
  o.workers_per_node = prng.Chance(1, 3) ? 2 : 1;
  o.max_workers = prng.Chance(1, 4) && o.workers > 2 ? o.workers - 1 : o.workers;
  o.min_workers = 1 + below(o.max_workers);
  o.sharded = prng.Chance(1, 2);
  o.checkpoints = prng.Chance(1, 2);
  o.steps = prng.Chance(1, 6) ? 30 + below(200) : 0;
  o.save_every = prng.Chance(1, 3) ? 1 + below(4) : 5 + below(30);
  o.launchers = prng.Chance(1, 2);
  o.faults = 1 + below(prng.Chance(1, 2) ? 8 : 24);
  for (int k = 0; k < kFaultKinds; ++k) {
    const bool rare = static_cast<FaultKind>(k) == FaultKind::kStoreLost;
    if (prng.Chance(1, rare ? 4 : 2)) o.kinds |= 1U << static_cast<unsigned>(k);
  }
  if (o.kinds == 0) o.kinds = 1;
  o.dense = prng.Chance(1, 2);
  o.step = Duration::Millis(5 + below(200));
  o.delay = Duration::Micros(50 + below(5000));
  o.lease = Duration::Millis(1000 + below(2000));
  o.drift_ppm = prng.Chance(1, 2) ? below(500) : 0;
  o.autonomy =
      prng.Chance(1, 2) ? Duration::Seconds(40) : o.lease * 2 + Duration::Millis(below(4000));
  o.spread = prng.Chance(1, 3) ? Duration::Millis(below(4000)) : Duration::Millis(50);
  o.slow_aborts = prng.Chance(1, 3);
  o.keep_every = prng.Chance(1, 4) ? o.save_every * (2 + below(4)) : 0;
  o.pins = prng.Chance(1, 3);
  o.total_loss = prng.Chance(1, 2);
  o.backend = prng.Chance(1, 2) ? Backend::kNccl : Backend::kTcp;
  return o;
}

std::string Options::ToString() const {
  std::string faults_text;
  for (int k = 0; k < kFaultKinds; ++k) {
    const auto kind = static_cast<FaultKind>(k);
    if (Has(kind)) faults_text += fmt::format("{}{}", faults_text.empty() ? "" : ",", NameOf(kind));
  }
  return fmt::format(
      "seed={} workers={} per_node={} min={} max={} sharded={} checkpoints={} steps={} "
      "save_every={} launchers={} faults={} dense={} step_ms={} delay_us={} lease_ms={} "
      "drift_ppm={} autonomy_ms={} spread_ms={} slow_aborts={} keep_every={} pins={} total_loss={} "
      "backend={} kinds={}",
      seed, workers, workers_per_node, min_workers, max_workers, sharded, checkpoints, steps,
      save_every, launchers, faults, dense, step.millis(), delay.nanos() / 1000, lease.millis(),
      drift_ppm, autonomy.millis(), spread.millis(), slow_aborts, keep_every, pins, total_loss,
      muster::NameOf(backend), faults_text);
}

}  // namespace muster::sim
