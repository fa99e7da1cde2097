// Leaves that are planned: a worker's own wish, and an operator's drain.
#include <fmt/format.h>

#include <algorithm>

#include "coordinator/core/durable_state.h"
#include "coordinator/core/job.h"
#include "coordinator/core/leave_rule.h"

namespace muster::coordinator {

namespace {

bool Holds(const Place& place, const WorkerId& worker, const NodeName& node) {
  return (place.worker.value().empty() || place.worker == worker) &&
         (place.node.value().empty() || place.node == node);
}

}  // namespace

void Job::On(Worker& worker, const Leave& leave, Instant now) {
  worker.finish_called = worker.finish_called || leave.finish;
  AskToLeave(worker, leave.reason, leave.within, now);
}

void Job::AskToLeave(Worker& worker, const std::string& reason, Duration within, Instant now) {
  if (!worker.leaving) {
    Publish(EventKind::kWorkerLeft, now,
            fmt::format("worker {} asks to leave: {}", worker.member.worker.value(), reason),
            worker.member);
  }
  worker.leaving = true;
  wished_ = false;
  if (within <= Duration() || worker.hurried) return;
  const Instant hurry = HurryAt(now, now + within, config_.forming_timeout);
  worker.hurry_at = std::min(worker.hurry_at, hurry);
  next_hurry_ = std::min(next_hurry_, worker.hurry_at);
}

// The boundary has not come, and somebody's time runs out.
void Job::CheckHurry(Instant now) {
  if (round_ || now < next_hurry_) return;
  next_hurry_ = Instant::Never();
  bool due = false;
  for (auto& [member, worker] : workers_) {
    if (worker.hurry_at <= now) {
      worker.hurry_at = Instant::Never();
      worker.hurried = true;
      due = due || (worker.leaving && IsMember(member) && !worker.suspicion);
    }
    next_hurry_ = std::min(next_hurry_, worker.hurry_at);
  }
  if (due && record_.started && record_.latest_started) BeginRound(Cause::kLeave, true, now);
}

bool Job::IsDrained(const WorkerId& worker, const NodeName& node) const {
  return std::ranges::any_of(record_.drained,
                             [&](const Place& place) { return Holds(place, worker, node); });
}

// Members of drained places are to leave; the others there wait.
void Job::AskDrained(Instant now) {
  for (auto& [member, worker] : workers_) {
    const bool drained = IsDrained(member.worker, worker.node);
    worker.drained = drained && !Counts(member);
    if (drained && !worker.drained) AskToLeave(worker, "drained by an operator", {}, now);
  }
}

void Job::OnDrain(const Drain& drain, Instant now) {
  if (record_.end) return;
  const Place place{drain.worker, drain.node};
  std::erase(record_.drained, place);
  if (!drain.undo) record_.drained.push_back(place);
  if (record_.drained.size() > kMaxDrained) record_.drained.erase(record_.drained.begin());
  if (!adopting_) Persist();  // else with what is adopted
  AskDrained(now);
  for (auto& [member, worker] : workers_) {
    if (drain.undo || !Counts(member) || !Holds(place, member.worker, worker.node)) continue;
    AskToLeave(worker, "drained by an operator", drain.within, now);
  }
  Evaluate(now);
}

}  // namespace muster::coordinator
