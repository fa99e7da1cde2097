#include "tests/chaos/live/report_fixture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace muster::chaos {
namespace {

constexpr std::int64_t kBegan = 1'700'000'000'000'000'000;
constexpr std::int64_t kMilli = 1'000'000;
constexpr std::int64_t kSecond = 1'000 * kMilli;

// Takes steps, one after another, and keeps the books.
class Simulation {
 public:
  Simulation(std::vector<std::string> workers, std::int64_t step_ns)
      : workers_(std::move(workers)), step_ns_(step_ns) {
    evidence.began_ns = kBegan;
    now_ = kBegan + 2 * kSecond;
    evidence.training_ns = now_ + step_ns;
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      pids_.push_back(1000 + static_cast<std::int64_t>(i));
      Process(pids_[i], "worker", workers_[i], kBegan);
    }
  }

  // `members`: bit i for worker i.
  void Steps(std::int64_t count, const std::vector<bool>& members) {
    const auto world = std::count(members.begin(), members.end(), true);
    for (std::int64_t i = 0; i < count; ++i) {
      now_ += step_ns_;
      ++step_;
      std::int64_t rank = 0;
      for (std::size_t w = 0; w < workers_.size(); ++w) {
        if (!members[w]) continue;
        StepRecord record;
        record.t_ns = now_ + rank * kMilli / 10;
        record.pid = pids_[w];
        record.worker = workers_[w];
        record.generation = generation_;
        record.step = step_;
        record.rank = rank++;
        record.world_size = world;
        record.outcome = "apply";
        record.loss = 4.2 * std::exp(-static_cast<double>(step_) / 300.0) + 0.9 +
                      0.05 * std::sin(static_cast<double>(step_ * 37 % 101));
        evidence.facts.records.push_back(std::move(record));
      }
      if (step_ % 100 == 0) Announce();
    }
  }

  // The generation ends, `redone` steps are void, and the next one is formed.
  void Reform(const std::string& cause, const std::string& blamed, std::int64_t redone,
              std::int64_t before, std::int64_t after) {
    IncidentStatus incident;
    incident.number = generation_;
    incident.cause = cause;
    incident.from = generation_;
    incident.to = ++generation_;
    incident.world_before = before;
    incident.world_after = after;
    incident.noticed_unix_ms = static_cast<double>(now_) / 1e6 + 40;
    incident.phases_ms = {
        {"abort", 120}, {"ready", 300}, {"form", 90}, {"restore", 410}, {"first_step", 180}};
    incident.blamed = {{blamed, "0123456789abcdef", cause, "the launcher saw " + blamed + " end"}};
    incident.restored_from = redone == 0 ? "memory of a peer" : "checkpoint";
    incident.steps_redone = redone;
    incident.restored_step = step_ - redone;
    incident.complete = true;
    step_ -= redone;
    if (redone > 0) evidence.facts.rollbacks.push_back({generation_, step_});
    evidence.incidents.push_back(std::move(incident));
    now_ += 1'140 * kMilli - step_ns_;
  }

  void Fault(FaultKind kind, std::vector<std::string> victims, std::int64_t held_ns,
             const std::string& what, const std::string& failure = {}) {
    Injection injection;
    injection.planned.number = static_cast<int>(evidence.injections.size()) + 1;
    injection.planned.kind = kind;
    injection.planned.hold = Duration::Nanos(held_ns);
    injection.victims = std::move(victims);
    injection.what = what;
    injection.failure = failure;
    if (failure.empty()) {
      injection.begun_ns = now_;
      injection.over_ns = now_ + held_ns;
    }
    evidence.injections.push_back(std::move(injection));
  }

  // The worker's process is another one from now on.
  void Replace(std::size_t worker) {
    for (ProcessHistory& process : evidence.processes) {
      if (process.pid == pids_[worker]) process.last_ns = now_;
    }
    pids_[worker] += 500;
    Process(pids_[worker], "worker", workers_[worker], now_ + 300 * kMilli);
  }

  void Process(std::int64_t pid, const std::string& role, const std::string& name,
               std::int64_t first_ns) {
    ProcessHistory process;
    process.pid = pid;
    process.role = role;
    process.name = name;
    process.first_ns = first_ns;
    process.samples = {{first_ns, 18, 9, 90'000}, {first_ns + kSecond, 21, 11, 130'560}};
    evidence.processes.push_back(std::move(process));
  }

  void EndProcess(std::int64_t pid) {
    for (ProcessHistory& process : evidence.processes) {
      if (process.pid == pid) process.last_ns = now_;
    }
  }

  Evidence Finish() {
    evidence.facts.steps = step_;
    evidence.finished = true;
    evidence.stopped_ns = now_;
    evidence.ended_ns = now_ + kSecond;
    for (ProcessHistory& process : evidence.processes) {
      if (process.last_ns == 0) process.last_ns = now_;
    }
    return std::move(evidence);
  }

  [[nodiscard]] std::int64_t now() const { return now_; }

  Evidence evidence;

 private:
  void Announce() {
    EventStatus event;
    event.unix_ms = static_cast<double>(now_ + 200 * kMilli) / 1e6;
    event.kind = "checkpoint_announced";
    event.generation = generation_;
    event.step = step_;
    evidence.events.push_back(std::move(event));
  }

  std::vector<std::string> workers_;
  std::int64_t step_ns_;
  std::vector<std::int64_t> pids_;
  std::int64_t now_ = 0;
  std::int64_t step_ = 0;
  std::int64_t generation_ = 1;
};

}  // namespace

Evidence EventfulRun() {
  Simulation run({"a-0", "b-0", "c-0", "d-0"}, 100 * kMilli);
  Scenario& scenario = run.evidence.scenario;
  scenario.name = "drill";
  scenario.summary = "One kill, one pause, one restart of the coordinator, one cut link.";
  run.evidence.seed = 18'446'744'073'709'551'557U;
  run.evidence.program = {"build/dev/bin/char-lm", "--text", "it's here.txt"};
  run.evidence.directory = "/tmp/muster-chaos-1";
  run.Process(800, "coordinator", "musterd", kBegan);
  const std::vector<bool> all(4, true);
  run.Steps(330, all);
  run.Fault(FaultKind::kKill, {"b-0"}, 0, "SIGKILL to b-0 (process 1001)");
  run.Replace(1);
  run.Reform("process_died", "b-0", 0, 4, 3);
  run.Steps(40, {true, false, true, true});
  run.Reform("growth", "b-0", 0, 3, 4);
  run.Steps(300, all);
  run.Fault(FaultKind::kPause, {"c-0"}, 8 * kSecond, "SIGSTOP to c-0 (process 1002) for 8 s");
  run.Reform("lease_expired", "c-0", 25, 4, 3);
  run.Steps(120, {true, true, false, true});
  run.Reform("growth", "c-0", 0, 3, 4);
  run.Steps(200, all);
  run.Fault(FaultKind::kKillCoordinator, {}, 3 * kSecond, "SIGKILL to musterd (process 800)");
  run.EndProcess(800);
  run.Process(801, "coordinator", "musterd", run.now() + 3 * kSecond);
  run.Steps(150, all);
  run.Fault(FaultKind::kCut, {"a-0", "d-0"}, 5 * kSecond, "nodes a and d cannot reach each other");
  run.Reform("connection_lost", "d-0", 10, 4, 4);
  run.Steps(260, all);
  run.Fault(FaultKind::kFlipBit, {}, 0, "", "no checkpoint counts yet");
  run.evidence.left_out = {{FaultKind::kSlow, "the kernel has no tbf"}};
  return run.Finish();
}

Evidence HostileRun() {
  constexpr std::size_t kWorkers = 40;
  std::vector<std::string> workers;
  for (std::size_t i = 0; i < kWorkers; ++i) workers.push_back(HostileText() + std::to_string(i));
  Simulation run(workers, 20 * kMilli);
  run.evidence.scenario.name = HostileText();
  run.evidence.scenario.summary = HostileText();
  run.evidence.program = {HostileText(), "$(reboot)"};
  run.evidence.directory = "/tmp/" + HostileText();
  run.evidence.trouble = HostileText();
  run.evidence.strays = {HostileText()};
  run.evidence.unended = {HostileText()};
  run.evidence.left_out = {{FaultKind::kCut, HostileText()}};
  run.Process(800, "coordinator", HostileText(), kBegan);
  for (std::size_t i = 0; i < 300; ++i) {
    std::vector<bool> members(kWorkers, true);
    run.Steps(4, members);
    const std::size_t victim = i * 7 % kWorkers;
    run.Fault(FaultKind::kKill, {workers[victim]}, 0, "SIGKILL to " + workers[victim]);
    run.Replace(victim);
    run.Reform(HostileText(), workers[victim], 1, kWorkers, kWorkers - 1);
    members[victim] = false;
    run.Steps(3, members);
  }
  run.evidence.facts.records.back().loss = std::nan("");
  return run.Finish();
}

Evidence EmptyRun() { return {}; }

std::vector<Finding> SomeFindings(bool broken) {
  std::vector<Finding> findings = {
      {"one_generation", true, "No step was committed by two generations.", "S1"},
      {"samples_exact", true, "Each of 1365 steps took its samples once.", "S3"},
      {"same_result", false, "No reference was wanted.", "S4", true},
      {"resumes", true, "The slowest fault took 1.1 s of 10 s.", "L1"}};
  if (broken) findings[1] = {"samples_exact", false, "Step 12: " + HostileText(), "S3"};
  return findings;
}

std::string HostileText() {
  return "</title></svg><script>document.title='owned'</script>\"'&\x01\xff"
         "é☂";
}

}  // namespace muster::chaos
