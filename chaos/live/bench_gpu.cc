// Re-forms over NCCL, hundreds of them in the same processes: their times, and what they leave
// behind.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "chaos/live/bench.h"
#include "chaos/live/console.h"
#include "chaos/live/faults.h"
#include "chaos/live/supervisor.h"

namespace muster::chaos {
namespace {

constexpr Duration kLimit = Duration::Seconds(120);
constexpr std::int64_t kWorkers = 4;
// Re-forms before the first look: what is made once is made by then.
constexpr int kWarmUp = 4;

// What the worker that is never hit holds, and what is taken of the GPU by all.
struct Holdings {
  std::int64_t gpu_bytes = 0;
  std::int64_t fds = 0;
  std::int64_t threads = 0;
};

struct Times {
  std::vector<double> abort_ms;
  std::vector<double> init_ms;
  std::vector<double> kill_to_step_ms;
};

std::int64_t EntriesOf(const std::string& directory) {
  std::error_code error;
  std::int64_t count = 0;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    ++count;
  }
  return count;
}

Result<Holdings> LookAt(const Lab& lab, std::int64_t pid) {
  ProcessOptions process;
  process.argv = {lab.Program("muster"), "gpu", "--json"};
  process.output = lab.directory() + "/gpu.json";
  std::filesystem::remove(process.output);
  const Result<int> code = RunToEnd(process, kLimit);
  if (!code.ok()) return code.status();
  const nlohmann::json gpu = nlohmann::json::parse(ReadFile(process.output), nullptr, false);
  if (!gpu.is_object()) return Internal("muster gpu: " + ReadFile(process.output));
  Holdings holdings;
  holdings.gpu_bytes = gpu.value("memory_total_bytes", std::int64_t{0}) -
                       gpu.value("memory_free_bytes", std::int64_t{0});
  holdings.fds = EntriesOf(fmt::format("/proc/{}/fd", pid));
  holdings.threads = EntriesOf(fmt::format("/proc/{}/task", pid));
  return holdings;
}

Result<JobStatus> AwaitFour(Lab& lab, const std::string& job, std::int64_t after) {
  return lab.Await(job, "four workers in step", kLimit, [&](const JobStatus& now) {
    return now.phase == "running" && now.world_size == kWorkers && now.generation > after &&
           (now.incidents.empty() || now.incidents.back().complete);
  });
}

void NoteIncidents(const JobStatus& job, std::int64_t since, Times* times) {
  for (const IncidentStatus& incident : job.incidents) {
    if (incident.from < since || !incident.complete) continue;
    const auto note = [&](const char* phase, std::vector<double>* values) {
      const auto found = incident.phases_ms.find(phase);
      if (found != incident.phases_ms.end()) values->push_back(found->second);
    };
    note("abort", &times->abort_ms);
    note("form", &times->init_ms);
  }
}

// One worker is hit, and comes back: two re-forms.
Result<JobStatus> HitOne(Lab& lab, const Workload& workload, const JobStatus& before,
                         const std::string& node, int signal, Times* times) {
  const Result<Fault> fault = Strike(lab, workload.job, node, signal, 0.5);
  if (!fault.ok()) return fault.status();
  const Result<double> recovery =
      AwaitRecovery(lab, workload.job, *fault, OthersThan(before, node), kLimit);
  if (signal == SIGSTOP) kill(static_cast<pid_t>(fault->pid), SIGCONT);
  if (!recovery.ok()) return recovery.status();
  if (signal == SIGKILL) times->kill_to_step_ms.push_back(*recovery);
  Result<JobStatus> after = AwaitFour(lab, workload.job, before.generation + 1);
  if (after.ok()) NoteIncidents(*after, before.generation, times);
  return after;
}

nlohmann::json Percentiles(const std::vector<double>& values) {
  return {{"p50", Percentile(values, 50)}, {"p99", Percentile(values, 99)}};
}

Status Measure(Lab& lab, const GpuBenchOptions& options, Console& console, nlohmann::json* report) {
  Workload workload;
  workload.job = "gpu";
  workload.steps = 100'000'000;
  workload.min_workers = 2;
  workload.batch = 64;
  workload.micro_batches = 16;
  workload.hidden = 128;
  workload.text = options.text;
  workload.flags = options.flags;
  MUSTER_RETURN_IF_ERROR(lab.StartCoordinator());
  for (const std::string& node : kFourNodes) {
    MUSTER_RETURN_IF_ERROR(lab.StartNode(workload, node));
  }
  Result<JobStatus> now = AwaitFour(lab, workload.job, 0);
  if (!now.ok()) return now.status();
  const std::int64_t survivor = now->Named("a-0")->pid;
  const std::int64_t first_generation = now->generation;
  Times times;
  Holdings first;
  for (int hits = 0; now->generation - first_generation < options.reforms; ++hits) {
    if (hits == kWarmUp / 2) {
      const Result<Holdings> looked = LookAt(lab, survivor);
      if (!looked.ok()) return looked.status();
      first = *looked;
    }
    // Never the first node: its worker is the one that is looked at.
    const std::string& node = kFourNodes[1 + static_cast<std::size_t>(hits) % 3];
    const bool pause = options.pause_every > 0 && (hits + 1) % options.pause_every == 0;
    now = HitOne(lab, workload, *now, node, pause ? SIGSTOP : SIGKILL, &times);
    if (!now.ok()) return now.status();
    console.Line(fmt::format("{:>4} of {} re-forms; {} of {}", now->generation - first_generation,
                             options.reforms, pause ? "SIGSTOP" : "SIGKILL", node));
  }
  const Result<Holdings> last = LookAt(lab, survivor);
  if (!last.ok()) return last.status();
  if (now->Named("a-0")->pid != survivor) return Internal("the worker on node a is another one");
  *report = {{"reforms", now->generation - first_generation},
             {"abort_ms", Percentiles(times.abort_ms)},
             {"init_ms", Percentiles(times.init_ms)},
             {"kill_to_step_ms", Percentiles(times.kill_to_step_ms)},
             {"growth",
              {{"gpu_bytes", last->gpu_bytes - first.gpu_bytes},
               {"fds", last->fds - first.fds},
               {"threads", last->threads - first.threads}}}};
  return {};
}

}  // namespace

int RunGpuBench(const GpuBenchOptions& options) {
  CatchInterrupts();
  Console console;
  LabOptions lab_options;
  lab_options.bin_directory = options.bin_directory;
  lab_options.name = "muster-gpu";
  lab_options.keep = options.keep;
  lab_options.coordinator_flags = {"--growth-interval", "500ms", "--cooldown-failures", "100000"};
  lab_options.launcher_flags = {"--max-restarts", "100000", "--restart-window", "1s"};
  Result<std::unique_ptr<Lab>> lab = Lab::Create(lab_options);
  nlohmann::json report;
  Status status = lab.ok() ? Measure(**lab, options, console, &report) : lab.status();
  if (!status.ok()) {
    if (lab.ok()) (*lab)->Keep();
    std::fprintf(stderr, "bench gpu: %s%s%s\n", status.message().c_str(),
                 lab.ok() ? "; logs in " : "", lab.ok() ? (*lab)->directory().c_str() : "");
    return 1;
  }
  std::printf("%s\n", report.dump().c_str());
  return 0;
}

}  // namespace muster::chaos
