#include "chaos/live/watch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "chaos/live/process.h"

namespace muster::chaos {
namespace {

constexpr Duration kLong = Duration::Seconds(30);

std::string Mark(const char* test) {
  return "MUSTER_LAB_RUN=" + std::string(test) + std::to_string(getpid());
}

// A shell that lives until it is killed, and has said through a pipe that it runs.
class Child {
 public:
  Child(const std::string& mark, std::vector<std::pair<std::string, std::string>> environment) {
    directory_ = testing::TempDir() + "watch-XXXXXX";
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    const std::string fifo = directory_ + "/fifo";
    EXPECT_EQ(RunToEnd({.argv = {"/usr/bin/mkfifo", fifo}}, kLong).value(), 0);
    ProcessOptions options;
    // It blocks when it opens the pipe the second time: no one writes to it.
    options.argv = {"/bin/sh", "-c", "echo ready > " + fifo + "; read never < " + fifo};
    options.environment = std::move(environment);
    const std::size_t equals = mark.find('=');
    options.environment.emplace_back(mark.substr(0, equals), mark.substr(equals + 1));
    Result<Process> started = Process::Start(options);
    EXPECT_TRUE(started.ok());
    process_.emplace(std::move(started).value());
    std::ifstream pipe(fifo);
    std::string word;
    pipe >> word;
    EXPECT_EQ(word, "ready");
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    process_.reset();
    std::filesystem::remove_all(directory_);
  }
  [[nodiscard]] std::int64_t pid() const { return process_->pid(); }
  void Kill() { process_.reset(); }
  [[nodiscard]] const std::string& directory() const { return directory_; }

 private:
  std::string directory_;
  std::optional<Process> process_;
};

TEST(WatchTest, FindsTheProcessesThatCarryTheMark) {
  const std::string mark = Mark("finds");
  Child worker(mark, {{"MUSTER_WORKER", "b-0"}});
  Child other(mark, {});
  Child stranger(mark + "x", {{"MUSTER_WORKER", "c-0"}});
  ProcessWatch watch(mark);
  watch.Look(100);
  worker.Kill();
  watch.Look(200);
  const std::vector<ProcessHistory> histories = watch.Histories();
  ASSERT_EQ(histories.size(), 2U);
  for (const ProcessHistory& history : histories) {
    const bool is_worker = history.role == "worker";
    EXPECT_EQ(history.role, is_worker ? "worker" : "other");
    EXPECT_EQ(history.name, is_worker ? "b-0" : "sh");
    EXPECT_EQ(history.first_ns, 100);
    EXPECT_EQ(history.last_ns, is_worker ? 100 : 200);
    ASSERT_EQ(history.samples.size(), is_worker ? 1U : 2U);
    EXPECT_GE(history.samples[0].descriptors, 3);
    EXPECT_EQ(history.samples[0].threads, 1);
    EXPECT_GT(history.samples[0].resident_kib, 0);
  }
  const std::vector<ProcessHistory> alive = watch.Alive();
  ASSERT_EQ(alive.size(), 1U);
  EXPECT_EQ(alive[0].pid, other.pid());
  EXPECT_EQ(alive[0].start_ticks, StartTicksOf(other.pid()));
}

TEST(WatchTest, KeepsABoundedNumberOfSamples) {
  const std::string mark = Mark("thins");
  Child child(mark, {});
  constexpr std::size_t kMost = 20;
  ProcessWatch watch(mark, kMost);
  const auto looks = static_cast<std::int64_t>(3 * kMost);
  for (std::int64_t look = 1; look <= looks; ++look) watch.Look(look);
  const std::vector<ProcessHistory> histories = watch.Histories();
  ASSERT_EQ(histories.size(), 1U);
  const std::vector<ProcessSample>& samples = histories[0].samples;
  EXPECT_LE(samples.size(), kMost);
  EXPECT_GE(samples.size(), kMost / 2);
  EXPECT_EQ(samples.front().t_ns, 1);
  EXPECT_GT(samples.back().t_ns, looks - 8);
  for (std::size_t i = 1; i < samples.size(); ++i) EXPECT_LT(samples[i - 1].t_ns, samples[i].t_ns);
  EXPECT_EQ(histories[0].last_ns, looks);
}

TEST(LogFactsTest, CountsTheLineThatRepeatsWithItsNumbersTakenOut) {
  const std::string path = testing::TempDir() + "log-" + std::to_string(getpid());
  std::ofstream(path) << "[muster] b-0 died at step 12\n[b-0] loss 3\n[b-0] loss 2\n[b-0] loss 1\n"
                      << "[muster] b-0 died at step 7\n[muster] id 00000000000000a1\n";
  const Result<LogFact> launcher = FactsOfLog(path, "b.log");
  ASSERT_TRUE(launcher.ok());
  EXPECT_EQ(launcher->lines, 3);
  EXPECT_EQ(launcher->repeats, 2);
  EXPECT_EQ(launcher->most_frequent, "[muster] b-# died at step #");
  const Result<LogFact> all = FactsOfLog(path, "musterd.log");
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->lines, 6);
  EXPECT_EQ(all->repeats, 3);
  EXPECT_EQ(all->bytes, static_cast<std::int64_t>(std::filesystem::file_size(path)));
  std::filesystem::remove(path);
  EXPECT_EQ(FactsOfLog(path, "b.log").status().code(), Code::kNotFound);
}

TEST(LogFactsTest, ACheckpointThatCannotBeVerifiedDoesNotLoad) {
  JobStatus job;
  job.checkpoints = {{.step = 4, .state = "announced", .directory = "s4"},
                     {.step = 5, .state = "complete", .directory = "s5"}};
  std::vector<CheckpointFact> facts = VerifyCheckpoints("/bin/false", "/nowhere", job);
  ASSERT_EQ(facts.size(), 1U);
  EXPECT_EQ(facts[0].step, 4);
  EXPECT_FALSE(facts[0].loads);
  facts = VerifyCheckpoints("/bin/echo", "/nowhere", job);
  ASSERT_EQ(facts.size(), 1U);
  EXPECT_TRUE(facts[0].loads);
  EXPECT_EQ(facts[0].detail, "checkpoint verify /nowhere/s4");
}

TEST(NamedTest, EventsAndIncidentsNameARollbackOnce) {
  RunFacts facts;
  EventStatus event;
  event.kind = "rolled_back";
  event.generation = 3;
  event.step = 12;
  AddNamed(std::vector<EventStatus>{event}, &facts);
  IncidentStatus known;
  known.to = 3;
  known.steps_redone = 4;
  IncidentStatus unseen = known;
  unseen.to = 5;
  unseen.restored_step = 20;
  AddNamed(std::vector<IncidentStatus>{known, unseen}, &facts);
  ASSERT_EQ(facts.rollbacks.size(), 2U);
  EXPECT_EQ(facts.rollbacks[1].generation, 5);
  EXPECT_EQ(facts.rollbacks[1].step, 20);
}

}  // namespace
}  // namespace muster::chaos
