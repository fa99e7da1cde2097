// Each check passes a clean run, and convicts what is then spoilt in it.
#include "chaos/live/verdict.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/chaos/live/clean_evidence.h"

namespace muster::chaos {
namespace {

Finding FindingOf(const Evidence& evidence, const std::string& name) {
  for (const Finding& finding : Judge(evidence)) {
    if (finding.name == name) return finding;
  }
  ADD_FAILURE() << "there is no finding " << name;
  return {};
}

EventStatus Event(const std::string& kind, std::int64_t at_ns, std::int64_t generation,
                  std::int64_t step, const std::string& detail = "") {
  EventStatus event;
  event.kind = kind;
  event.unix_ms = static_cast<double>(at_ns) / 1e6;
  event.generation = generation;
  event.step = step;
  event.detail = detail;
  event.incarnation = "00000000000000c1";
  event.worker = "c-0";
  return event;
}

TEST(Verdict, ACleanRunPassesAllChecks) {
  const std::vector<Finding> findings = Judge(CleanEvidence());
  EXPECT_EQ(findings.size(), 16U);
  for (const Finding& finding : findings) {
    EXPECT_TRUE(finding.ok) << finding.name << ": " << finding.evidence;
    EXPECT_FALSE(finding.skipped) << finding.name << ": " << finding.evidence;
    EXPECT_FALSE(finding.evidence.empty()) << finding.name;
  }
}

struct Spoiling {
  const char* what;
  const char* check;
  std::function<void(Evidence&)> spoil;
};

void PrintTo(const Spoiling& spoiling, std::ostream* out) { *out << spoiling.what; }

class SpoiltTest : public testing::TestWithParam<Spoiling> {};

TEST_P(SpoiltTest, IsConvicted) {
  Evidence evidence = CleanEvidence();
  GetParam().spoil(evidence);
  const Finding finding = FindingOf(evidence, GetParam().check);
  EXPECT_FALSE(finding.ok) << GetParam().what << ": " << finding.evidence;
  EXPECT_FALSE(finding.skipped) << GetParam().what << ": " << finding.evidence;
}

ProcessHistory& Worker(Evidence& evidence) { return evidence.processes.back(); }

const Spoiling kSpoilings[] = {
    {"a dead incarnation commits", "one_generation",
     [](Evidence& e) {
       e.facts.evictions.push_back({"a-0", "00000000000000a1", 3});
     }},
    {"a step is missing", "chain",
     [](Evidence& e) { std::erase_if(e.facts.records, [](auto& r) { return r.step == 7; }); }},
    {"one rank skips", "same_outcome", [](Evidence& e) { e.facts.records[9].outcome = "skip"; }},
    {"a sample is taken twice", "samples_exact",
     [](Evidence& e) { e.facts.records[9].samples[0].lo -= 1; }},
    {"one rank has another gradient", "same_weights",
     [](Evidence& e) { e.facts.records[9].digest = "other"; }},
    {"a loss differs by its last bit", "same_result",
     [](Evidence& e) { e.reference->records[8].loss *= 1 + 1e-15; }},
    {"a checkpoint does not load", "checkpoints_load",
     [](Evidence& e) { e.checkpoints[0].loads = false; }},
    {"a way back goes below a checkpoint that counts", "checkpoints_load",
     [](Evidence& e) {
       e.events.push_back(Event("checkpoint_announced", TimeOf(41), 4, 41,
                                "s000000000040-g00000004 is announced"));
       e.events.push_back(Event("rolled_back", TimeOf(44), 5, 20));
     }},
    {"somebody is declared dead after a restart", "coordinator_restart",
     [](Evidence& e) { e.events.push_back(Event("worker_dead", TimeOf(51), 5, 50)); }},
    {"a pause after a fault", "resumes",
     [](Evidence& e) {
       for (StepRecord& record : e.facts.records) {
         if (record.step > 20) record.t_ns += 3 * kSecond;
       }
     }},
    {"a late start", "resumes", [](Evidence& e) { e.began_ns -= 100 * kSecond; }},
    {"a worker that nobody hit ends", "survivors",
     [](Evidence& e) { Worker(e).last_ns = TimeOf(30); }},
    {"a process is left", "no_orphans", [](Evidence& e) { e.strays.push_back("sleep"); }},
    {"a worker outlives its launcher", "no_orphans",
     [](Evidence& e) {
       e.processes[2].last_ns = TimeOf(10);
       Worker(e).last_ns = TimeOf(60);
     }},
    {"descriptors grow", "no_leaks",
     [](Evidence& e) {
       for (auto& s : Worker(e).samples) s.descriptors += (s.t_ns - kStart) / kSecond;
     }},
    {"threads grow", "no_leaks",
     [](Evidence& e) {
       for (auto& s : Worker(e).samples) s.threads += (s.t_ns - kStart) / kSecond;
     }},
    {"memory grows", "no_leaks",
     [](Evidence& e) {
       for (auto& s : Worker(e).samples) s.resident_kib += (s.t_ns - kStart) / kSecond * 16'000;
     }},
    {"a log is long", "quiet_logs", [](Evidence& e) { e.logs[0].bytes = 10'000'000; }},
    {"a line repeats", "quiet_logs", [](Evidence& e) { e.logs[0].repeats = 10'000; }},
    {"a fault was not made", "faults_made", [](Evidence& e) { e.injections[0].failure = "no"; }},
    {"too few re-forms", "bounds", [](Evidence& e) { e.incidents.clear(); }},
    {"too many deaths", "bounds",
     [](Evidence& e) {
       e.scenario.expect.deaths = 0;
       e.events.push_back(Event("worker_dead", TimeOf(20), 2, 19));
     }},
    {"a launcher fails", "ended", [](Evidence& e) { e.exits["a"] = 1; }},
    {"a node had to be killed", "ended", [](Evidence& e) { e.unended.push_back("a"); }},
    {"the lab gave up", "ended", [](Evidence& e) { e.trouble = "no step"; }},
};

INSTANTIATE_TEST_SUITE_P(Verdict, SpoiltTest, testing::ValuesIn(kSpoilings));

TEST(Verdict, WhatCannotBeJudgedIsSaidToBeOpen) {
  Evidence evidence = CleanEvidence();
  evidence.reference.reset();
  evidence.checkpoints.clear();
  evidence.injections.clear();
  for (ProcessHistory& process : evidence.processes) process.samples.clear();
  for (const char* name : {"same_result", "checkpoints_load", "coordinator_restart", "no_leaks"}) {
    const Finding finding = FindingOf(evidence, name);
    EXPECT_TRUE(finding.skipped) << name;
    EXPECT_FALSE(finding.evidence.empty()) << name;
  }
}

TEST(Verdict, AFaultThatHoldsUpTheRunExcusesThePauseUntilItIsOver) {
  Evidence evidence = CleanEvidence();
  for (StepRecord& record : evidence.facts.records) {
    if (record.step > 20) record.t_ns += 3 * kSecond;
  }
  Injection pause = Fault(3, FaultKind::kPause, TimeOf(20) + 1, TimeOf(20) + 29 * kTick);
  evidence.injections = {pause};
  EXPECT_FALSE(FindingOf(evidence, "resumes").ok);
  evidence.injections[0].blocks = true;
  EXPECT_TRUE(FindingOf(evidence, "resumes").ok) << FindingOf(evidence, "resumes").evidence;
}

}  // namespace
}  // namespace muster::chaos
