#include "chaos/sim/checkers/healthy_workers.h"

#include <fmt/format.h>

namespace muster::sim {

void HealthyWorkers::OnFenced(const Health& worker, Instant now, Verdict& verdict) const {
  if (!worker.well || now - worker.well_since <= shadow_) return;
  verdict.Violate("S6",
                  fmt::format("worker {} was given up, but nothing has been wrong with it for "
                              "{:.1f} s",
                              worker.name, (now - worker.well_since).ToSeconds()));
}

void HealthyWorkers::OnCooling(const std::string& name, int losses, int at_least,
                               Verdict& verdict) {
  if (losses >= at_least) return;
  verdict.Violate("S6",
                  fmt::format("worker {} cools down, but was lost {} times only", name, losses));
}

void HealthyWorkers::OnWaiting(const std::string& waiting_for, const std::vector<Health>& all,
                               Instant now, Verdict& verdict) {
  // "worker w2 last heard 1.2 s ago": the time changes, what it says does not.
  std::string names;
  for (const Health& worker : all) {
    const std::string needle = "worker " + worker.name;
    const std::size_t at = waiting_for.find(needle);
    if (at == std::string::npos) continue;
    const std::size_t after = at + needle.size();
    const bool whole =
        after == waiting_for.size() || waiting_for[after] < '0' || waiting_for[after] > '9';
    if (whole) names += worker.name + " ";
  }
  if (names != shown_) {
    shown_ = names;
    shown_since_ = now;
  }
  if (names.empty() || now - shown_since_ <= shadow_) return;
  for (const Health& worker : all) {
    const bool named = (names).find(worker.name + " ") != std::string::npos;
    if (named && (!worker.well || now - worker.well_since <= shadow_)) return;
  }
  verdict.Violate("L1",
                  fmt::format("it waits for workers with whom nothing is wrong: {}", waiting_for));
}

}  // namespace muster::sim
