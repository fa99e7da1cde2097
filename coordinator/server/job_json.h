// What the HTTP interface says of jobs, as JSON text. The keys are part of the interface: tools and
// tests read them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "coordinator/core/describe.h"
#include "protocol/time.h"

namespace muster::coordinator {

// One moment on both clocks: turns instants into wall-clock times.
struct ClockPair {
  Instant now;
  double unix_ms = 0;

  [[nodiscard]] double UnixMillis(Instant at) const { return unix_ms + (at - now).ToMillis(); }
};
[[nodiscard]] ClockPair ReadClocks();

// {number, cause, from, to, world_before, world_after, noticed_unix_ms, blamed[], phases_ms{}, …}
[[nodiscard]] nlohmann::json IncidentJson(const Incident& incident, const ClockPair& clocks);
// GET /v1/jobs/{job}.
[[nodiscard]] nlohmann::json JobJson(const JobView& view, const ClockPair& clocks);
// An entry of GET /v1/jobs: {job, phase, generation, world_size, committed, loss, waiting_for,
// workers (a number)}.
[[nodiscard]] nlohmann::json SummaryJson(const JobView& view);

}  // namespace muster::coordinator
