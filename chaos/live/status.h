// What musterd's HTTP interface says of a job, as values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/status.h"

namespace muster::chaos {

struct WorkerStatus {
  std::string worker;
  std::string incarnation;
  std::string node;
  std::int64_t pid = 0;
  std::string role;   // "member", "waiting", "spare", "starting"
  std::string state;  // "alive", "suspect"
  std::int64_t rank = -1;
  bool connected = false;
  std::int64_t committed = 0;
  std::string stage;
};

struct CheckpointStatus {
  std::int64_t step = 0;
  std::int64_t generation = 0;
  std::string state;  // "announced", …
  std::int64_t world_size = 0;
  std::string directory;  // below the job's checkpoint root
};

struct BlameStatus {
  std::string worker;
  std::string incarnation;
  std::string cause;
  std::string evidence;
};

struct IncidentStatus {
  std::int64_t number = 0;
  std::string cause;
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t world_before = 0;
  std::int64_t world_after = 0;
  double noticed_unix_ms = 0;
  std::vector<BlameStatus> blamed;
  std::map<std::string, double> phases_ms;  // abort, ready, form, restore, first_step
  std::string restored_from;
  std::int64_t restored_step = 0;
  std::int64_t steps_redone = 0;
  std::int64_t attempts = 0;
  bool complete = false;
};

struct JobStatus {
  std::string job;
  std::string phase;  // "waiting", "forming", "running", "ended"
  std::int64_t generation = 0;
  std::int64_t world_size = 0;
  std::int64_t committed = 0;
  double loss = 0;
  std::string waiting_for;
  std::vector<WorkerStatus> workers;
  std::vector<CheckpointStatus> checkpoints;
  std::vector<IncidentStatus> incidents;
  std::int64_t saves_aborted = 0;
  // Of the spec.
  std::int64_t epoch_samples = 0;
  std::int64_t global_batch = 0;
  std::int64_t steps = 0;
  std::int64_t min_workers = 1;
  std::int64_t max_workers = 1;
  std::int64_t checkpoint_every = 0;
  double failure_timeout_ms = 0;
  std::string checkpoint_root;  // empty: it saves none
  std::string end_kind;         // "finished", "failed"; empty while it runs
  std::string end_reason;

  [[nodiscard]] bool ended() const { return phase == "ended"; }
  // Members that are connected, by role.
  [[nodiscard]] std::size_t Count(std::string_view role) const;
  // The worker of that node or of that name; null when there is none.
  [[nodiscard]] const WorkerStatus* OnNode(std::string_view node) const;
  [[nodiscard]] const WorkerStatus* Named(std::string_view worker) const;
};

struct EventStatus {
  std::int64_t sequence = 0;
  double unix_ms = 0;
  std::string kind;  // "worker_dead", …
  std::int64_t generation = 0;
  std::int64_t step = 0;
  std::string worker;
  std::string incarnation;
  std::string detail;
};

// The body of GET /v1/jobs/{job}. kDataLoss names the field that is missing or wrong.
[[nodiscard]] Result<JobStatus> ParseJobStatus(std::string_view text);
// The body of GET /v1/jobs/{job}/events.
[[nodiscard]] Result<std::vector<EventStatus>> ParseEvents(std::string_view text);

}  // namespace muster::chaos
