// Faults, and what it took to recover from them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "chaos/live/supervisor.h"

namespace muster::chaos {

struct Fault {
  std::string worker;
  std::int64_t pid = 0;
  std::int64_t generation = 0;  // that the worker was in
  std::int64_t last_step = 0;   // that it had committed
  std::int64_t unix_ns = 0;     // when kill() had returned
  double into_step_ms = 0;      // since that commit
  double step_ms = 0;           // the usual time from a commit to the next
};

// Sends `signal` to the worker process of `node`, in the middle of a step: after its next commit,
// once `fraction` of the usual time of a step has passed. Errors: no such worker, no commit within
// 30 s, or it ended by itself.
[[nodiscard]] Result<Fault> Strike(Lab& lab, const std::string& job, const std::string& node,
                                   int signal, double fraction);

// The members that are on other nodes, by name.
[[nodiscard]] std::vector<std::string> OthersThan(const JobStatus& job, const std::string& node);

// Milliseconds from the fault to the first commit of the last of `survivors` (worker names) in a
// later generation; waits for it.
[[nodiscard]] Result<double> AwaitRecovery(Lab& lab, const std::string& job, const Fault& fault,
                                           const std::vector<std::string>& survivors,
                                           Duration limit);

// The incident that blames the worker, once the first step after it is committed; waits for it.
[[nodiscard]] Result<IncidentStatus> AwaitIncident(Lab& lab, const std::string& job,
                                                   const Fault& fault, Duration limit);

// Time from the fault to the coordinator's first evidence.
[[nodiscard]] double DetectMillis(const Fault& fault, const IncidentStatus& incident);

}  // namespace muster::chaos
