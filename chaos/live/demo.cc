#include "chaos/live/demo.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "chaos/live/console.h"
#include "chaos/live/faults.h"
#include "chaos/live/supervisor.h"
#include "protocol/limits.h"

namespace muster::chaos {
namespace {

constexpr Duration kRunLimit = Duration::Seconds(120);
constexpr std::size_t kWorkers = 4;
constexpr const char* kVictim = "c";
constexpr int kInterruptedExit = 130;  // as a shell reports SIGINT

// What the disturbed run showed, beside its records.
struct Account {
  Fault fault;
  IncidentStatus loss;    // of the worker
  IncidentStatus growth;  // back to four
  std::int64_t reborn_pid = 0;
  std::vector<SurvivorFact> survivors;
};

Workload WorkloadOf(const DemoOptions& options, const std::string& job) {
  Workload workload;
  workload.job = job;
  workload.steps = options.steps;
  workload.min_workers = 2;
  workload.batch = 128;
  workload.micro_batches = 16;
  workload.hidden = 128;
  workload.sharded = options.sharded;
  workload.checkpoint_every = options.sharded ? 20 : 0;
  workload.failure_timeout = kDefaultFailureTimeout;
  return workload;
}

Status StartFour(Lab& lab, const Workload& workload, const std::string& prefix) {
  for (const std::string& node : kFourNodes) {
    MUSTER_RETURN_IF_ERROR(lab.StartNode(workload, prefix + node));
  }
  return {};
}

std::vector<std::string> FourNodes(const std::string& prefix) {
  std::vector<std::string> nodes = kFourNodes;
  for (std::string& node : nodes) node.insert(0, prefix);
  return nodes;
}

Status AwaitEnd(Lab& lab, Console& console, const Workload& workload, const std::string& label,
                const std::string& prefix) {
  const auto status =
      lab.Await(workload.job, "the end of " + label, kRunLimit, [&](const JobStatus& job) {
        console.Progress(label, job, workload.steps);
        return job.ended();
      });
  console.EndProgress();
  if (!status.ok()) return status.status();
  if (status->end_kind != "finished") {
    return Internal(fmt::format("{} ended as {}: {}", label, status->end_kind, status->end_reason));
  }
  return lab.AwaitExit(FourNodes(prefix), Duration::Seconds(30));
}

// The same job, undisturbed, under another name: what the result has to be.
Result<RunFacts> RunReference(Lab& lab, Console& console, const Workload& workload) {
  MUSTER_RETURN_IF_ERROR(StartFour(lab, workload, "reference-"));
  MUSTER_RETURN_IF_ERROR(AwaitEnd(lab, console, workload, "reference", "reference-"));
  return lab.Facts(workload);
}

// Who is there before the blow, and as which process.
std::vector<SurvivorFact> SurvivorsOf(const JobStatus& job, const std::string& victim) {
  std::vector<SurvivorFact> survivors;
  for (const WorkerStatus& worker : job.workers) {
    if (worker.worker == victim || worker.role != "member") continue;
    survivors.push_back(
        {worker.worker, worker.pid, worker.pid, StartTicksOf(worker.pid), std::nullopt});
  }
  return survivors;
}

void LookAgain(const JobStatus& job, std::vector<SurvivorFact>* survivors) {
  for (SurvivorFact& fact : *survivors) {
    const WorkerStatus* worker = job.Named(fact.worker);
    fact.pid_after = worker == nullptr ? 0 : worker->pid;
    fact.ticks_after = StartTicksOf(fact.pid_after);
  }
}

// Watches the job until `done`, with its progress shown.
Result<JobStatus> Watch(Lab& lab, Console& console, const Workload& workload,
                        const std::string& what, const Lab::Predicate& done) {
  return lab.Await(workload.job, what, kRunLimit, [&](const JobStatus& job) {
    console.Progress("training", job, workload.steps);
    return done(job);
  });
}

// Well past a checkpoint, so that there is something to redo.
Status AwaitMoment(Lab& lab, const Workload& workload) {
  if (workload.checkpoint_every == 0) return {};
  if (const auto fresh = lab.Records(workload.job).Poll(); !fresh.ok()) return fresh.status();
  const std::int64_t every = workload.checkpoint_every;
  std::int64_t step = lab.Records(workload.job).last_step() + 1;
  while (step % every != every / 2) ++step;
  return lab.AwaitStep(workload.job, step, kRunLimit);
}

Status KillOne(Lab& lab, Console& console, const Workload& workload, Account* account) {
  const std::int64_t step = workload.steps / 3;
  const Result<JobStatus> before =
      Watch(lab, console, workload, "a third of the steps",
            [&](const JobStatus& job) { return job.committed >= step; });
  if (!before.ok()) return before.status();
  const WorkerStatus* victim = before->OnNode(kVictim);
  if (victim == nullptr || before->Count("member") != kWorkers) {
    return Internal(fmt::format("the job runs with {} workers, not 4", before->Count("member")));
  }
  account->survivors = SurvivorsOf(*before, victim->worker);
  MUSTER_RETURN_IF_ERROR(AwaitMoment(lab, workload));
  constexpr double kFraction = 0.4;
  Result<Fault> fault = Strike(lab, workload.job, kVictim, SIGKILL, kFraction);
  if (!fault.ok()) return fault.status();
  account->fault = *fault;
  console.Event(fmt::format(
      "kill -9 {}: worker {}, {:.1f} ms into step {} (a step takes {:.1f} ms)", fault->pid,
      fault->worker, fault->into_step_ms, fault->last_step + 1, fault->step_ms));
  const Result<IncidentStatus> incident = AwaitIncident(lab, workload.job, *fault, kRunLimit);
  if (!incident.ok()) return incident.status();
  account->loss = *incident;
  console.Incident(*incident, DetectMillis(*fault, *incident));
  return {};
}

Status AwaitGrowth(Lab& lab, Console& console, const Workload& workload, Account* account) {
  const auto grown = [&](const JobStatus& job) {
    const auto found = std::find_if(
        job.incidents.begin(), job.incidents.end(), [&](const IncidentStatus& incident) {
          return incident.complete && incident.from >= account->loss.to &&
                 incident.world_after == static_cast<std::int64_t>(kWorkers);
        });
    if (found != job.incidents.end()) account->growth = *found;
    return found != job.incidents.end() || job.ended();
  };
  const Result<JobStatus> after =
      Watch(lab, console, workload, "growing back to four workers", grown);
  if (!after.ok()) return after.status();
  const WorkerStatus* reborn = after->OnNode(kVictim);
  if (account->growth.number == 0 || reborn == nullptr) {
    return DeadlineExceeded("the job ended before the dead worker was back");
  }
  account->reborn_pid = reborn->pid;
  LookAgain(*after, &account->survivors);
  console.Event(fmt::format("its launcher started {} again, as process {}; the job has grown back",
                            reborn->worker, reborn->pid));
  console.Incident(account->growth, 0);
  return {};
}

Result<RunFacts> RunDisturbed(Lab& lab, Console& console, const Workload& workload,
                              Account* account) {
  MUSTER_RETURN_IF_ERROR(StartFour(lab, workload, ""));
  MUSTER_RETURN_IF_ERROR(KillOne(lab, console, workload, account));
  MUSTER_RETURN_IF_ERROR(AwaitGrowth(lab, console, workload, account));
  MUSTER_RETURN_IF_ERROR(AwaitEnd(lab, console, workload, "training", ""));
  Result<RunFacts> facts = lab.Facts(workload);
  if (facts.ok()) facts->survivors = account->survivors;
  return facts;
}

// The two incidents are the ones that the demonstration is about.
Finding CheckIncidents(const DemoOptions& options, const Account& account) {
  const bool blamed =
      std::any_of(account.loss.blamed.begin(), account.loss.blamed.end(),
                  [&](const BlameStatus& blame) { return blame.worker == account.fault.worker; });
  const bool worlds = account.loss.world_before == 4 && account.loss.world_after == 3 &&
                      account.growth.world_before == 3 && account.growth.world_after == 4;
  const bool source = options.sharded == (account.loss.restored_from == "checkpoint");
  return {"incidents", blamed && worlds && source,
          fmt::format("{} to {} workers without {}, state from {}; {} to {} when it was back",
                      account.loss.world_before, account.loss.world_after, account.fault.worker,
                      account.loss.restored_from, account.growth.world_before,
                      account.growth.world_after)};
}

nlohmann::json ToJson(const IncidentStatus& incident, double detect_ms) {
  nlohmann::json phases = incident.phases_ms;
  phases["detect"] = detect_ms;
  nlohmann::json blamed = nlohmann::json::array();
  for (const BlameStatus& blame : incident.blamed) {
    blamed.push_back(
        {{"worker", blame.worker}, {"cause", blame.cause}, {"evidence", blame.evidence}});
  }
  return {{"number", incident.number},
          {"cause", incident.cause},
          {"from", incident.from},
          {"to", incident.to},
          {"world_before", incident.world_before},
          {"world_after", incident.world_after},
          {"blamed", std::move(blamed)},
          {"phases_ms", std::move(phases)},
          {"restored_from", incident.restored_from},
          {"restored_step", incident.restored_step},
          {"steps_redone", incident.steps_redone}};
}

// The object of --json. The checkers' names are its keys.
nlohmann::json Report(const DemoOptions& options, const std::vector<Finding>& findings,
                      const RunFacts& facts, const Account& account) {
  nlohmann::json report;
  bool ok = true;
  for (const Finding& finding : findings) {
    report[finding.name] = finding.ok;
    report["evidence"][finding.name] = finding.evidence;
    ok = ok && finding.ok;
  }
  const std::vector<double> losses = LossesOf(facts);
  report["ok"] = ok;
  report["sharded"] = options.sharded;
  report["steps"] = losses.size();
  report["steps_redone"] = StepsRedone(facts);
  report["loss_before"] = losses.empty() ? 0 : losses.front();
  report["loss_after"] = losses.empty() ? 0 : losses.back();
  report["incidents"] = {ToJson(account.loss, DetectMillis(account.fault, account.loss)),
                         ToJson(account.growth, 0)};
  return report;
}

int Judge(const DemoOptions& options, Console& console, const RunFacts& facts,
          const RunFacts& reference, const Account& account) {
  const std::vector<Finding> findings = {CheckIncidents(options, account),
                                         CheckOneGeneration(facts),
                                         CheckChain(facts),
                                         CheckOutcomes(facts),
                                         CheckSamples(facts),
                                         CheckWeights(facts, kWorkers),
                                         CheckSameResult(facts, reference),
                                         CheckSurvivors(facts),
                                         CheckLoss(facts)};
  console.Heading("verdict, from the workers' own records and the process table");
  for (const Finding& finding : findings) console.Verdict(finding);
  const bool ok = std::all_of(findings.begin(), findings.end(),
                              [](const Finding& finding) { return finding.ok; });
  if (const std::int64_t redone = StepsRedone(facts); redone > 0) {
    console.Line(fmt::format("  {} steps were redone from the checkpoint of step {}", redone,
                             account.loss.restored_step));
  }
  console.Result(ok, ok ? "every promise held" : "a promise was BROKEN");
  if (options.json) {
    std::printf("%s\n", Report(options, findings, facts, account).dump().c_str());
    std::fflush(stdout);
  }
  return ok ? 0 : 1;
}

int GiveUp(Lab& lab, Console& console, const DemoOptions& options, const Status& status) {
  console.EndProgress();
  if (status.code() == Code::kInterrupted) {
    console.Result(false, "interrupted: what was started is taken down");
    return kInterruptedExit;
  }
  lab.Keep();
  console.Result(false, fmt::format("the demonstration failed: {}", status.message()));
  console.Line(fmt::format("logs and records are in {}", lab.directory()));
  if (options.json) {
    const nlohmann::json report = {{"ok", false}, {"error", status.ToString()}};
    std::printf("%s\n", report.dump().c_str());
  }
  return 1;
}

}  // namespace

int RunDemo(const DemoOptions& options) {
  CatchInterrupts();
  Console console;
  LabOptions lab_options;
  lab_options.bin_directory = options.bin_directory;
  lab_options.name = "muster-demo";
  lab_options.keep = options.keep;
  lab_options.coordinator_flags = {"--growth-interval", "1s"};
  Result<std::unique_ptr<Lab>> made = Lab::Create(lab_options);
  if (!made.ok()) {
    console.Result(false, made.status().ToString());
    return 1;
  }
  Lab& lab = **made;
  const Workload reference_job = WorkloadOf(options, "reference");
  const Workload job = WorkloadOf(options, "demo");
  console.Heading(fmt::format(
      "char_lm, {} steps on 4 nodes with one worker each, optimizer state {}; run directory {}",
      options.steps, options.sharded ? "sharded over them" : "replicated", lab.directory()));
  if (const Status status = lab.StartCoordinator(); !status.ok()) {
    return GiveUp(lab, console, options, status);
  }
  console.Line(fmt::format("musterd is process {}, at {}", lab.coordinator()->pid(), lab.url()));
  const Result<RunFacts> reference = RunReference(lab, console, reference_job);
  if (!reference.ok()) return GiveUp(lab, console, options, reference.status());
  Account account;
  const Result<RunFacts> facts = RunDisturbed(lab, console, job, &account);
  if (!facts.ok()) return GiveUp(lab, console, options, facts.status());
  const int code = Judge(options, console, *facts, *reference, account);
  if (code != 0) lab.Keep();
  if (code != 0 || options.keep) {
    std::fprintf(stderr, "logs and records are in %s\n", lab.directory().c_str());
  }
  return code;
}

}  // namespace muster::chaos
