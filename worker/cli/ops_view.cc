#include "worker/cli/ops_view.h"

#include <fmt/format.h>
#include <poll.h>
#include <time.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "worker/cli/text.h"

namespace muster::cli {
namespace {

using Json = nlohmann::json;

constexpr int kIntervalMs = 1000;

std::int64_t Nanos(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

const char* OutcomeText(FlightOutcome outcome) {
  switch (outcome) {
    case FlightOutcome::kRunning: return "running";
    case FlightOutcome::kOk: return "ok";
    case FlightOutcome::kFailed: return "failed";
  }
  return "?";
}

std::string StateText(const OpsRow& row) {
  if (!row.last) return "-";
  const std::string age = AgeText(row.age_ms);
  switch (row.last->outcome) {
    case FlightOutcome::kRunning:
      return row.liveness == Liveness::kDead ? "died in it, begun " + age + " ago"
                                             : "in it for " + age;
    case FlightOutcome::kOk: return "done " + age + " ago";
    case FlightOutcome::kFailed: return "failed " + age + " ago";
  }
  return "?";
}

std::string RankText(const OpsRow& row) {
  return row.rank.value() < 0 ? "-" : fmt::format("{}", row.rank.value());
}

void AppendJob(const JobOps& job, std::string* out) {
  *out += fmt::format("job {}: generation {}, {}\n\n", Printable(job.job), job.generation.value(),
                      Plural(job.world_size, "worker"));
  Table table;
  table.Add({"RANK", "WORKER", "HOST", "PID", "LIFE", "GENERATION", "LAST OPERATION", "STATE"});
  for (const OpsRow& row : job.rows) {
    table.Add({row.current ? RankText(row) : "(" + RankText(row) + ")", Printable(row.worker),
               Printable(row.host), fmt::format("{}", row.pid), LivenessText(row.liveness),
               row.generation.value() == 0 ? "-" : fmt::format("{}", row.generation.value()),
               row.last ? OperationText(*row.last) : "none", StateText(row)});
  }
  table.AppendTo(out);
  *out += "\n";
  for (const std::string& line : job.verdict) *out += line + "\n";
}

Json JsonOf(const OpsRow& row) {
  Json json = {{"worker", row.worker},   {"host", row.host},
               {"pid", row.pid},         {"life", LivenessText(row.liveness)},
               {"path", row.path},       {"generation", row.generation.value()},
               {"current", row.current}, {"rank", row.rank.value()}};
  if (row.liveness == Liveness::kUnknown) json["life"] = "unknown";
  if (row.last) {
    const FlightEntry& last = *row.last;
    json["operation"] = {{"number", last.number}, {"kind", FlightKindName(last.kind)},
                         {"bytes", last.bytes},   {"peer", last.peer},
                         {"age_ms", row.age_ms},  {"outcome", OutcomeText(last.outcome)}};
  }
  return json;
}

Result<std::string> OpsText(const OpsOptions& options) {
  const std::string directory =
      options.directory.empty() ? DefaultFlightDirectory() : options.directory;
  Result<FlightFolder> folder = ReadFlights(directory);
  if (!folder.ok()) {
    // Nobody has made it yet.
    const bool none = folder.status().code() == Code::kNotFound && options.directory.empty();
    if (!none) return folder.status();
    folder = FlightFolder();
  }
  const OpsNow now = {Nanos(CLOCK_MONOTONIC), Nanos(CLOCK_REALTIME), ThisProcess({}, {}).pid_space};
  const std::vector<JobOps> jobs = CompareOps(folder->flights, now, options.job);
  if (options.json) return OpsJson(jobs, folder->unreadable);
  if (!jobs.empty() || !folder->unreadable.empty()) return RenderOps(jobs, folder->unreadable);
  return fmt::format(
      "no flight rings{} in {}: no worker runs on this host as this user, or it "
      "keeps its rings elsewhere (MUSTER_FLIGHT_DIR, --flight-dir)\n",
      options.job.empty() ? "" : " of job " + Printable(options.job), directory);
}

}  // namespace

std::string RenderOps(const std::vector<JobOps>& jobs, const std::vector<std::string>& unreadable) {
  std::string out;
  for (const JobOps& job : jobs) {
    if (!out.empty()) out += "\n";
    AppendJob(job, &out);
  }
  if (!unreadable.empty() && !out.empty()) out += "\n";
  for (const std::string& line : unreadable) out += "unreadable: " + Printable(line) + "\n";
  return out;
}

std::string OpsJson(const std::vector<JobOps>& jobs, const std::vector<std::string>& unreadable) {
  Json list = Json::array();
  for (const JobOps& job : jobs) {
    Json workers = Json::array();
    for (const OpsRow& row : job.rows) workers.push_back(JsonOf(row));
    list.push_back({{"job", job.job},
                    {"generation", job.generation.value()},
                    {"world_size", job.world_size},
                    {"workers", std::move(workers)},
                    {"verdict", job.verdict}});
  }
  const Json json = {{"jobs", std::move(list)}, {"unreadable", unreadable}};
  // Names are any bytes.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

int RunOps(const OpsOptions& options) {
  for (;;) {
    const Result<std::string> text = OpsText(options);
    if (!text.ok()) {
      fmt::print(stderr, "muster: {}\n", text.status().message());
      return 1;
    }
    if (options.repeat && !options.json) fmt::print("\x1b[H\x1b[2J");
    fmt::print("{}", *text);
    std::fflush(stdout);
    if (!options.repeat) return 0;
    poll(nullptr, 0, kIntervalMs);
  }
}

}  // namespace muster::cli
