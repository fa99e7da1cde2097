// What a job of very many workers costs the coordinator: its real core is driven through the
// forming of the job, the loss of a node and of a rack, and growth, in virtual time.
//
// The workers are stand-ins that answer as a worker::Session does, and hold a few numbers each. A
// Session holds the member list of its generation and searches it: on as many machines as there are
// workers that is little, but all of them in one process would be the square of the workers, and
// what is measured here is the coordinator.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "protocol/time.h"

namespace muster::sim {

struct ScaleOptions {
  std::int32_t workers = 10'000;
  std::int32_t workers_per_node = 8;
  std::int32_t rack = 256;                // workers in a rack
  std::int32_t growth = 512;              // workers that come later
  Duration quiet = Duration::Seconds(5);  // of heartbeats alone, in the end
  // What was spent so far: nanoseconds of a clock, or anything else that grows with the work. Read
  // before and after each call of the core. Null: nothing is measured.
  std::function<std::int64_t()> meter;
};

// Calls of the core, and what they took.
struct ScaleCost {
  std::int64_t received = 0;  // messages
  std::int64_t sent = 0;
  std::int64_t calls = 0;       // messages, closed sessions and deadlines
  std::int64_t spent = 0;       // by the meter
  std::int64_t most_sent = 0;   // in one call
  std::int64_t most_spent = 0;  // in one call

  [[nodiscard]] std::int64_t messages() const { return received + sent; }
};

struct ScalePhase {
  std::string name;
  std::int64_t decisions = 0;   // generations that were decided
  std::int32_t world_size = 0;  // in the end
  Duration took;                // in virtual time, delays of messages and timeouts included
  ScaleCost protocol;           // all but:
  ScaleCost heartbeats;         // with their acknowledgements
};

struct ScaleResult {
  std::string problem;  // empty: everything went as it must
  std::vector<ScalePhase> phases;
};

[[nodiscard]] ScaleResult MeasureScale(const ScaleOptions& options);

}  // namespace muster::sim
