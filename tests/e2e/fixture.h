// What every end-to-end test needs: a lab, a small job that lasts long enough to be disturbed, and
// the verdicts on it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "chaos/live/faults.h"
#include "chaos/live/supervisor.h"

namespace muster::chaos {

// Bound on any single wait: generous, since it only ends what hangs.
inline constexpr Duration kBound = Duration::Seconds(60);

class E2eTest : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // More flags of the coordinator's; to be set before SetUp.
  void AddCoordinatorFlags(const std::vector<std::string>& flags) { flags_ = flags; }

  // A job that takes some seconds; the same numbers everywhere, so that one undisturbed run is the
  // reference of many tests.
  static Workload Job(bool sharded = false);

  [[nodiscard]] Lab& lab() { return *lab_; }
  // Starts nodes a, b, c, d with one worker each; returns once they have committed `step` together.
  void StartFour(const Workload& workload, std::int64_t step = 10);
  void StartNodes(const Workload& workload, const std::vector<std::string>& nodes,
                  int workers_each);
  // The job's status once `done`; a failed wait is a test failure and gives an empty status.
  JobStatus Await(const Workload& workload, const std::string& what, const Lab::Predicate& done);
  // Four members have committed a step of one generation above `generation`.
  JobStatus AwaitFourAfter(const Workload& workload, std::int64_t generation);

  // Notes the processes of these workers, to be looked at again by Finish.
  void RememberSurvivors(const JobStatus& job, const std::vector<std::string>& workers);
  void LookAgain(const JobStatus& job);

  // Waits for the job's end and for `nodes` to exit with 0, then asserts all promises: steps,
  // samples, digests, pids (of those remembered), and equality with an undisturbed run. `finals`:
  // workers at the end.
  RunFacts Finish(const Workload& workload, const std::vector<std::string>& nodes,
                  std::size_t finals);

  // Starts the program with these arguments, returns its exit code and fills `output`.
  int RunProgram(const std::string& program, const std::vector<std::string>& arguments,
                 std::string* output);

 private:
  static const RunFacts& Undisturbed(const Workload& workload);

  std::vector<std::string> flags_;
  std::unique_ptr<Lab> lab_;
  std::vector<SurvivorFact> survivors_;
  int programs_run_ = 0;
};

// Sends the signal to the process and returns when it was sent (CLOCK_REALTIME, ns).
[[nodiscard]] std::int64_t KillNow(std::int64_t pid, int signal);

}  // namespace muster::chaos
