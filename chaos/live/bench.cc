#include "chaos/live/bench.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "chaos/live/console.h"
#include "chaos/live/faults.h"
#include "chaos/live/supervisor.h"
#include "chaos/live/torchrun.h"
#include "protocol/limits.h"
#include "protocol/prng.h"

namespace muster::chaos {
namespace {

constexpr Duration kLimit = Duration::Seconds(60);
constexpr std::int64_t kWorkers = 4;
constexpr int kTorchrunKills = 3;

// One kind of fault, over and over.
struct Series {
  std::vector<double> recovery_ms;
  std::map<std::string, std::vector<double>> phases_ms;
};

Workload BenchJob() {
  Workload workload;
  workload.job = "recovery";
  workload.steps = 100'000'000;
  workload.min_workers = 2;
  workload.batch = 64;
  workload.micro_batches = 16;
  workload.hidden = 128;
  workload.failure_timeout = kDefaultFailureTimeout;
  return workload;
}

// Four members that have taken a few steps together.
Result<JobStatus> AwaitFour(Lab& lab, const std::string& job) {
  std::int64_t since = -1;
  std::int64_t generation = 0;
  constexpr std::int64_t kSteps = 5;
  return lab.Await(job, "four workers in step", kLimit, [&](const JobStatus& now) {
    if (now.phase != "running" || now.world_size != kWorkers) return false;
    if (now.generation != generation) {
      generation = now.generation;
      since = now.committed;
    }
    return now.committed >= since + kSteps;
  });
}

Status HitOne(Lab& lab, const std::string& job, const std::string& node, int signal,
              double fraction, Series* series) {
  const Result<JobStatus> before = AwaitFour(lab, job);
  if (!before.ok()) return before.status();
  const Result<Fault> fault = Strike(lab, job, node, signal, fraction);
  if (!fault.ok()) return fault.status();
  const Result<double> recovery =
      AwaitRecovery(lab, job, *fault, OthersThan(*before, node), kLimit);
  if (signal == SIGSTOP) kill(static_cast<pid_t>(fault->pid), SIGCONT);
  if (!recovery.ok()) return recovery.status();
  const Result<IncidentStatus> incident = AwaitIncident(lab, job, *fault, kLimit);
  if (!incident.ok()) return incident.status();
  series->recovery_ms.push_back(*recovery);
  series->phases_ms["detect"].push_back(DetectMillis(*fault, *incident));
  for (const auto& [phase, ms] : incident->phases_ms) series->phases_ms[phase].push_back(ms);
  return {};
}

Status Repeat(Lab& lab, Console& console, const Workload& workload, int signal, int times,
              Series* series) {
  Prng moments(static_cast<std::uint64_t>(signal));
  for (int i = 0; i < times; ++i) {
    const std::string& node = kFourNodes[static_cast<std::size_t>(i) % kFourNodes.size()];
    MUSTER_RETURN_IF_ERROR(HitOne(lab, workload.job, node, signal, moments.Unit(), series));
    console.Line(fmt::format("{} {:>2}: {:>7.1f} ms to the last survivor's next step",
                             signal == SIGKILL ? "SIGKILL" : "SIGSTOP", i + 1,
                             series->recovery_ms.back()));
  }
  return {};
}

nlohmann::json Percentiles(const Series& series) {
  return {{"p50", Percentile(series.recovery_ms, 50)}, {"p99", Percentile(series.recovery_ms, 99)}};
}

nlohmann::json Medians(const Series& series) {
  nlohmann::json medians = nlohmann::json::object();
  for (const auto& [phase, values] : series.phases_ms) medians[phase] = Percentile(values, 50);
  return medians;
}

Status MeasureMuster(const BenchOptions& options, Console& console, nlohmann::json* report) {
  LabOptions lab_options;
  lab_options.bin_directory = options.bin_directory;
  lab_options.name = "muster-bench";
  lab_options.keep = options.keep;
  // Each launcher loses its worker many times on purpose.
  lab_options.coordinator_flags = {"--growth-interval", "1s", "--cooldown-failures", "100000"};
  lab_options.launcher_flags = {"--max-restarts", "1000", "--restart-window", "1s"};
  Result<std::unique_ptr<Lab>> lab = Lab::Create(lab_options);
  if (!lab.ok()) return lab.status();
  MUSTER_RETURN_IF_ERROR((*lab)->StartCoordinator());
  const Workload workload = BenchJob();
  for (const std::string& node : kFourNodes) {
    MUSTER_RETURN_IF_ERROR((*lab)->StartNode(workload, node));
  }
  Series kills;
  Series pauses;
  Status status = Repeat(**lab, console, workload, SIGKILL, options.kills, &kills);
  if (status.ok()) status = Repeat(**lab, console, workload, SIGSTOP, options.pauses, &pauses);
  if (!status.ok()) {
    (*lab)->Keep();
    return {status.code(), fmt::format("{} (logs in {})", status.message(), (*lab)->directory())};
  }
  *report = {{"kills", kills.recovery_ms.size()},
             {"pauses", pauses.recovery_ms.size()},
             {"kill_to_step_ms", Percentiles(kills)},
             {"pause_to_step_ms", Percentiles(pauses)},
             {"phases_ms", Medians(kills)},
             {"pause_phases_ms", Medians(pauses)},
             {"failure_timeout_ms", workload.failure_timeout.millis()}};
  return {};
}

Status MeasureTorchrun(Console& console, nlohmann::json* report) {
  const double ours = (*report)["kill_to_step_ms"]["p50"].get<double>();
  for (const TorchrunMode setting : {TorchrunMode::kDefault, TorchrunMode::kTuned}) {
    const char* mode = setting == TorchrunMode::kTuned ? "tuned" : "default";
    console.Line(fmt::format("torchrun, {}, {} kills:", mode, kTorchrunKills));
    const Result<std::vector<double>> measured = MeasureTorchrunKills(setting, kTorchrunKills);
    if (!measured.ok()) return measured.status();
    for (const double ms : *measured) console.Line(fmt::format("  {:.0f} ms", ms));
    const double median = Percentile(*measured, 50);
    (*report)["torchrun_kill_to_step_ms"][mode] = median;
    (*report)["ratio"][mode] = ours > 0 ? median / ours : 0;
  }
  return {};
}

}  // namespace

double Percentile(std::vector<double> values, double percent) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(percent / 100 * static_cast<double>(values.size()));
  return values[static_cast<std::size_t>(std::max(rank, 1.0)) - 1];
}

int RunRecoveryBench(const BenchOptions& options) {
  CatchInterrupts();
  Console console;
  nlohmann::json report;
  Status status = MeasureMuster(options, console, &report);
  if (status.ok() && options.peer == "torchrun") status = MeasureTorchrun(console, &report);
  if (!status.ok()) {
    std::fprintf(stderr, "bench recovery: %s\n", status.message().c_str());
    return 1;
  }
  std::printf("%s\n", report.dump().c_str());
  return 0;
}

}  // namespace muster::chaos
