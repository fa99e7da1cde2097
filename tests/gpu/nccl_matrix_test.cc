// Every fault of the double against a running job, one after the other: the table of what each
// costs. Worker c has them all; a file arms one at a time.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <array>

#include "protocol/transport/steady_clock.h"
#include "tests/gpu/nccl_fixture.h"

namespace muster::chaos {
namespace {

struct Row {
  const char* fault;
  const char* phase;
  // A member is killed so that a re-form comes to the phase; otherwise the fault is the incident.
  bool by_reform;
  // The process with the fault cannot go on.
  bool fatal;
};

constexpr std::array kRows = {
    Row{"init-hang", "making the communicator", true, false},
    Row{"init-error", "making the communicator", true, false},
    Row{"connect-hang", "first collective", true, false},
    Row{"collective-error", "step", false, false},
    Row{"async-error", "step", false, false},
    Row{"abort-slow", "abort", true, false},
    Row{"abort-hang", "abort", true, true},
    Row{"abort-sticky", "abort", true, true},
    Row{"kernel-fault", "step", false, true},
};

class NcclMatrixTest : public NcclE2eTest {
 protected:
  void HitPeer(const Workload& workload, int signal, JobStatus* now, std::string* table);
  // All three have committed a step of one generation above `generation`.
  JobStatus AwaitThreeAfter(const Workload& workload, std::int64_t generation) {
    return Await(workload, "three workers again", [&](const JobStatus& job) {
      const bool stepped = std::ranges::any_of(job.incidents, [&](const IncidentStatus& incident) {
        return incident.to == job.generation && incident.complete;
      });
      return job.world_size == 3 && job.generation > generation && stepped;
    });
  }
};

std::string Line(const std::string& fault, const char* phase, Instant begun,
                 std::int64_t generations, bool kept, std::int64_t redone) {
  return fmt::format("{:<18} {:<24} {:>8.1f} s {:>11} {:>12}  {}\n", fault, phase,
                     (MonotonicNow() - begun).ToSeconds(), generations,
                     kept ? "goes on" : "replaced", redone);
}

std::int64_t RedoneSince(const JobStatus& job, std::int64_t generation) {
  std::int64_t redone = 0;
  for (const IncidentStatus& incident : job.incidents) {
    if (incident.from >= generation) redone += incident.steps_redone;
  }
  return redone;
}

// Worker b is killed or stopped, and comes back.
void NcclMatrixTest::HitPeer(const Workload& workload, int signal, JobStatus* now,
                             std::string* table) {
  const std::int64_t before = now->generation;
  const std::int64_t peer = now->Named("b-0")->pid;
  const Instant begun = MonotonicNow();
  (void)KillNow(peer, signal);
  (void)Await(workload, "two workers in step", [&](const JobStatus& job) {
    return std::ranges::any_of(job.incidents, [&](const IncidentStatus& incident) {
      return incident.from >= before && incident.world_after == 2 && incident.complete;
    });
  });
  if (signal == SIGSTOP) (void)KillNow(peer, SIGCONT);
  *now = AwaitThreeAfter(workload, before);
  ASSERT_EQ(now->world_size, 3) << lab().OutputOf("b");
  const bool kept = now->Named("b-0")->pid == peer;
  EXPECT_EQ(kept, signal == SIGSTOP);
  *table += Line(signal == SIGKILL ? "SIGKILL of b" : "SIGSTOP of b", "step", begun,
                 now->generation - before, kept, RedoneSince(*now, before));
}

TEST_F(NcclMatrixTest, EveryFaultIsOvercome) {
  Workload workload = GpuJob();
  workload.steps = 1'000'000;
  workload.failure_timeout = Duration::Seconds(2);
  std::string faults;
  for (const Row& row : kRows) {
    faults += fmt::format("{}{}@when={}{}", faults.empty() ? "" : ",", row.fault, Switch(row.fault),
                          std::string_view(row.fault) == "abort-slow" ? "@ms=500" : "");
  }
  ASSERT_NO_FATAL_FAILURE(StartNodes(workload, {"a", "b"}, 1));
  ASSERT_NO_FATAL_FAILURE(StartNodes(With(workload, faults), {"c"}, 1));
  JobStatus now = Await(workload, "three workers", [](const JobStatus& job) {
    return job.world_size == 3 && job.phase == "running" && job.committed >= 5;
  });
  ASSERT_EQ(now.world_size, 3) << lab().OutputOf("c");
  const std::int64_t survivor = now.Named("a-0")->pid;
  std::string table = fmt::format("{:<18} {:<24} {:>10} {:>11} {:>12}  {}\n", "fault", "phase",
                                  "back in", "generations", "its process", "steps redone");
  // What needs no double to go wrong.
  for (const int signal : {SIGKILL, SIGSTOP}) {
    ASSERT_NO_FATAL_FAILURE(HitPeer(workload, signal, &now, &table));
  }
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.fault);
    const std::int64_t before = now.generation;
    const std::int64_t victim = now.Named("c-0")->pid;
    On(Switch(row.fault));
    if (row.by_reform) (void)KillNow(now.Named("b-0")->pid, SIGKILL);
    const Instant begun = MonotonicNow();
    // Armed until it has struck, which the double says.
    const JobStatus struck = Await(workload, "the fault", [&](const JobStatus&) {
      return lab().OutputOf("c").find(fmt::format("fault {}", row.fault)) != std::string::npos;
    });
    if (row.fatal) {
      (void)Await(workload, "the end of its process",
                  [&](const JobStatus&) { return !StartTicksOf(victim).has_value(); });
    } else {
      (void)Await(workload, "the next attempt", [&](const JobStatus& job) {
        return job.generation > before + (row.by_reform ? 1 : 0) || job.phase == "running";
      });
    }
    Off(Switch(row.fault));
    now = AwaitThreeAfter(workload, before);
    ASSERT_EQ(now.world_size, 3) << lab().OutputOf("c");
    const bool kept = now.Named("c-0")->pid == victim;
    EXPECT_EQ(kept, !row.fatal);
    EXPECT_EQ(now.Named("a-0")->pid, survivor);
    const std::int64_t redone = RedoneSince(now, before);
    table += Line(row.fault, row.phase, begun, now.generation - before, kept, redone);
    EXPECT_EQ(redone, 0);
  }
  std::printf("%s", table.c_str());
  const Result<RunFacts> facts = lab().Facts(workload);
  ASSERT_TRUE(facts.ok()) << facts.status().ToString();
  for (const Finding& finding : {CheckOneGeneration(*facts), CheckOutcomes(*facts)}) {
    EXPECT_TRUE(finding.ok) << finding.name << ": " << finding.evidence;
  }
}

}  // namespace
}  // namespace muster::chaos
