// The evidence of a run in which nothing is wrong, for tests to spoil. Two nodes with one worker
// each, 60 steps a tenth of a second apart, and a re-form every ten steps.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "chaos/live/evidence.h"

namespace muster::chaos {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kTick = kSecond / 10;
constexpr std::int64_t kStart = 1000 * kSecond;
constexpr std::int64_t kSteps = 60;

inline std::int64_t TimeOf(std::int64_t step) { return kStart + step * kTick; }

inline RunFacts CleanFacts(std::int64_t steps = kSteps) {
  RunFacts facts;
  facts.steps = steps;
  facts.epoch_samples = 16;
  facts.global_batch = 4;
  for (std::int64_t step = 1; step <= steps; ++step) {
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      StepRecord record;
      record.t_ns = TimeOf(step) + rank;
      record.pid = 100 + rank;
      record.worker = rank == 0 ? "a-0" : "b-0";
      record.incarnation = rank == 0 ? "00000000000000a1" : "00000000000000b1";
      record.generation = 1 + (step - 1) / 10;
      record.step = step;
      record.rank = rank;
      record.world_size = 2;
      record.epoch = (step - 1) / 4;
      const std::int64_t lo = (step - 1) % 4 * 4 + 2 * rank;
      record.samples = {{lo, lo + 2}};
      record.outcome = "apply";
      record.loss = 1.0 / static_cast<double>(step);
      record.digest = "d" + std::to_string(step);
      facts.records.push_back(record);
    }
  }
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    StepRecord record;
    record.final = true;
    record.t_ns = TimeOf(steps) + 10;
    record.pid = 100 + rank;
    record.worker = rank == 0 ? "a-0" : "b-0";
    record.incarnation = rank == 0 ? "00000000000000a1" : "00000000000000b1";
    record.step = steps;
    record.digest = "end";
    facts.records.push_back(record);
  }
  return facts;
}

inline ProcessHistory Life(std::int64_t pid, const std::string& role, const std::string& name) {
  ProcessHistory life;
  life.pid = pid;
  life.start_ticks = static_cast<std::uint64_t>(pid);
  life.role = role;
  life.name = name;
  life.first_ns = kStart;
  life.last_ns = TimeOf(kSteps);
  for (std::int64_t step = 0; step <= kSteps; ++step) {
    life.samples.push_back({TimeOf(step), 20, 5, 50'000});
  }
  return life;
}

inline Injection Fault(int number, FaultKind kind, std::int64_t begun, std::int64_t over) {
  Injection injection;
  injection.planned.number = number;
  injection.planned.kind = kind;
  injection.begun_ns = begun;
  injection.over_ns = over;
  injection.what = "a test hits it";
  return injection;
}

inline Evidence CleanEvidence() {
  Evidence evidence;
  evidence.scenario.nodes = 2;
  evidence.scenario.expect.resume_within = Duration::Seconds(1);
  evidence.scenario.expect.reforms = 2;
  evidence.began_ns = kStart;
  evidence.training_ns = TimeOf(1);
  evidence.stopped_ns = TimeOf(kSteps) + kTick;
  evidence.ended_ns = TimeOf(kSteps) + kTick;
  evidence.facts = CleanFacts();
  evidence.reference = CleanFacts();
  // The coordinator is away while steps 36 to 50 are taken; before, a launcher is reset.
  evidence.injections.push_back(Fault(1, FaultKind::kReset, TimeOf(5), TimeOf(5)));
  evidence.injections.push_back(
      Fault(2, FaultKind::kKillCoordinator, TimeOf(35) + 1, TimeOf(50) + 1));
  for (std::int64_t to = 2; to <= 6; ++to) {
    IncidentStatus incident;
    incident.from = to - 1;
    incident.to = to;
    evidence.incidents.push_back(incident);
  }
  evidence.job = JobStatus();
  evidence.job->steps = kSteps;
  evidence.processes = {Life(1, "coordinator", "musterd"), Life(10, "launcher", "a"),
                        Life(11, "launcher", "b"), Life(100, "worker", "a-0"),
                        Life(101, "worker", "b-0")};
  evidence.logs = {{"musterd.log", 4000, 40, "generation # began", 6}};
  evidence.checkpoints = {{"s000000000040-g00000004", 40, true, true, false, "ok"}};
  evidence.finished = true;
  evidence.exits = {{"a", 0}, {"b", 0}};
  return evidence;
}

}  // namespace muster::chaos
