#include "chaos/live/verdict.h"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstdio>
#include <map>
#include <optional>
#include <set>

#include "chaos/live/violations.h"

namespace muster::chaos {
namespace {

constexpr double kNanosPerMilli = 1e6;
// For programs to load, and for the window in which workers are waited for.
constexpr std::int64_t kStartAllowance = 60'000'000'000;
constexpr std::int64_t kSecond = 1'000'000'000;

Finding Promised(std::string promise, Finding finding, std::string name = "") {
  finding.promise = std::move(promise);
  if (!name.empty()) finding.name = std::move(name);
  return finding;
}

Finding Skipped(std::string name, std::string why) {
  Finding finding{std::move(name), false, std::move(why)};
  finding.skipped = true;
  return finding;
}

// Whether the kind takes musterd alone away.
bool OfCoordinator(FaultKind kind) {
  return kind == FaultKind::kKillCoordinator || kind == FaultKind::kPauseCoordinator ||
         kind == FaultKind::kLoseStore;
}

std::string NameOf(const Injection& injection) {
  return fmt::format("fault {} ({})", injection.planned.number, NameOf(injection.planned.kind));
}

// Something else was done at about that time.
bool Overlaps(const Evidence& evidence, const Injection& mine, std::int64_t from_ns,
              std::int64_t to_ns) {
  return std::any_of(
      evidence.injections.begin(), evidence.injections.end(), [&](const Injection& other) {
        if (&other == &mine || other.begun_ns == 0 || !other.failure.empty()) return false;
        return other.begun_ns <= to_ns && std::max(other.over_ns, other.begun_ns) >= from_ns;
      });
}

std::int64_t MedianGap(const std::vector<std::int64_t>& commits) {
  std::vector<std::int64_t> gaps;
  for (std::size_t i = 1; i < commits.size(); ++i) gaps.push_back(commits[i] - commits[i - 1]);
  if (gaps.empty()) return 0;
  const auto middle = gaps.begin() + static_cast<std::ptrdiff_t>(gaps.size() / 2);
  std::nth_element(gaps.begin(), middle, gaps.end());
  return *middle;
}

// The last moment in (from, to) at which something was done that excuses a pause.
struct Excuse {
  std::int64_t at_ns = 0;
  const Injection* injection = nullptr;
};

Excuse LastDone(const Evidence& evidence, std::int64_t from_ns, std::int64_t to_ns) {
  Excuse last{from_ns, nullptr};
  for (const Injection& injection : evidence.injections) {
    const std::int64_t over = injection.blocks ? injection.over_ns : 0;
    for (const std::int64_t moment : {injection.begun_ns, over}) {
      if (moment >= last.at_ns && moment > 0 && moment < to_ns) last = {moment, &injection};
    }
  }
  return last;
}

}  // namespace

std::vector<std::int64_t> CommitTimes(const RunFacts& facts) {
  std::vector<std::int64_t> times;
  for (const auto& [step, by_generation] : StandingOf(facts)) {
    const auto& ranks = by_generation.rbegin()->second;
    times.push_back((*std::min_element(ranks.begin(), ranks.end(),
                                       [](const StepRecord* a, const StepRecord* b) {
                                         return a->t_ns < b->t_ns;
                                       }))
                        ->t_ns);
  }
  std::sort(times.begin(), times.end());
  return times;
}

std::vector<double> RecoveryMillis(const Evidence& evidence) {
  const std::vector<std::int64_t> commits = CommitTimes(evidence.facts);
  std::vector<double> recoveries;
  for (const Injection& injection : evidence.injections) {
    const std::int64_t from = injection.blocks ? injection.over_ns : injection.begun_ns;
    const auto next = std::upper_bound(commits.begin(), commits.end(), from);
    recoveries.push_back(from == 0 || next == commits.end()
                             ? -1
                             : static_cast<double>(*next - from) / kNanosPerMilli);
  }
  return recoveries;
}

Finding CheckSameSteps(const RunFacts& facts, const RunFacts& reference) {
  Violations violations;
  const Standing ours = StandingOf(facts);
  const Standing theirs = StandingOf(reference);
  std::int64_t compared = 0;
  for (const auto& [step, by_generation] : ours) {
    const auto other = theirs.find(step);
    if (other == theirs.end()) continue;
    ++compared;
    const StepRecord& a = *by_generation.rbegin()->second.front();
    const StepRecord& b = *other->second.rbegin()->second.front();
    if (std::bit_cast<std::uint64_t>(a.loss) != std::bit_cast<std::uint64_t>(b.loss) ||
        a.digest != b.digest) {
      violations.Add("step {} has loss {} and gradient {}, undisturbed {} and {}", step, a.loss,
                     a.digest, b.loss, b.digest);
    }
  }
  const std::string digest = FinalDigestOf(facts);
  const std::string other = FinalDigestOf(reference);
  const bool both = !digest.empty() && !other.empty() && facts.steps == reference.steps;
  if (both && digest != other) violations.Add("final weights {}, undisturbed {}", digest, other);
  if (compared == 0) violations.Add("no step to compare with the undisturbed run");
  if (compared < static_cast<std::int64_t>(ours.size()) &&
      static_cast<std::int64_t>(theirs.size()) < reference.steps) {
    violations.Add("the undisturbed run has gaps");
  }
  return violations.Close(
      "same_result",
      fmt::format("loss and gradient of {} of {} steps are bitwise those of an undisturbed run{}",
                  compared, ours.size(), both ? ", and so are the final weights" : ""));
}

namespace {

// What the coordinator's events say of checkpoints that count: "s000000001450-g00000005 is …".
struct Counted {
  std::int64_t step = 0;
  std::int64_t generation = 0;
};

std::optional<Counted> CheckpointIn(const std::string& detail) {
  Counted counted;
  if (std::sscanf(detail.c_str(), "s%12" SCNd64 "-g%8" SCNd64, &counted.step,
                  &counted.generation) != 2) {
    return std::nullopt;
  }
  return counted;
}

// No way back goes below a checkpoint that counted, was not void, and was not damaged by the lab.
void JudgeWaysBack(const Evidence& evidence, Violations* violations) {
  std::vector<Counted> counting;
  for (const EventStatus& event : evidence.events) {
    const auto at_ns = static_cast<std::int64_t>(event.unix_ms * kNanosPerMilli);
    if (event.kind == "checkpoint_announced") {
      if (const auto counted = CheckpointIn(event.detail)) counting.push_back(*counted);
    }
    if (event.kind != "rolled_back") continue;
    const bool damaged = std::any_of(
        evidence.injections.begin(), evidence.injections.end(), [&](const Injection& injection) {
          return (injection.planned.kind == FaultKind::kFlipBit ||
                  injection.planned.kind == FaultKind::kTruncate) &&
                 injection.failure.empty() && injection.begun_ns < at_ns;
        });
    const auto newest =
        std::max_element(counting.begin(), counting.end(),
                         [](const Counted& a, const Counted& b) { return a.step < b.step; });
    if (!damaged && newest != counting.end() && newest->step > event.step) {
      violations->Add(
          "generation {} went back to step {}, though the checkpoint of step {} counted",
          event.generation, event.step, newest->step);
    }
    std::erase_if(counting, [&](const Counted& one) {
      return one.generation < event.generation && one.step > event.step;
    });
  }
}

}  // namespace

Finding CheckCheckpointsLoad(const Evidence& evidence) {
  Violations violations;
  JudgeWaysBack(evidence, &violations);
  int good = 0;
  int counted = 0;
  int ours = 0;
  for (const CheckpointFact& checkpoint : evidence.checkpoints) {
    if (!checkpoint.announced) continue;
    ++counted;
    if (checkpoint.loads) ++good;
    if (checkpoint.damaged_by_us) ++ours;
    if (!checkpoint.loads && !checkpoint.damaged_by_us) {
      violations.Add("{} counts and does not load: {}", checkpoint.directory, checkpoint.detail);
    }
  }
  if (counted > 0 && good == 0) violations.Add("none of {} announced checkpoints loads", counted);
  if (counted == 0 && violations.Close("", "").ok) {
    return Skipped("checkpoints_load", "no checkpoint was announced at the end of the run");
  }
  std::string text =
      fmt::format("{} announced checkpoints, every byte of {} verified", counted, good);
  if (ours > 0) text += fmt::format("; {} was damaged by the lab", ours);
  return violations.Close("checkpoints_load", std::move(text));
}

Finding CheckCoordinatorRestart(const Evidence& evidence) {
  Violations violations;
  const std::vector<std::int64_t> commits = CommitTimes(evidence.facts);
  const std::int64_t median = MedianGap(commits);
  const std::int64_t settle = evidence.scenario.expect.resume_within.nanos();
  int judged = 0;
  std::int64_t meanwhile = 0;
  for (const Injection& injection : evidence.injections) {
    if (!OfCoordinator(injection.planned.kind) || !injection.failure.empty()) continue;
    const std::int64_t from = injection.begun_ns;
    const std::int64_t over = std::max(injection.over_ns, from);
    if (over + settle > evidence.ended_ns) continue;
    // A failure just before may not have been dealt with; one just after is its own matter.
    if (Overlaps(evidence, injection, from - settle, over + settle)) continue;
    ++judged;
    const auto lo = std::lower_bound(commits.begin(), commits.end(), from);
    const auto hi = std::lower_bound(commits.begin(), commits.end(), over);
    meanwhile += hi - lo;
    if (hi == lo && over - from > std::max(5 * median, kSecond)) {
      violations.Add("no step was committed in the {:.1f} s of {}",
                     static_cast<double>(over - from) / 1e9, NameOf(injection));
    }
    for (const EventStatus& event : evidence.events) {
      const auto at = static_cast<std::int64_t>(event.unix_ms * kNanosPerMilli);
      if (at < from || at > over + settle) continue;
      if (event.kind == "worker_dead") {
        violations.Add("{} was declared dead after {}: {}", event.worker, NameOf(injection),
                       event.detail);
      }
      if (event.kind == "rolled_back") {
        violations.Add("generation {} went back to step {} after {}", event.generation, event.step,
                       NameOf(injection));
      }
    }
  }
  if (judged == 0) return Skipped("coordinator_restart", "musterd alone was never away");
  return violations.Close(
      "coordinator_restart",
      fmt::format("musterd alone was away {} times; {} steps were committed meanwhile, nobody was "
                  "declared dead for it, no step was taken back",
                  judged, meanwhile));
}

Finding CheckResumes(const Evidence& evidence) {
  Violations violations;
  std::vector<std::int64_t> commits = CommitTimes(evidence.facts);
  const std::int64_t bound = evidence.scenario.expect.resume_within.nanos();
  if (commits.empty()) {
    violations.Add("no step was committed");
    return violations.Close("resumes", "");
  }
  const std::int64_t start = commits.front() - evidence.began_ns;
  if (start > bound + kStartAllowance) {
    violations.Add("the first step came {:.1f} s after the launch",
                   static_cast<double>(start) / 1e9);
  }
  // Faults after the last commit have to be recovered from as well.
  std::int64_t last_done = 0;
  for (const Injection& injection : evidence.injections) {
    last_done = std::max(last_done, injection.begun_ns);
  }
  const bool open = commits.back() < last_done && !evidence.finished;
  if (open) commits.push_back(evidence.ended_ns);
  std::int64_t worst = 0;
  std::string after = "nothing";
  for (std::size_t i = 1; i < commits.size(); ++i) {
    const Excuse excuse = LastDone(evidence, commits[i - 1], commits[i]);
    const std::int64_t gap = commits[i] - excuse.at_ns;
    const std::string cause = excuse.injection == nullptr ? "no fault" : NameOf(*excuse.injection);
    if (gap > bound) {
      violations.Add(
          "{:.2f} s without a step after {}, {:.1f} s into the run; the bound is {:.1f} s",
          static_cast<double>(gap) / 1e9, cause,
          static_cast<double>(excuse.at_ns - evidence.training_ns) / 1e9,
          static_cast<double>(bound) / 1e9);
    }
    if (gap > worst) {
      worst = gap;
      after = cause;
    }
  }
  return violations.Close(
      "resumes",
      fmt::format("{} faults; the longest pause was {:.2f} s, after {}, of {:.1f} s allowed",
                  evidence.injections.size(), static_cast<double>(worst) / 1e9, after,
                  static_cast<double>(bound) / 1e9));
}

std::vector<Finding> Judge(const Evidence& evidence) {
  const RunFacts& facts = evidence.facts;
  std::set<std::string> finals;
  for (const StepRecord& record : facts.records) {
    if (record.final) finals.insert(record.worker);
  }
  std::vector<Finding> findings;
  findings.push_back(Promised("S1", CheckOneGeneration(facts)));
  findings.push_back(Promised("S2", CheckChain(facts)));
  findings.push_back(Promised("S2", CheckOutcomes(facts)));
  findings.push_back(Promised("S3", CheckSamples(facts)));
  // Workers that leave before the job's last step report no final weights.
  findings.push_back(Promised("S4", CheckWeights(facts, finals.size()), "same_weights"));
  findings.push_back(Promised(
      "S4", evidence.reference ? CheckSameSteps(facts, *evidence.reference)
                               : Skipped("same_result", "there is no undisturbed run to compare")));
  findings.push_back(Promised("S5", CheckCheckpointsLoad(evidence)));
  findings.push_back(Promised("S6", CheckCoordinatorRestart(evidence)));
  findings.push_back(Promised("L1", CheckResumes(evidence)));
  findings.push_back(CheckSameProcesses(evidence));
  findings.push_back(CheckNoOrphans(evidence));
  findings.push_back(CheckNoLeaks(evidence));
  findings.push_back(CheckQuietLogs(evidence));
  findings.push_back(CheckFaultsMade(evidence));
  findings.push_back(CheckBounds(evidence));
  findings.push_back(CheckEnded(evidence));
  return findings;
}

}  // namespace muster::chaos
