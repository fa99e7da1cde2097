#include "chaos/live/drill.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "chaos/live/verdict.h"
#include "protocol/duration_text.h"

namespace muster::chaos {
namespace {

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Times of the steps of a run, those after a checkpoint apart.
struct StepTimes {
  std::vector<double> plain;
  std::vector<double> with_checkpoint;
};

StepTimes TimesOf(const RunFacts& facts, std::int64_t checkpoint_every) {
  StepTimes times;
  const StepRecord* before = nullptr;
  for (const auto& [step, by_generation] : StandingOf(facts)) {
    const StepRecord* now = by_generation.rbegin()->second.front();
    if (before != nullptr && before->step + 1 == step && before->generation == now->generation) {
      const double millis = static_cast<double>(now->t_ns - before->t_ns) / 1e6;
      const bool saved = checkpoint_every > 0 && before->step % checkpoint_every == 0;
      (saved ? times.with_checkpoint : times.plain).push_back(millis);
    }
    before = now;
  }
  return times;
}

// Lost per failure and by saving, as a part of the time, when saving every `every` steps.
double LostAt(const DrillCost& cost, double every, double mtbf_ms) {
  const double redone = cost.goes_back ? every * cost.step_ms / 2 : 0;
  const double saving = every > 0 ? cost.checkpoint_ms / (every * cost.step_ms) : 0;
  return (cost.recovery_ms + redone) / mtbf_ms + saving;
}

bool IsDeath(FaultKind kind) { return kind == FaultKind::kKill || kind == FaultKind::kLoseNode; }

void ShowCost(const DrillCost& cost, Duration mtbf, Console& console) {
  console.Heading(fmt::format("with a failure every {}", DurationText(mtbf)));
  console.Line(fmt::format("  a step takes {:.2f} ms; a death stops training for {:.1f} ms{}",
                           cost.step_ms, cost.recovery_ms,
                           cost.goes_back ? ", and takes it back to its last checkpoint" : ""));
  if (cost.checkpoint_every > 0) {
    console.Line(fmt::format("  a checkpoint holds up the loop for {:.2f} ms, every {} steps",
                             cost.checkpoint_ms, cost.checkpoint_every));
  }
  console.Line(fmt::format("  of the time, {:.4f} % will be lost", cost.lost_now * 100));
  if (cost.best_every > 0) {
    console.Line(fmt::format(
        "  least with a checkpoint every {} steps ({:.1f} s): {:.4f} %", cost.best_every,
        static_cast<double>(cost.best_every) * cost.step_ms / 1e3, cost.lost_best * 100));
  } else if (!cost.goes_back) {
    console.Line(
        "  a death takes no step back, so checkpoints guard against losing all workers "
        "alone");
  }
}

}  // namespace

DrillCost CostOf(const Evidence& evidence, Duration mtbf) {
  DrillCost cost;
  cost.checkpoint_every = evidence.job ? evidence.job->checkpoint_every : 0;
  const RunFacts& calm = evidence.reference ? *evidence.reference : evidence.facts;
  const StepTimes times = TimesOf(calm, cost.checkpoint_every);
  cost.step_ms = Median(times.plain);
  cost.checkpoint_ms = std::max(0.0, Median(times.with_checkpoint) - cost.step_ms);
  const std::vector<double> recoveries = RecoveryMillis(evidence);
  for (std::size_t i = 0; i < recoveries.size(); ++i) {
    if (!IsDeath(evidence.injections[i].planned.kind)) continue;
    cost.recovery_ms = std::max(cost.recovery_ms, recoveries[i]);
  }
  for (const IncidentStatus& incident : evidence.incidents) {
    cost.goes_back = cost.goes_back || incident.restored_from == "checkpoint";
  }
  const auto mtbf_ms = mtbf.ToMillis();
  cost.lost_now = LostAt(cost, static_cast<double>(cost.checkpoint_every), mtbf_ms);
  if (cost.goes_back && cost.checkpoint_ms > 0 && cost.step_ms > 0) {
    const double interval_ms = std::sqrt(2 * cost.checkpoint_ms * mtbf_ms);
    cost.best_every = std::max<std::int64_t>(1, std::llround(interval_ms / cost.step_ms));
    cost.lost_best = LostAt(cost, static_cast<double>(cost.best_every), mtbf_ms);
  }
  return cost;
}

int DrillCommand(const RunCommandOptions& command, Duration mtbf) {
  std::optional<Judged> judged;
  const int code = RunCommand(command, &judged);
  if (!judged) return code;
  Console console;
  ShowCost(CostOf(judged->evidence, mtbf), mtbf, console);
  console.Result(code == 0, code == 0 ? "GO" : "NO-GO: see what is BROKEN above");
  return code;
}

}  // namespace muster::chaos
