#include "chaos/live/campaign.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "chaos/live/process.h"

namespace muster::chaos {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
// A phase that has not been seen for so long in a calm run will not come by itself.
constexpr std::int64_t kPhaseLimit = 60 * kSecond;
// Launchers pause before they restart, places cool down, and growth has its interval.
constexpr std::int64_t kGrowthLimit = 60 * kSecond;
constexpr std::int64_t kRunLimit = 600 * kSecond;
constexpr std::int64_t kLeastStall = 60 * kSecond;
// A coordinator that comes back needs its time to hear of all that happened without it.
constexpr std::int64_t kSettled = 3 * kSecond;

// Such a fault wants the run for itself: the coordinator can take the job over again only from all
// of its members.
bool IsExclusive(FaultKind kind) { return kind == FaultKind::kLoseStore; }

bool TakesCoordinatorAway(const PlannedFault& fault) {
  switch (fault.kind) {
    case FaultKind::kKillCoordinator:
    case FaultKind::kPauseCoordinator:
    case FaultKind::kLoseStore:
    case FaultKind::kFillIndexDisk: return true;
    default: return false;
  }
}

bool TakesNodesAway(const PlannedFault& fault) {
  switch (fault.kind) {
    case FaultKind::kLoseNode:
    case FaultKind::kKillLauncher:
    case FaultKind::kPause:
    case FaultKind::kStop:
    case FaultKind::kStopNode:
    case FaultKind::kDrain:
    case FaultKind::kNotice:
    case FaultKind::kWithdrawnNotice:
    case FaultKind::kCut:
    case FaultKind::kLinkDown: return true;
    default: return false;
  }
}

// They cost nobody anything by themselves.
bool IsHarmless(FaultKind kind) {
  return kind == FaultKind::kFlipBit || kind == FaultKind::kTruncate ||
         kind == FaultKind::kStarve || kind == FaultKind::kFillCheckpointDisk;
}

std::int64_t EndOf(const Injection& injection) {
  return injection.over_ns == 0 ? injection.begun_ns : injection.over_ns;
}

std::int64_t LastDone(const std::vector<Injection>& injections, std::int64_t from_ns) {
  for (const Injection& injection : injections) from_ns = std::max(from_ns, EndOf(injection));
  return from_ns;
}

}  // namespace

Campaign::Campaign(const Scenario& scenario, std::vector<PlannedFault> faults,
                   std::int64_t training_ns, std::int64_t min_workers, std::int64_t max_workers)
    : scenario_(scenario),
      pending_(std::move(faults)),
      training_ns_(training_ns),
      min_workers_(min_workers),
      full_(std::min(max_workers, scenario.nodes * scenario.workers_per_node)),
      last_commit_ns_(training_ns) {}

void Campaign::Committed(const StepRecord& record) {
  if (record.final) return;
  last_commit_ns_ = std::max(last_commit_ns_, record.t_ns);
  // Counted, not taken from their numbers: a worker may write down anything.
  if (record.step != last_step_) ++steps_seen_;
  last_step_ = record.step;
}

std::vector<const Injection*> Campaign::Held(const std::vector<Injection>& injections) {
  std::vector<const Injection*> held;
  for (const Injection& injection : injections) {
    if (injection.over_ns == 0) held.push_back(&injection);
  }
  return held;
}

bool Campaign::Calm(const std::vector<Injection>& injections) const {
  return Held(injections).empty() && last_commit_ns_ > LastDone(injections, 0);
}

bool Campaign::AwaitsPhase() const {
  return !pending_.empty() && pending_.front().when == Trigger::Kind::kDuring;
}

bool Campaign::MayBeLeftOut(const PlannedFault& fault) const {
  const auto listed = static_cast<int>(scenario_.faults.size());
  return fault.number > listed;
}

bool Campaign::IsDue(const PlannedFault& fault, const Moment& moment,
                     const std::vector<Injection>& injections) const {
  const std::vector<const Injection*> held = Held(injections);
  const bool alone = std::any_of(held.begin(), held.end(), [](const Injection* injection) {
    return IsExclusive(injection->planned.kind);
  });
  if (alone || (IsExclusive(fault.kind) && !Calm(injections))) return false;
  const bool next = pending_.front().number == fault.number;
  switch (fault.when) {
    case Trigger::Kind::kStep: return last_step_ >= fault.step;
    case Trigger::Kind::kDuring:
      return next && (fault.phase == "reform" ? moment.reforming : moment.saving);
    case Trigger::Kind::kAfter:
      return next && Calm(injections) &&
             moment.now_ns >= LastDone(injections, training_ns_) + fault.time.nanos();
    default: return moment.now_ns >= training_ns_ + fault.time.nanos();
  }
}

std::optional<PlannedFault> Campaign::Due(const Moment& moment,
                                          const std::vector<Injection>& injections) {
  const auto due = std::find_if(pending_.begin(), pending_.end(), [&](const PlannedFault& fault) {
    return IsDue(fault, moment, injections);
  });
  if (due == pending_.end()) return std::nullopt;
  PlannedFault fault = *due;
  pending_.erase(due);
  calm_from_ = steps_seen_;
  return fault;
}

void Campaign::MarkBlocking(std::vector<Injection>* injections) const {
  std::set<std::string> away;
  for (const Injection& injection : *injections) {
    if (injection.over_ns != 0 || !TakesNodesAway(injection.planned)) continue;
    away.insert(injection.planned.nodes.begin(), injection.planned.nodes.end());
  }
  const std::int64_t left =
      (scenario_.nodes - static_cast<std::int64_t>(away.size())) * scenario_.workers_per_node;
  const std::int64_t begun = injections->back().begun_ns;
  for (Injection& injection : *injections) {
    if (injection.over_ns != 0 || !injection.failure.empty()) continue;
    if (TakesNodesAway(injection.planned) && left < min_workers_) injection.blocks = true;
    if (!TakesCoordinatorAway(injection.planned)) continue;
    // What fails meanwhile, or has just failed, waits for it.
    for (const Injection& other : *injections) {
      const bool failure = &other != &injection && !IsHarmless(other.planned.kind);
      const bool near = other.over_ns == 0 || EndOf(other) > injection.begun_ns - kSettled;
      if (failure && near && begun >= injection.begun_ns) injection.blocks = true;
    }
  }
}

Campaign::End Campaign::IsOver(std::int64_t now_ns, std::int64_t world_size,
                               const std::vector<Injection>& injections) const {
  End end;
  const std::int64_t quiet_from = std::max(last_commit_ns_, LastDone(injections, training_ns_));
  const std::int64_t limit = std::max(kLeastStall, 6 * scenario_.expect.resume_within.nanos());
  if (now_ns - quiet_from > limit && Held(injections).empty()) {
    end.over = true;
    end.trouble = fmt::format("no step was committed for {} s after step {}",
                              (now_ns - quiet_from) / kSecond, last_step_);
    return end;
  }
  if (now_ns - training_ns_ > scenario_.run_for.nanos() + kRunLimit) {
    end.over = true;
    end.trouble =
        fmt::format("the run was not over {} s after it should have been", kRunLimit / kSecond);
    return end;
  }
  if (!Calm(injections)) return end;
  if (AwaitsPhase() && now_ns - LastDone(injections, training_ns_) > kPhaseLimit) {
    end.over = true;
    return end;
  }
  const bool done = pending_.empty() && now_ns >= training_ns_ + scenario_.run_for.nanos() &&
                    steps_seen_ >= calm_from_ + scenario_.calm_steps;
  end.over = done && world_size >= full_;
  const std::int64_t whole_by =
      std::max(LastDone(injections, training_ns_), training_ns_ + scenario_.run_for.nanos()) +
      kGrowthLimit;
  if (done && !end.over && now_ns > whole_by) {
    end.over = true;
    end.trouble = fmt::format("the job has {} workers {} s after the last fault, not {}",
                              world_size, kGrowthLimit / kSecond, full_);
  }
  return end;
}

bool SavingIn(const std::string& checkpoint_root) {
  std::error_code error;
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  for (std::filesystem::directory_iterator entry(checkpoint_root, error), end;
       !error && entry != end; entry.increment(error)) {
    const std::string path = entry->path().string();
    struct stat facts {};
    if (stat(path.c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode)) continue;
    struct stat manifest {};
    if (stat((path + "/manifest.json").c_str(), &manifest) == 0) continue;
    if (now.tv_sec - facts.st_mtim.tv_sec <= 1) return true;
  }
  return false;
}

}  // namespace muster::chaos
