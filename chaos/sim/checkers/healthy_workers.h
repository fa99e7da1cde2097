// S6 and L1, no healthy worker is harmed: an incarnation is given up only when something happened
// to it. And whoever a waiting job says that it waits for has something wrong with it.
#pragma once

#include <string>
#include <vector>

#include "chaos/sim/checkers/verdict.h"
#include "protocol/time.h"

namespace muster::sim {

struct Health {
  std::string name;
  bool well = true;    // alive, runs, reaches everybody
  Instant well_since;  // or when its last trouble ended
};

class HealthyWorkers {
 public:
  // How long after its trouble has ended a worker may still be judged by it.
  explicit HealthyWorkers(Duration shadow) : shadow_(shadow) {}
  void OnFenced(const Health& worker, Instant now, Verdict& verdict) const;
  // A worker is kept waiting because its place failed again and again.
  static void OnCooling(const std::string& name, int losses, int at_least, Verdict& verdict);
  // What status shows, as long as it shows the same; `all` are the workers that exist.
  void OnWaiting(const std::string& waiting_for, const std::vector<Health>& all, Instant now,
                 Verdict& verdict);

 private:
  Duration shadow_;
  std::string shown_;
  Instant shown_since_;
};

}  // namespace muster::sim
