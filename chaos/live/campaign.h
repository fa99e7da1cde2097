// When the faults of a schedule are due, and when a run is over: decisions, without any effect. All
// times are CLOCK_REALTIME in ns.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "chaos/live/evidence.h"
#include "chaos/live/records.h"
#include "chaos/live/scenario.h"
#include "chaos/live/schedule.h"

namespace muster::chaos {

class Campaign {
 public:
  // The workers took their first step at `training_ns`.
  Campaign(const Scenario& scenario, std::vector<PlannedFault> faults, std::int64_t training_ns,
           std::int64_t min_workers, std::int64_t max_workers);

  // A record has come.
  void Committed(const StepRecord& record);

  struct Moment {
    std::int64_t now_ns = 0;
    bool reforming = false;  // what the job is seen to do
    bool saving = false;
  };
  // The fault to make now, if any; it is no longer pending then. `injections` are those made so
  // far.
  [[nodiscard]] std::optional<PlannedFault> Due(const Moment& moment,
                                                const std::vector<Injection>& injections);
  // One that waits for a phase is next.
  [[nodiscard]] bool AwaitsPhase() const;
  [[nodiscard]] const std::vector<PlannedFault>& Pending() const { return pending_; }
  // Drawn by chance, so that no one counts on it: when the moment does not allow it, it is left
  // out.
  [[nodiscard]] bool MayBeLeftOut(const PlannedFault& fault) const;

  // Says of those that last which of them hold up the job until they are over: too few workers are
  // left, or musterd is away while something else happens.
  void MarkBlocking(std::vector<Injection>* injections) const;

  // Those that are not over.
  [[nodiscard]] static std::vector<const Injection*> Held(const std::vector<Injection>& injections);

  struct End {
    bool over = false;
    std::string trouble;  // the job stands still, or does not grow back
  };
  // `world_size`: of the job now.
  [[nodiscard]] End IsOver(std::int64_t now_ns, std::int64_t world_size,
                           const std::vector<Injection>& injections) const;

 private:
  [[nodiscard]] bool IsDue(const PlannedFault& fault, const Moment& moment,
                           const std::vector<Injection>& injections) const;
  // All that was done is over, and a step was committed since.
  [[nodiscard]] bool Calm(const std::vector<Injection>& injections) const;

  const Scenario scenario_;
  std::vector<PlannedFault> pending_;
  const std::int64_t training_ns_;
  const std::int64_t min_workers_;
  const std::int64_t full_;  // the world size that the job comes back to
  std::int64_t last_commit_ns_ = 0;
  std::int64_t last_step_ = 0;
  std::int64_t steps_seen_ = 0;
  std::int64_t calm_from_ = 0;  // steps seen at the moment of the last fault
};

// Whether a checkpoint is being written there: a directory without its manifest has changed within
// the last second.
[[nodiscard]] bool SavingIn(const std::string& checkpoint_root);

}  // namespace muster::chaos
