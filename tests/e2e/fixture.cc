#include "tests/e2e/fixture.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace muster::chaos {
namespace {

LabOptions Options() {
  LabOptions options;
  options.bin_directory = MUSTER_BIN_DIR;
  options.name = "muster-e2e";
  options.coordinator_flags = {"--growth-interval", "200ms"};
  // Longer than a re-form takes, so that this is over before the dead worker is back.
  options.launcher_flags = {"--restart-pause", "250ms"};
  return options;
}

void ExpectHolds(const Finding& finding) {
  EXPECT_TRUE(finding.ok) << finding.name << ": " << finding.evidence;
}

}  // namespace

void E2eTest::SetUp() {
  LabOptions options = Options();
  options.coordinator_flags.insert(options.coordinator_flags.end(), flags_.begin(), flags_.end());
  Result<std::unique_ptr<Lab>> lab = Lab::Create(std::move(options));
  ASSERT_TRUE(lab.ok()) << lab.status().ToString();
  lab_ = std::move(lab).value();
  const Status started = lab_->StartCoordinator();
  ASSERT_TRUE(started.ok()) << started.ToString();
}

void E2eTest::TearDown() {
  if (!HasFailure() || !lab_) return;
  lab_->Keep();
  std::printf("logs and records are in %s\n", lab_->directory().c_str());
}

Workload E2eTest::Job(bool sharded) {
  Workload workload;
  workload.job = sharded ? "sharded" : "replicated";
  workload.steps = 400;
  workload.min_workers = 1;
  workload.batch = 128;
  workload.micro_batches = 8;
  workload.hidden = 96;
  workload.sharded = sharded;
  workload.checkpoint_every = sharded ? 20 : 0;
  workload.failure_timeout = Duration::Seconds(1);
  // Small, so that a run goes through many epochs, each with a short last batch.
  workload.text = "/usr/share/common-licenses/BSD";
  return workload;
}

void E2eTest::StartNodes(const Workload& workload, const std::vector<std::string>& nodes,
                         int workers_each) {
  for (const std::string& node : nodes) {
    const Status started = lab().StartNode(workload, node, workers_each);
    ASSERT_TRUE(started.ok()) << started.ToString();
  }
}

void E2eTest::StartFour(const Workload& workload, std::int64_t step) {
  ASSERT_NO_FATAL_FAILURE(StartNodes(workload, kFourNodes, 1));
  const Status reached = lab().AwaitStep(workload.job, step, kBound);
  ASSERT_TRUE(reached.ok()) << reached.ToString();
}

JobStatus E2eTest::Await(const Workload& workload, const std::string& what,
                         const Lab::Predicate& done) {
  const Result<JobStatus> status = lab().Await(workload.job, what, kBound, done);
  EXPECT_TRUE(status.ok()) << status.status().ToString();
  return status.ok() ? *status : JobStatus();
}

JobStatus E2eTest::AwaitFourAfter(const Workload& workload, std::int64_t generation) {
  return Await(workload, "four workers again", [&](const JobStatus& job) {
    const bool stepped = std::any_of(job.incidents.begin(), job.incidents.end(),
                                     [&](const IncidentStatus& incident) {
                                       return incident.to == job.generation && incident.complete;
                                     });
    return job.world_size == 4 && job.generation > generation && stepped;
  });
}

void E2eTest::RememberSurvivors(const JobStatus& job, const std::vector<std::string>& workers) {
  for (const std::string& name : workers) {
    const WorkerStatus* worker = job.Named(name);
    ASSERT_NE(worker, nullptr) << name;
    survivors_.push_back({name, worker->pid, 0, StartTicksOf(worker->pid), std::nullopt});
  }
}

void E2eTest::LookAgain(const JobStatus& job) {
  for (SurvivorFact& fact : survivors_) {
    const WorkerStatus* worker = job.Named(fact.worker);
    ASSERT_NE(worker, nullptr) << fact.worker;
    fact.pid_after = worker->pid;
    fact.ticks_after = StartTicksOf(worker->pid);
  }
}

RunFacts E2eTest::Finish(const Workload& workload, const std::vector<std::string>& nodes,
                         std::size_t finals) {
  const JobStatus end =
      Await(workload, "the end", [](const JobStatus& job) { return job.ended(); });
  EXPECT_EQ(end.end_kind, "finished") << end.end_reason;
  const Status exited = lab().AwaitExit(nodes, kBound);
  EXPECT_TRUE(exited.ok()) << exited.ToString();
  Result<RunFacts> facts = lab().Facts(workload);
  EXPECT_TRUE(facts.ok()) << facts.status().ToString();
  if (!facts.ok()) return {};
  facts->survivors = survivors_;
  for (const Finding& finding :
       {CheckOneGeneration(*facts), CheckChain(*facts), CheckOutcomes(*facts), CheckSamples(*facts),
        CheckWeights(*facts, finals), CheckSameResult(*facts, Undisturbed(workload)),
        CheckLoss(*facts)}) {
    ExpectHolds(finding);
  }
  if (!survivors_.empty()) ExpectHolds(CheckSurvivors(*facts));
  return std::move(facts).value();
}

// One worker alone, without a failure: what every run of the same job has to give, bit by bit.
const RunFacts& E2eTest::Undisturbed(const Workload& workload) {
  static std::map<std::tuple<bool, std::int64_t, std::vector<std::string>>, RunFacts> cache;
  const auto [at, fresh] = cache.try_emplace({workload.sharded, workload.steps, workload.flags});
  if (!fresh) return at->second;
  Workload alone = workload;
  alone.job = "undisturbed";
  alone.min_workers = alone.max_workers = 1;
  alone.checkpoint_directory.clear();
  Result<std::unique_ptr<Lab>> lab = Lab::Create(Options());
  EXPECT_TRUE(lab.ok()) << lab.status().ToString();
  if (!lab.ok()) return at->second;
  Status status = (*lab)->StartCoordinator();
  if (status.ok()) status = (*lab)->StartNode(alone, "alone");
  if (status.ok()) status = (*lab)->AwaitExit({"alone"}, kBound);
  EXPECT_TRUE(status.ok()) << status.ToString();
  const Result<RunFacts> facts = (*lab)->Facts(alone);
  EXPECT_TRUE(facts.ok()) << facts.status().ToString();
  if (facts.ok()) at->second = *facts;
  return at->second;
}

int E2eTest::RunProgram(const std::string& program, const std::vector<std::string>& arguments,
                        std::string* output) {
  ProcessOptions options;
  options.argv = {lab().Program(program)};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  options.output = fmt::format("{}/program-{}.log", lab().directory(), ++programs_run_);
  const Result<int> code = RunToEnd(options, kBound);
  *output = ReadFile(options.output);
  EXPECT_TRUE(code.ok()) << code.status().ToString() << "\n" << *output;
  return code.ok() ? *code : -1;
}

std::int64_t KillNow(std::int64_t pid, int signal) {
  EXPECT_GT(pid, 1);
  if (pid > 1) {
    EXPECT_EQ(kill(static_cast<pid_t>(pid), signal), 0);
  }
  return UnixNanos();
}

}  // namespace muster::chaos
