#include "chaos/live/status.h"

#include <gtest/gtest.h>

#include <string>

namespace muster::chaos {
namespace {

constexpr const char* kJob = R"({
  "job": "j", "phase": "running", "generation": 2, "world_size": 3, "committed": 41, "loss": 2.5,
  "waiting_for": "", "lineage": "00000000000000b1", "spec": {"samples": 99},
  "workers": [{"worker": "w0", "incarnation": "00000000000000a1", "node": "n0", "pid": 7,
    "address": "127.0.0.1:1", "role": "member", "state": "alive", "rank": 0, "connected": true,
    "last_heard_ms": 12.0, "committed": 41, "stage": "compute", "phase": ""}],
  "checkpoints": [{"step": 40, "generation": 2, "state": "announced", "bytes": 9,
    "world_size": 3, "directory": "s000000000040-g00000002"}],
  "incidents": [{"number": 1, "cause": "process_died", "from": 1, "to": 2, "world_before": 4,
    "world_after": 3, "noticed_unix_ms": 1000.5, "blamed": [{"worker": "w3",
    "incarnation": "00000000000000a4", "cause": "process_died", "evidence": "launcher of n3"}],
    "phases_ms": {"abort": 0.5, "ready": 1, "form": 2, "restore": 0, "first_step": 9},
    "restored_from": "live", "restored_step": 40, "steps_redone": 0, "attempts": 1,
    "complete": true}],
  "saves_aborted": 0, "reforms": 1})";

TEST(StatusTest, ReadsAJob) {
  const Result<JobStatus> job = ParseJobStatus(kJob);
  ASSERT_TRUE(job.ok()) << job.status().ToString();
  EXPECT_EQ(job->committed, 41);
  EXPECT_EQ(job->epoch_samples, 99);
  EXPECT_FALSE(job->ended());
  EXPECT_EQ(job->Count("member"), 1U);
  ASSERT_NE(job->OnNode("n0"), nullptr);
  EXPECT_EQ(job->OnNode("n0")->pid, 7);
  EXPECT_EQ(job->OnNode("n1"), nullptr);
  ASSERT_EQ(job->incidents.size(), 1U);
  EXPECT_EQ(job->incidents[0].phases_ms.at("form"), 2.0);
  EXPECT_EQ(job->incidents[0].blamed[0].evidence, "launcher of n3");
  EXPECT_EQ(job->checkpoints[0].directory, "s000000000040-g00000002");
}

TEST(StatusTest, NamesTheFieldThatIsMissing) {
  std::string text = kJob;
  text.replace(text.find("\"generation\""), 12, "\"generalize\"");
  const Result<JobStatus> job = ParseJobStatus(text);
  ASSERT_FALSE(job.ok());
  EXPECT_NE(job.status().message().find("generation"), std::string::npos);
  EXPECT_FALSE(ParseJobStatus("{").ok());
}

TEST(StatusTest, ReadsEvents) {
  const Result<std::vector<EventStatus>> events = ParseEvents(
      R"({"events":[{"seq":3,"unix_ms":5.5,"kind":"worker_dead","generation":2,"step":40,)"
      R"("worker":"w3","incarnation":"00000000000000a4","detail":"gone"}],"next":4})");
  ASSERT_TRUE(events.ok()) << events.status().ToString();
  ASSERT_EQ(events->size(), 1U);
  EXPECT_EQ(events->front().kind, "worker_dead");
  EXPECT_EQ(events->front().worker, "w3");
}

}  // namespace
}  // namespace muster::chaos
