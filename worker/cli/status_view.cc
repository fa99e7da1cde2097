#include "worker/cli/status_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "worker/cli/text.h"

namespace muster::cli {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kIncidentsShown = 5;
constexpr std::size_t kCheckpointsShown = 5;

Result<Json> Parse(std::string_view text, const char* what) {
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) {
    return DataLoss(
        fmt::format("the answer for {} is no JSON object; is it a Muster coordinator "
                    "that listens there?",
                    what));
  }
  return json;
}

// The field, or null when there is none.
const Json& Field(const Json& json, const char* name) {
  static const Json nothing;
  if (!json.is_object()) return nothing;
  const auto found = json.find(name);
  return found == json.end() ? nothing : *found;
}

// The array in a field; an empty one for anything else.
const Json& Items(const Json& json, const char* name) {
  static const Json none = Json::array();
  const Json& field = Field(json, name);
  return field.is_array() ? field : none;
}

double Number(const Json& json, const char* name, double otherwise = 0) {
  const Json& field = Field(json, name);
  return field.is_number() ? field.get<double>() : otherwise;
}

// Text for people: strings as they are without control characters (they come from other machines),
// integers in full, "?" when missing.
std::string Text(const Json& json, const char* name) {
  const Json& field = Field(json, name);
  if (field.is_number_integer()) return fmt::format("{}", field.get<std::int64_t>());
  if (field.is_number_float()) return fmt::format("{:.4f}", field.get<double>());
  if (!field.is_string()) return "?";
  return Printable(field.get<std::string>());
}

bool True(const Json& json, const char* name) {
  const Json& field = Field(json, name);
  return field.is_boolean() && field.get<bool>();
}

void AppendHead(const Json& job, std::string* out) {
  const Json& spec = Field(job, "spec");
  *out += fmt::format("job {}: {}, generation {}, {}", Text(job, "job"), Text(job, "phase"),
                      Text(job, "generation"), Plural(Number(job, "world_size"), "worker"));
  if (spec.is_object()) {
    *out += fmt::format(" (min {}, max {})", Text(spec, "min_workers"), Text(spec, "max_workers"));
  }
  if (Text(spec, "backend") == "nccl") *out += ", over NCCL";
  *out += fmt::format(", step {}", Text(job, "committed"));
  if (Number(spec, "steps") > 0) *out += fmt::format(" of {}", Text(spec, "steps"));
  if (Number(job, "committed") > 0) *out += fmt::format(", loss {:.4f}", Number(job, "loss"));
  *out += "\n";
  const Json& waiting = Field(job, "waiting_for");
  if (waiting.is_string() && !waiting.get_ref<const std::string&>().empty()) {
    *out += fmt::format("waiting for: {}\n", Text(job, "waiting_for"));
  }
  if (const Json& end = Field(job, "end"); end.is_object()) {
    *out += fmt::format("ended: {} at step {}: {}\n", Text(end, "kind"), Text(end, "step"),
                        Text(end, "reason"));
  }
}

void AppendWorkers(const Json& job, std::string* out) {
  Table table;
  table.Add({"RANK", "WORKER", "NODE", "PID", "ROLE", "STATE", "HEARD", "STEP", "STAGE"});
  for (const Json& worker : Items(job, "workers")) {
    const double rank = Number(worker, "rank", -1);
    std::string state = Text(worker, "state");
    if (!True(worker, "connected")) state += ", disconnected";
    std::string stage = Text(worker, "stage");
    if (const std::string phase = Text(worker, "phase"); phase != "?" && !phase.empty()) {
      stage += ": " + phase;
    }
    table.Add({rank < 0 ? "-" : fmt::format("{:.0f}", rank), Text(worker, "worker"),
               Text(worker, "node"), Text(worker, "pid"), Text(worker, "role"), state,
               AgeText(Number(worker, "last_heard_ms")) + " ago", Text(worker, "committed"),
               stage});
  }
  if (!Items(job, "workers").empty()) {
    *out += "\n";
    table.AppendTo(out);
  } else if (!Field(job, "end").is_object()) {
    *out += "\nno workers\n";
  }
}

// A line above all others when the coordinator cannot store its decisions.
std::string NotReady(const Json& answer) {
  const std::string why = Text(answer, "not_ready");
  return why == "?" ? "" : fmt::format("coordinator: {}\n", why);
}

void AppendIncident(const Json& incident, std::string* out) {
  *out += fmt::format("  #{} {} {}: {} -> {} workers, generation {} -> {}",
                      Text(incident, "number"), TimeText(Number(incident, "noticed_unix_ms")),
                      Text(incident, "cause"), Text(incident, "world_before"),
                      Text(incident, "world_after"), Text(incident, "from"), Text(incident, "to"));
  *out += fmt::format("\n    state at step {} from {}", Text(incident, "restored_step"),
                      Text(incident, "restored_from"));
  if (const double redone = Number(incident, "steps_redone"); redone > 0) {
    *out += fmt::format(", {} redone", Plural(redone, "step"));
  }
  if (const double attempts = Number(incident, "attempts"); attempts > 1) {
    *out += fmt::format(", {:.0f} attempts", attempts);
  }
  *out += True(incident, "complete") ? "\n" : ", going on\n";
  const Json& phases = Field(incident, "phases_ms");
  if (phases.is_object()) {
    *out += "    ";
    double total = 0;
    for (const char* phase : {"abort", "ready", "form", "restore", "first_step"}) {
      *out += fmt::format("{} {:.1f}, ", phase, Number(phases, phase));
      total += Number(phases, phase);
    }
    *out += fmt::format("together {:.1f} ms\n", total);
  }
  for (const Json& blame : Items(incident, "blamed")) {
    *out += fmt::format("    blamed: {} ({}): {}\n", Text(blame, "worker"), Text(blame, "cause"),
                        Text(blame, "evidence"));
  }
}

void AppendIncidents(const Json& job, std::string* out) {
  const Json& incidents = Items(job, "incidents");
  if (incidents.empty()) return;
  *out += fmt::format("\nincidents ({} in all, newest first)\n", incidents.size());
  const std::size_t shown = std::min(incidents.size(), kIncidentsShown);
  for (std::size_t i = 0; i < shown; ++i) AppendIncident(incidents[incidents.size() - 1 - i], out);
}

void AppendCheckpoints(const Json& job, std::string* out) {
  const Json& checkpoints = Items(job, "checkpoints");
  const double aborted = Number(job, "saves_aborted");
  if (checkpoints.empty() && aborted == 0) return;
  *out += "\ncheckpoints";
  if (const std::string root = Text(Field(job, "spec"), "checkpoint_directory"); root != "?") {
    *out += " in " + root;
  }
  if (aborted > 0) *out += fmt::format(" ({} given up)", Plural(aborted, "save"));
  *out += "\n";
  Table table;
  const std::size_t shown = std::min(checkpoints.size(), kCheckpointsShown);
  for (std::size_t i = 0; i < shown; ++i) {
    const Json& checkpoint = checkpoints[i];
    const std::string note = Text(checkpoint, "note");
    table.Add({"  step " + Text(checkpoint, "step"), Text(checkpoint, "state"),
               Plural(Number(checkpoint, "world_size"), "shard"),
               BytesText(Number(checkpoint, "bytes")), Text(checkpoint, "directory"),
               note == "?" ? "" : note});
  }
  table.AppendTo(out);
}

}  // namespace

Result<std::string> RenderJob(std::string_view json) {
  const Result<Json> job = Parse(json, "the job");
  if (!job.ok()) return job.status();
  std::string out = NotReady(*job);
  AppendHead(*job, &out);
  AppendWorkers(*job, &out);
  AppendIncidents(*job, &out);
  AppendCheckpoints(*job, &out);
  return out;
}

Result<std::vector<std::string>> JobNames(std::string_view json) {
  const Result<Json> parsed = Parse(json, "the list of jobs");
  if (!parsed.ok()) return parsed.status();
  std::vector<std::string> names;
  for (const Json& job : Items(*parsed, "jobs")) {
    names.push_back(job.is_string() ? job.get<std::string>() : Text(job, "job"));
  }
  return names;
}

Result<std::string> RenderJobs(std::string_view json) {
  const Result<Json> parsed = Parse(json, "the list of jobs");
  if (!parsed.ok()) return parsed.status();
  const Json& jobs = Items(*parsed, "jobs");
  if (jobs.empty()) {
    return NotReady(*parsed) + "no jobs; the first worker of one creates it\n";
  }
  Table table;
  table.Add({"JOB", "PHASE", "GENERATION", "WORKERS", "STEP", "LOSS"});
  for (const Json& job : jobs) {
    table.Add({Text(job, "job"), Text(job, "phase"), Text(job, "generation"),
               Text(job, "world_size"), Text(job, "committed"),
               fmt::format("{:.4f}", Number(job, "loss"))});
  }
  std::string out = NotReady(*parsed);
  table.AppendTo(&out);
  return out;
}

Result<EventLines> RenderEvents(std::string_view json) {
  const Result<Json> parsed = Parse(json, "the events");
  if (!parsed.ok()) return parsed.status();
  EventLines lines;
  const Json& next = Field(*parsed, "next");
  if (!next.is_number_integer()) return DataLoss("the answer for the events has no `next`");
  lines.next = next.get<std::int64_t>();
  for (const Json& event : Items(*parsed, "events")) {
    lines.text += fmt::format("{:>5} {} g{} step {} {}", Text(event, "seq"),
                              TimeText(Number(event, "unix_ms")), Text(event, "generation"),
                              Text(event, "step"), Text(event, "kind"));
    if (Field(event, "worker").is_string()) lines.text += " " + Text(event, "worker");
    const std::string detail = Text(event, "detail");
    if (detail != "?" && !detail.empty()) lines.text += ": " + detail;
    lines.text += "\n";
  }
  return lines;
}

}  // namespace muster::cli
