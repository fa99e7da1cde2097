#include "chaos/live/drill.h"

#include <gtest/gtest.h>

#include <cmath>

namespace muster::chaos {
namespace {

constexpr std::int64_t kMilli = 1'000'000;

// Steps of 10 ms, and 4 ms more after each tenth, which saves.
Evidence Measured(bool goes_back) {
  Evidence evidence;
  JobStatus job;
  job.checkpoint_every = 10;
  evidence.job = job;
  RunFacts calm;
  std::int64_t t_ns = 1'000 * kMilli;
  for (std::int64_t step = 1; step <= 100; ++step) {
    t_ns += (step % 10 == 1 && step > 1 ? 14 : 10) * kMilli;
    StepRecord record;
    record.step = step;
    record.generation = 1;
    record.world_size = 1;
    record.outcome = "apply";
    record.t_ns = t_ns;
    calm.records.push_back(record);
  }
  evidence.facts = calm;
  evidence.reference = calm;
  Injection kill;
  kill.planned.kind = FaultKind::kKill;
  kill.begun_ns = calm.records[49].t_ns + 2 * kMilli;
  evidence.injections.push_back(kill);
  IncidentStatus incident;
  incident.restored_from = goes_back ? "checkpoint" : "live";
  evidence.incidents.push_back(incident);
  return evidence;
}

TEST(Drill, NamesWhatFailuresCostAndTheIntervalThatLosesLeast) {
  const Duration mtbf = Duration::Seconds(3600);
  const DrillCost cost = CostOf(Measured(true), mtbf);
  EXPECT_NEAR(cost.step_ms, 10, 1e-6);
  EXPECT_NEAR(cost.checkpoint_ms, 4, 1e-6);
  EXPECT_NEAR(cost.recovery_ms, 12, 1e-6) << "the step after the fiftieth takes 14 ms";
  // sqrt(2 × 4 ms × 3,600,000 ms) = 5,366.6 ms: 537 steps.
  EXPECT_EQ(cost.best_every, 537);
  EXPECT_NEAR(cost.lost_now, (12 + 50) / 3.6e6 + 4.0 / 100, 1e-9);
  EXPECT_LT(cost.lost_best, cost.lost_now);
  for (const double every : {400.0, 700.0}) {
    const double lost = (12 + every * 5) / 3.6e6 + 4 / (every * 10);
    EXPECT_LT(cost.lost_best, lost) << every;
  }
}

TEST(Drill, SuggestsNoIntervalWhereADeathTakesNothingBack) {
  const DrillCost cost = CostOf(Measured(false), Duration::Seconds(3600));
  EXPECT_FALSE(cost.goes_back);
  EXPECT_EQ(cost.best_every, 0);
}

}  // namespace
}  // namespace muster::chaos
