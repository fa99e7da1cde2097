// Prometheus metrics: counters that grow with events, and gauges read off the jobs at each scrape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/describe.h"

namespace muster::coordinator {

// What the server itself measures.
struct ServerGauges {
  std::size_t sessions = 0;
  std::size_t connections = 0;
  std::uint64_t messages_received = 0;
  std::uint64_t messages_sent = 0;
  double lag_seconds_total = 0;
  std::uint64_t persist_batches = 0;
  std::uint64_t persist_failures = 0;
  bool ready = true;
  bool volume_full = false;
};

// Confined to the driver's thread.
class Metrics {
 public:
  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  void Observe(const Event& event);
  // Prometheus text. Series of a job that has ended, or is not among `jobs`, are left out and
  // forgotten: a coordinator that has seen a thousand jobs exports the living ones.
  [[nodiscard]] std::string Render(const std::vector<JobView>& jobs, const ServerGauges& server);

 private:
  struct JobSeries;
  std::map<JobName, std::unique_ptr<JobSeries>> series_;
};

}  // namespace muster::coordinator
