#include "coordinator/server/metrics.h"

#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <set>
#include <sstream>
#include <utility>

#include "protocol/codec.h"

namespace muster::coordinator {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr std::array<const char*, 5> kPhases = {"abort", "ready", "form", "restore", "first_step"};

std::array<Duration, 5> PhasesOf(const Incident& incident) {
  return {incident.abort, incident.ready, incident.form, incident.restore, incident.first_step};
}

prometheus::Histogram::BucketBoundaries Seconds() {
  return {0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100};
}

MetricFamily Family(const char* name, const char* help, MetricType type) {
  MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = type;
  return family;
}

void Put(MetricFamily& family, std::vector<ClientMetric::Label> labels, double value) {
  ClientMetric metric;
  metric.label = std::move(labels);
  if (family.type == MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  family.metric.push_back(std::move(metric));
}

MetricFamily Single(const char* name, const char* help, MetricType type, double value) {
  MetricFamily family = Family(name, help, type);
  Put(family, {}, value);
  return family;
}

void AddServer(const ServerGauges& server, std::vector<MetricFamily>& out) {
  const auto gauge = [&out](const char* name, const char* help, double value) {
    out.push_back(Single(name, help, MetricType::Gauge, value));
  };
  const auto counter = [&out](const char* name, const char* help, double value) {
    out.push_back(Single(name, help, MetricType::Counter, value));
  };
  gauge("muster_sessions", "Sessions of workers and launchers",
        static_cast<double>(server.sessions));
  gauge("muster_connections", "Connections of any kind", static_cast<double>(server.connections));
  gauge("muster_ready", "1 when decisions can be made durable", server.ready ? 1 : 0);
  gauge("muster_index_volume_full", "1 when decisions wait for space on the data directory's disk",
        server.volume_full ? 1 : 0);
  counter("muster_messages_received_total", "Control messages received",
          static_cast<double>(server.messages_received));
  counter("muster_messages_sent_total", "Control messages sent",
          static_cast<double>(server.messages_sent));
  counter("muster_lag_seconds_total", "Time by which the event loop was late",
          server.lag_seconds_total);
  counter("muster_persist_batches_total", "Batches made durable",
          static_cast<double>(server.persist_batches));
  counter("muster_persist_failures_total", "Batches that the store failed to make durable",
          static_cast<double>(server.persist_failures));
}

void AddWorkers(const std::vector<JobView>& jobs, std::vector<MetricFamily>& out) {
  MetricFamily workers =
      Family("muster_job_workers", "Workers by role, state and connection", MetricType::Gauge);
  for (const JobView& job : jobs) {
    std::map<std::array<std::string, 3>, int> counts;
    for (const WorkerView& worker : job.workers) {
      ++counts[{worker.role, worker.state, worker.connected ? "true" : "false"}];
    }
    for (const auto& [key, count] : counts) {
      Put(workers,
          {{"job", job.job.value()}, {"role", key[0]}, {"state", key[1]}, {"connected", key[2]}},
          count);
    }
  }
  out.push_back(std::move(workers));
}

void AddCheckpoints(const std::vector<JobView>& jobs, std::vector<MetricFamily>& out) {
  MetricFamily count = Family("muster_job_checkpoints", "Checkpoints by state", MetricType::Gauge);
  MetricFamily newest = Family("muster_job_announced_checkpoint_step",
                               "Step of the newest announced checkpoint", MetricType::Gauge);
  MetricFamily aborted = Family("muster_job_saves_aborted_total", "Checkpoints that were given up",
                                MetricType::Counter);
  for (const JobView& job : jobs) {
    std::map<std::string, int> counts;
    bool announced = false;
    for (const CheckpointView& entry : job.checkpoints) {
      ++counts[std::string(NameOf(entry.state))];
      if (entry.state != CheckpointState::kAnnounced || announced) continue;
      announced = true;  // they are listed newest first
      Put(newest, {{"job", job.job.value()}}, static_cast<double>(entry.key.step.value()));
    }
    for (const auto& [state, number] : counts) {
      Put(count, {{"job", job.job.value()}, {"state", state}}, number);
    }
    Put(aborted, {{"job", job.job.value()}}, static_cast<double>(job.saves_aborted));
  }
  out.push_back(std::move(count));
  out.push_back(std::move(newest));
  out.push_back(std::move(aborted));
}

void AddJobs(const std::vector<JobView>& jobs, std::vector<MetricFamily>& out) {
  MetricFamily phase =
      Family("muster_job_phase", "1 for the phase that the job is in", MetricType::Gauge);
  MetricFamily world =
      Family("muster_job_world_size", "Members of the present generation", MetricType::Gauge);
  MetricFamily generation = Family(
      "muster_job_generation", "Number of the generation started or forming", MetricType::Gauge);
  MetricFamily step = Family("muster_job_committed_step", "Last committed step", MetricType::Gauge);
  MetricFamily loss = Family("muster_job_loss", "Loss of that step", MetricType::Gauge);
  for (const JobView& job : jobs) {
    const std::vector<ClientMetric::Label> label = {{"job", job.job.value()}};
    for (const JobPhase each : {JobPhase::kWaiting, JobPhase::kForming, JobPhase::kRunning}) {
      Put(phase, {{"job", job.job.value()}, {"phase", std::string(NameOf(each))}},
          each == job.phase ? 1 : 0);
    }
    Put(world, label, job.world_size);
    Put(generation, label, static_cast<double>(job.generation.value()));
    Put(step, label, static_cast<double>(job.committed.value()));
    Put(loss, label, job.loss);
  }
  for (MetricFamily* family : {&phase, &world, &generation, &step, &loss}) {
    out.push_back(std::move(*family));
  }
}

}  // namespace

struct Metrics::JobSeries {
  std::map<Cause, std::uint64_t> reforms;
  std::array<prometheus::Histogram, 5> phases{
      prometheus::Histogram(Seconds()), prometheus::Histogram(Seconds()),
      prometheus::Histogram(Seconds()), prometheus::Histogram(Seconds()),
      prometheus::Histogram(Seconds())};
};

Metrics::Metrics() = default;
Metrics::~Metrics() = default;

void Metrics::Observe(const Event& event) {
  if (!event.incident) return;
  std::unique_ptr<JobSeries>& series = series_[event.job];
  if (series == nullptr) series = std::make_unique<JobSeries>();
  if (event.kind == EventKind::kStarted) {
    ++series->reforms[event.incident->cause];
  } else if (event.kind == EventKind::kFirstStep) {
    const std::array<Duration, 5> phases = PhasesOf(*event.incident);
    for (std::size_t i = 0; i < phases.size(); ++i) {
      series->phases[i].Observe(phases[i].ToSeconds());
    }
  }
}

std::string Metrics::Render(const std::vector<JobView>& jobs, const ServerGauges& server) {
  std::vector<JobView> living;
  std::set<JobName> names;
  for (const JobView& job : jobs) {
    if (job.phase == JobPhase::kEnded) continue;
    names.insert(job.job);
    living.push_back(job);
  }
  std::erase_if(series_, [&names](const auto& entry) { return !names.contains(entry.first); });

  std::vector<MetricFamily> families;
  AddServer(server, families);
  AddJobs(living, families);
  AddWorkers(living, families);
  AddCheckpoints(living, families);
  MetricFamily reforms =
      Family("muster_job_reforms_total", "Generations that started, by cause", MetricType::Counter);
  MetricFamily phases = Family("muster_incident_phase_seconds",
                               "Duration of the phases of a re-form", MetricType::Histogram);
  for (const auto& [job, series] : series_) {
    for (const auto& [cause, count] : series->reforms) {
      Put(reforms, {{"job", job.value()}, {"cause", std::string(NameOf(cause))}},
          static_cast<double>(count));
    }
    for (std::size_t i = 0; i < kPhases.size(); ++i) {
      ClientMetric metric = series->phases[i].Collect();
      metric.label = {{"job", job.value()}, {"phase", kPhases[i]}};
      phases.metric.push_back(std::move(metric));
    }
  }
  families.push_back(std::move(reforms));
  families.push_back(std::move(phases));
  std::erase_if(families, [](const MetricFamily& family) { return family.metric.empty(); });
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families);
  return text.str();
}

}  // namespace muster::coordinator
