// Checks on processes, logs, and on the run as a whole.
#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "chaos/live/verdict.h"
#include "chaos/live/violations.h"

namespace muster::chaos {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
// A process is looked at four times a second, on a machine that may have other things to do.
constexpr std::int64_t kLookSlack = 2 * kSecond;
constexpr std::int64_t kOrphanSlack = 2 * kSecond;
constexpr std::int64_t kFewestReforms = 3;
constexpr std::size_t kFewestSamples = 4;

bool WasHit(const Evidence& evidence, std::int64_t pid) {
  return std::any_of(evidence.injections.begin(), evidence.injections.end(),
                     [&](const Injection& injection) {
                       const auto& pids = injection.pids;
                       return std::find(pids.begin(), pids.end(), pid) != pids.end();
                     });
}

// Generations in which a process committed, with the time of the first commit of each and the world
// size.
struct Stay {
  std::int64_t from_ns = 0;
  std::int64_t world_size = 0;
};

std::vector<Stay> StaysOf(const Evidence& evidence, std::int64_t pid) {
  std::map<std::int64_t, Stay> by_generation;
  for (const StepRecord& record : evidence.facts.records) {
    if (record.pid != pid || record.final) continue;
    by_generation.try_emplace(record.generation, Stay{record.t_ns, record.world_size});
  }
  std::vector<Stay> stays;
  for (const auto& [generation, stay] : by_generation) stays.push_back(stay);
  std::sort(stays.begin(), stays.end(),
            [](const Stay& a, const Stay& b) { return a.from_ns < b.from_ns; });
  return stays;
}

// What a process held at its quietest, early and late, in generations of one world size.
struct Growth {
  std::int64_t early = 0;
  std::int64_t late = 0;
};

using Measure = std::int64_t ProcessSample::*;

std::optional<Growth> GrowthOf(const ProcessHistory& process, const std::vector<Stay>& stays,
                               std::int64_t world_size, Measure measure) {
  // The first two generations warm up: buffers, pools, threads that are made when first needed.
  const std::int64_t begin = stays[2].from_ns;
  const std::int64_t third = (process.last_ns - begin) / 3;
  std::vector<std::int64_t> early;
  std::vector<std::int64_t> late;
  for (const ProcessSample& sample : process.samples) {
    const auto next =
        std::upper_bound(stays.begin(), stays.end(), sample.t_ns,
                         [](std::int64_t t_ns, const Stay& stay) { return t_ns < stay.from_ns; });
    if (next == stays.begin() || std::prev(next)->world_size != world_size) continue;
    if (sample.t_ns < begin) continue;
    if (sample.t_ns < begin + third) early.push_back(sample.*measure);
    if (sample.t_ns > begin + 2 * third) late.push_back(sample.*measure);
  }
  if (early.size() < kFewestSamples || late.size() < kFewestSamples) return std::nullopt;
  return Growth{*std::min_element(early.begin(), early.end()),
                *std::min_element(late.begin(), late.end())};
}

struct Resource {
  const char* name;
  Measure measure;
  std::int64_t allowed;  // growth, beyond which it is a leak
  std::int64_t percent;  // and at least so much of what there was
};

constexpr Resource kResources[] = {
    {"descriptors", &ProcessSample::descriptors, 1, 0},
    {"threads", &ProcessSample::threads, 1, 0},
    {"KiB of memory", &ProcessSample::resident_kib, 16 << 10, 20},
};

// Returns whether anything could be compared.
bool JudgeGrowth(const Evidence& evidence, const ProcessHistory& process, Violations* violations) {
  const std::vector<Stay> stays = StaysOf(evidence, process.pid);
  if (static_cast<std::int64_t>(stays.size()) <= kFewestReforms) return false;
  std::set<std::int64_t> worlds;
  for (const Stay& stay : stays) worlds.insert(stay.world_size);
  bool judged = false;
  for (const Resource& resource : kResources) {
    for (const std::int64_t world : worlds) {
      const auto growth = GrowthOf(process, stays, world, resource.measure);
      if (!growth) continue;
      judged = true;
      const std::int64_t more = growth->late - growth->early;
      if (more <= resource.allowed || more * 100 <= resource.percent * growth->early) continue;
      violations->Add("{} (process {}) went from {} to {} {} in {} generations, at world size {}",
                      process.name, process.pid, growth->early, growth->late, resource.name,
                      stays.size(), world);
      break;
    }
  }
  return judged;
}

}  // namespace

Finding CheckSameProcesses(const Evidence& evidence) {
  Violations violations;
  const std::vector<std::int64_t> commits = CommitTimes(evidence.facts);
  int kept = 0;
  for (const ProcessHistory& process : evidence.processes) {
    if (process.role != "worker" || WasHit(evidence, process.pid)) continue;
    // A job that ends lets its workers go by itself, with the last of its steps.
    const std::int64_t until =
        evidence.finished && !commits.empty() ? commits.back() : evidence.stopped_ns;
    if (process.last_ns + kLookSlack < until) {
      violations.Add("{} (process {}) ended {:.1f} s into the run, and nobody had touched it",
                     process.name, process.pid,
                     static_cast<double>(process.last_ns - evidence.training_ns) / 1e9);
    } else {
      ++kept;
    }
  }
  return violations.Close(
      "survivors", fmt::format("{} worker processes that nobody touched lived to the end", kept));
}

Finding CheckNoOrphans(const Evidence& evidence) {
  Violations violations;
  for (const std::string& stray : evidence.strays) {
    violations.Add("{} was left when all launchers had ended", stray);
  }
  for (const ProcessHistory& launcher : evidence.processes) {
    if (launcher.role != "launcher") continue;
    for (const ProcessHistory& worker : evidence.processes) {
      const bool its_own =
          worker.role == "worker" && worker.name.starts_with(launcher.name + "-") &&
          worker.first_ns < launcher.last_ns && worker.first_ns >= launcher.first_ns;
      if (its_own && worker.last_ns > launcher.last_ns + evidence.lease.nanos() + kOrphanSlack) {
        violations.Add("{} (process {}) outlived its launcher by {:.1f} s", worker.name, worker.pid,
                       static_cast<double>(worker.last_ns - launcher.last_ns) / 1e9);
      }
    }
  }
  return violations.Close("no_orphans",
                          fmt::format("{} processes, none outlived the one that had started it",
                                      evidence.processes.size()));
}

Finding CheckNoLeaks(const Evidence& evidence) {
  Violations violations;
  int judged = 0;
  for (const ProcessHistory& process : evidence.processes) {
    if (process.role == "worker" && JudgeGrowth(evidence, process, &violations)) ++judged;
  }
  Finding finding = violations.Close(
      "no_leaks", fmt::format("descriptors, threads and memory of {} workers did not grow over "
                              "their generations",
                              judged));
  if (judged == 0) {
    finding.ok = false;
    finding.skipped = true;
    finding.evidence = fmt::format(
        "no worker lived through {} re-forms or more, for long enough to compare", kFewestReforms);
  }
  return finding;
}

Finding CheckQuietLogs(const Evidence& evidence) {
  Violations violations;
  // A change is told in a few lines; time passing, and steps, are not.
  constexpr std::int64_t kBase = 100'000;
  constexpr std::int64_t kPerChange = 4'000;
  constexpr std::int64_t kRepeats = 100;
  constexpr std::int64_t kRepeatsPerChange = 8;
  const auto changes = static_cast<std::int64_t>(
      evidence.injections.size() + evidence.incidents.size() + evidence.processes.size());
  std::int64_t bytes = 0;
  for (const LogFact& log : evidence.logs) {
    bytes += log.bytes;
    if (log.bytes > kBase + kPerChange * changes) {
      violations.Add("{}: {} bytes in {} lines for {} changes", log.name, log.bytes, log.lines,
                     changes);
    }
    if (log.repeats > kRepeats + kRepeatsPerChange * changes) {
      violations.Add("{}: {} times \"{}\"", log.name, log.repeats, log.most_frequent);
    }
  }
  return violations.Close(
      "quiet_logs", fmt::format("{} logs of Muster's, {:.1f} kB in all, for {} changes",
                                evidence.logs.size(), static_cast<double>(bytes) / 1e3, changes));
}

Finding CheckFaultsMade(const Evidence& evidence) {
  Violations violations;
  std::size_t made = 0;
  for (const Injection& injection : evidence.injections) {
    if (injection.failure.empty()) {
      ++made;
    } else {
      violations.Add("fault {} ({}) was not made: {}", injection.planned.number,
                     NameOf(injection.planned.kind), injection.failure);
    }
  }
  std::string text = fmt::format("{} faults were made", made);
  if (!evidence.left_out.empty()) {
    text += fmt::format("; {} were left out, the first because {}", evidence.left_out.size(),
                        evidence.left_out.front().reason);
  }
  return violations.Close("faults_made", std::move(text));
}

Finding CheckBounds(const Evidence& evidence) {
  Violations violations;
  const Expectations& expect = evidence.scenario.expect;
  const std::int64_t redone = StepsRedone(evidence.facts);
  std::set<std::string> dead;
  for (const EventStatus& event : evidence.events) {
    const auto at = static_cast<std::int64_t>(event.unix_ms * 1e6);
    if (event.kind == "worker_dead" && at < evidence.stopped_ns) dead.insert(event.incarnation);
  }
  const auto reforms = static_cast<std::int64_t>(
      std::count_if(evidence.incidents.begin(), evidence.incidents.end(),
                    [](const IncidentStatus& incident) { return incident.from > 0; }));
  const auto deaths = static_cast<std::int64_t>(dead.size());
  if (expect.steps_redone >= 0 && redone > expect.steps_redone) {
    violations.Add("{} steps were redone, {} are allowed", redone, expect.steps_redone);
  }
  if (expect.deaths >= 0 && deaths > expect.deaths) {
    violations.Add("{} incarnations were declared dead, {} are allowed", deaths, expect.deaths);
  }
  if (reforms < expect.reforms) {
    violations.Add("{} re-forms, at least {} were expected", reforms, expect.reforms);
  }
  return violations.Close(
      "bounds", fmt::format("{} re-forms, {} deaths, {} steps redone", reforms, deaths, redone));
}

Finding CheckEnded(const Evidence& evidence) {
  Violations violations;
  if (!evidence.trouble.empty()) violations.Add("{}", evidence.trouble);
  for (const std::string& node : evidence.unended) {
    violations.Add("node {} did not end when it was asked to", node);
  }
  for (const auto& [node, code] : evidence.exits) {
    if (code != 0) violations.Add("the launcher of node {} ended with {}", node, code);
  }
  if (evidence.job && evidence.job->ended() && evidence.job->end_kind != "finished") {
    violations.Add("the job ended as {}: {}", evidence.job->end_kind, evidence.job->end_reason);
  }
  return violations.Close(
      "ended", evidence.finished ? "the job took all its steps, and every launcher ended with 0"
                                 : "the lab asked all to leave, and every launcher ended with 0");
}

}  // namespace muster::chaos
