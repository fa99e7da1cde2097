#include "chaos/live/faults.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <map>

#include "protocol/transport/steady_clock.h"

namespace muster::chaos {
namespace {

constexpr Duration kCommitLimit = Duration::Seconds(30);

// Median time between consecutive commits of one process; 0 with less than two.
double StepNanos(const std::vector<StepRecord>& records, std::int64_t pid) {
  std::vector<double> spans;
  std::int64_t before = 0;
  for (const StepRecord& record : records) {
    if (record.pid != pid || record.final) continue;
    if (before != 0) spans.push_back(static_cast<double>(record.t_ns - before));
    before = record.t_ns;
  }
  if (spans.empty()) return 0;
  const auto middle = spans.begin() + static_cast<std::ptrdiff_t>(spans.size() / 2);
  std::nth_element(spans.begin(), middle, spans.end());
  return *middle;
}

// The next record of that process; it is polled for without delay, since the moment matters.
Result<StepRecord> AwaitCommitOf(Lab& lab, const std::string& job, std::int64_t pid) {
  RecordFollower& records = lab.Records(job);
  if (const auto old = records.Poll(); !old.ok()) return old.status();
  const Instant deadline = MonotonicNow() + kCommitLimit;
  while (MonotonicNow() < deadline && !Interrupted()) {
    records.AwaitChange(Duration::Millis(100));
    const auto fresh = records.Poll();
    if (!fresh.ok()) return fresh.status();
    for (const StepRecord& record : *fresh) {
      if (record.pid == pid && !record.final) return record;
    }
  }
  return DeadlineExceeded(fmt::format("process {} of {} commits no step", pid, job));
}

}  // namespace

Result<Fault> Strike(Lab& lab, const std::string& job, const std::string& node, int signal,
                     double fraction) {
  const Result<JobStatus> status = lab.Job(job);
  if (!status.ok()) return status.status();
  const WorkerStatus* worker = status->OnNode(node);
  if (worker == nullptr) return NotFound(fmt::format("node {} has no worker", node));
  const Result<StepRecord> commit = AwaitCommitOf(lab, job, worker->pid);
  if (!commit.ok()) return commit.status();
  const double step_ns = StepNanos(lab.Records(job).all(), worker->pid);
  const auto moment = commit->t_ns + static_cast<std::int64_t>(fraction * step_ns);
  while (UnixNanos() < moment) {
    // Waiting for the launcher's end is waiting for the moment, unless something went wrong.
    const Duration left = Duration::Nanos(moment - UnixNanos());
    if (lab.At(node).Wait(left)) return Unavailable(fmt::format("node {} has ended", node));
  }
  if (kill(static_cast<pid_t>(worker->pid), signal) != 0) {
    return FromErrno(errno, fmt::format("kill {}", worker->pid));
  }
  Fault fault;
  fault.unix_ns = UnixNanos();
  fault.worker = worker->worker;
  fault.pid = worker->pid;
  fault.generation = commit->generation;
  fault.last_step = commit->step;
  fault.into_step_ms = static_cast<double>(fault.unix_ns - commit->t_ns) / 1e6;
  fault.step_ms = step_ns / 1e6;
  return fault;
}

std::vector<std::string> OthersThan(const JobStatus& job, const std::string& node) {
  std::vector<std::string> others;
  for (const WorkerStatus& worker : job.workers) {
    if (worker.role == "member" && worker.node != node) others.push_back(worker.worker);
  }
  return others;
}

Result<double> AwaitRecovery(Lab& lab, const std::string& job, const Fault& fault,
                             const std::vector<std::string>& survivors, Duration limit) {
  const Instant deadline = MonotonicNow() + limit;
  RecordFollower& records = lab.Records(job);
  while (true) {
    if (const auto fresh = records.Poll(); !fresh.ok()) return fresh.status();
    std::map<std::string, std::int64_t> first;
    for (const StepRecord& record : records.all()) {
      if (record.generation > fault.generation && record.t_ns > fault.unix_ns) {
        first.emplace(record.worker, record.t_ns);
      }
    }
    std::int64_t last_ns = 0;
    const bool all = std::all_of(survivors.begin(), survivors.end(), [&](const auto& worker) {
      const auto found = first.find(worker);
      if (found != first.end()) last_ns = std::max(last_ns, found->second);
      return found != first.end();
    });
    if (all) return static_cast<double>(last_ns - fault.unix_ns) / 1e6;
    if (MonotonicNow() > deadline || Interrupted()) {
      return DeadlineExceeded(fmt::format("{} of {} survivors went on within {} s after {} was hit",
                                          first.size(), survivors.size(), limit.ToSeconds(),
                                          fault.worker));
    }
    records.AwaitChange(Duration::Millis(100));
  }
}

Result<IncidentStatus> AwaitIncident(Lab& lab, const std::string& job, const Fault& fault,
                                     Duration limit) {
  IncidentStatus found;
  const auto blames = [&](const IncidentStatus& incident) {
    return incident.complete && incident.from >= fault.generation &&
           std::any_of(incident.blamed.begin(), incident.blamed.end(),
                       [&](const BlameStatus& blame) { return blame.worker == fault.worker; });
  };
  const Result<JobStatus> status = lab.Await(
      job, fmt::format("the re-form after {} was hit", fault.worker), limit,
      [&](const JobStatus& now) {
        const auto incident = std::find_if(now.incidents.begin(), now.incidents.end(), blames);
        if (incident == now.incidents.end()) return false;
        found = *incident;
        return true;
      });
  if (!status.ok()) return status.status();
  return found;
}

double DetectMillis(const Fault& fault, const IncidentStatus& incident) {
  return incident.noticed_unix_ms - static_cast<double>(fault.unix_ns) / 1e6;
}

}  // namespace muster::chaos
