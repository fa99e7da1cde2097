// What one simulated run is made of: drawn from its seed, so that the seed names the run.
#pragma once

#include <cstdint>
#include <string>

#include "protocol/prng.h"
#include "protocol/time.h"

namespace muster::sim {

struct Options {
  std::uint64_t seed = 0;
  int workers = 4;  // processes; one launcher each
  int min_workers = 1;
  int max_workers = 4;
  bool sharded = false;   // state dies with its rank; checkpoints are needed
  bool launchers = true;  // attest deaths
  int faults = 6;         // in the faulty phase
  bool kills = true;
  bool pauses = true;
  bool coordinator_crashes = true;
  bool partitions = true;  // of a worker from the coordinator alone
  bool leaves = false;
  Duration step = Duration::Millis(20);
  Duration delay = Duration::Millis(2);  // the most, of a message
  Duration faulty_phase = Duration::Seconds(20);
  Duration liveness_bound = Duration::Seconds(60);  // from the last fault to 20 more steps
  bool trace = false;

  [[nodiscard]] static Options Draw(std::uint64_t seed);
  // One line.
  [[nodiscard]] std::string ToString() const;
};

}  // namespace muster::sim
