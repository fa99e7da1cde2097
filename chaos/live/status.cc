#include "chaos/live/status.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>

namespace muster::chaos {
namespace {

using Json = nlohmann::json;

template <class T>
void Get(const Json& json, const char* key, T* value) {
  json.at(key).get_to(*value);
}

// Some fields are left out, or null, when there is nothing to say.
template <class T>
void GetIfThere(const Json& json, const char* key, T* value) {
  if (const auto found = json.find(key); found != json.end() && !found->is_null()) {
    found->get_to(*value);
  }
}

WorkerStatus WorkerOf(const Json& json) {
  WorkerStatus worker;
  Get(json, "worker", &worker.worker);
  Get(json, "incarnation", &worker.incarnation);
  Get(json, "node", &worker.node);
  Get(json, "pid", &worker.pid);
  Get(json, "role", &worker.role);
  Get(json, "state", &worker.state);
  GetIfThere(json, "rank", &worker.rank);
  Get(json, "connected", &worker.connected);
  Get(json, "committed", &worker.committed);
  GetIfThere(json, "stage", &worker.stage);
  return worker;
}

CheckpointStatus CheckpointOf(const Json& json) {
  CheckpointStatus checkpoint;
  Get(json, "step", &checkpoint.step);
  Get(json, "generation", &checkpoint.generation);
  Get(json, "state", &checkpoint.state);
  Get(json, "world_size", &checkpoint.world_size);
  Get(json, "directory", &checkpoint.directory);
  return checkpoint;
}

BlameStatus BlameOf(const Json& json) {
  BlameStatus blame;
  Get(json, "worker", &blame.worker);
  Get(json, "incarnation", &blame.incarnation);
  Get(json, "cause", &blame.cause);
  Get(json, "evidence", &blame.evidence);
  return blame;
}

IncidentStatus IncidentOf(const Json& json) {
  IncidentStatus incident;
  Get(json, "number", &incident.number);
  Get(json, "cause", &incident.cause);
  Get(json, "from", &incident.from);
  Get(json, "to", &incident.to);
  Get(json, "world_before", &incident.world_before);
  Get(json, "world_after", &incident.world_after);
  Get(json, "noticed_unix_ms", &incident.noticed_unix_ms);
  for (const Json& blame : json.at("blamed")) incident.blamed.push_back(BlameOf(blame));
  Get(json, "phases_ms", &incident.phases_ms);
  GetIfThere(json, "restored_from", &incident.restored_from);
  GetIfThere(json, "restored_step", &incident.restored_step);
  GetIfThere(json, "steps_redone", &incident.steps_redone);
  GetIfThere(json, "attempts", &incident.attempts);
  Get(json, "complete", &incident.complete);
  return incident;
}

void ReadSpec(const Json& spec, JobStatus* job) {
  Get(spec, "samples", &job->epoch_samples);
  GetIfThere(spec, "global_batch", &job->global_batch);
  GetIfThere(spec, "steps", &job->steps);
  GetIfThere(spec, "min_workers", &job->min_workers);
  GetIfThere(spec, "max_workers", &job->max_workers);
  GetIfThere(spec, "checkpoint_every", &job->checkpoint_every);
  GetIfThere(spec, "failure_timeout_ns", &job->failure_timeout_ms);
  job->failure_timeout_ms /= 1e6;
  GetIfThere(spec, "checkpoint_directory", &job->checkpoint_root);
}

JobStatus JobOf(const Json& json) {
  JobStatus job;
  Get(json, "job", &job.job);
  Get(json, "phase", &job.phase);
  Get(json, "generation", &job.generation);
  Get(json, "world_size", &job.world_size);
  Get(json, "committed", &job.committed);
  GetIfThere(json, "loss", &job.loss);
  GetIfThere(json, "waiting_for", &job.waiting_for);
  ReadSpec(json.at("spec"), &job);
  for (const Json& worker : json.at("workers")) job.workers.push_back(WorkerOf(worker));
  for (const Json& entry : json.at("checkpoints")) job.checkpoints.push_back(CheckpointOf(entry));
  for (const Json& incident : json.at("incidents")) job.incidents.push_back(IncidentOf(incident));
  GetIfThere(json, "saves_aborted", &job.saves_aborted);
  if (const auto end = json.find("end"); end != json.end() && end->is_object()) {
    Get(*end, "kind", &job.end_kind);
    Get(*end, "reason", &job.end_reason);
  }
  return job;
}

EventStatus EventOf(const Json& json) {
  EventStatus event;
  Get(json, "seq", &event.sequence);
  Get(json, "unix_ms", &event.unix_ms);
  Get(json, "kind", &event.kind);
  GetIfThere(json, "generation", &event.generation);
  GetIfThere(json, "step", &event.step);
  GetIfThere(json, "worker", &event.worker);
  GetIfThere(json, "incarnation", &event.incarnation);
  GetIfThere(json, "detail", &event.detail);
  return event;
}

}  // namespace

std::size_t JobStatus::Count(std::string_view role) const {
  return static_cast<std::size_t>(std::count_if(
      workers.begin(), workers.end(),
      [&](const WorkerStatus& worker) { return worker.role == role && worker.connected; }));
}

const WorkerStatus* JobStatus::OnNode(std::string_view node) const {
  const auto found = std::find_if(workers.begin(), workers.end(),
                                  [&](const WorkerStatus& worker) { return worker.node == node; });
  return found == workers.end() ? nullptr : &*found;
}

const WorkerStatus* JobStatus::Named(std::string_view worker) const {
  const auto found = std::find_if(workers.begin(), workers.end(), [&](const WorkerStatus& entry) {
    return entry.worker == worker;
  });
  return found == workers.end() ? nullptr : &*found;
}

Result<JobStatus> ParseJobStatus(std::string_view text) {
  try {
    return JobOf(Json::parse(text));
  } catch (const std::exception& error) {
    return DataLoss(fmt::format("not the status of a job: {}", error.what()));
  }
}

Result<std::vector<EventStatus>> ParseEvents(std::string_view text) {
  try {
    std::vector<EventStatus> events;
    const Json json = Json::parse(text);
    for (const Json& event : json.at("events")) events.push_back(EventOf(event));
    return events;
  } catch (const std::exception& error) {
    return DataLoss(fmt::format("not a list of events: {}", error.what()));
  }
}

}  // namespace muster::chaos
