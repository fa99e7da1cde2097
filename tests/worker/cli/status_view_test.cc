#include "worker/cli/status_view.h"

#include <gtest/gtest.h>

#include "worker/cli/text.h"

namespace muster::cli {
namespace {

constexpr char kRunning[] = R"json({
  "job": "lm", "phase": "forming", "generation": 3, "world_size": 3, "committed": 120,
  "loss": 2.34561, "waiting_for": "1 of 3: worker n1-2 last heard 1.2 s ago",
  "lineage": "00000000000000ab",
  "spec": {"min_workers": 2, "max_workers": 4, "steps": 400, "checkpoint_directory": "/data/ck"},
  "workers": [
    {"worker": "n1-0", "incarnation": "0000000000000001", "node": "n1", "pid": 4711,
     "address": "127.0.0.1:4000", "role": "member", "state": "alive", "rank": 0,
     "connected": true, "last_heard_ms": 40, "committed": 120, "stage": "reduce", "phase": ""},
    {"worker": "n1-2", "incarnation": "0000000000000002", "node": "n1", "pid": 4713,
     "address": "127.0.0.1:4002", "role": "member", "state": "suspect", "rank": 1,
     "connected": false, "last_heard_ms": 1234, "committed": 119, "stage": "compute",
     "phase": "evaluation"},
    {"worker": "n2-0", "incarnation": "0000000000000003", "node": "n2", "pid": 99,
     "address": "127.0.0.2:4002", "role": "waiting", "state": "alive", "rank": -1,
     "connected": true, "last_heard_ms": 15, "committed": 0, "stage": "idle", "phase": ""}],
  "checkpoints": [
    {"step": 100, "generation": 2, "state": "announced", "bytes": 1572864, "world_size": 4,
     "directory": "s000000000100-g00000002", "note": ""},
    {"step": 80, "generation": 2, "state": "announced", "bytes": 1572864, "world_size": 4,
     "directory": "s000000000080-g00000002", "note": "struck out"}],
  "incidents": [
    {"number": 1, "cause": "first_formation", "from": 0, "to": 1, "world_before": 0,
     "world_after": 4, "noticed_unix_ms": 1700000000000.0, "blamed": [],
     "phases_ms": {"abort": 0, "ready": 1, "form": 2, "restore": 0, "first_step": 30},
     "restored_from": "initial", "restored_step": 0, "steps_redone": 0, "attempts": 1,
     "complete": true},
    {"number": 2, "cause": "process_died", "from": 1, "to": 3, "world_before": 4,
     "world_after": 3, "noticed_unix_ms": 1700000012345.0,
     "blamed": [{"worker": "n1-1", "incarnation": "0000000000000009", "cause": "process_died",
                 "evidence": "launcher of node n1 saw pid 4712 end: killed by signal 9 (SIGKILL)"}],
     "phases_ms": {"abort": 0.5, "ready": 1.25, "form": 3, "restore": 2, "first_step": 40},
     "restored_from": "checkpoint", "restored_step": 100, "steps_redone": 20, "attempts": 2,
     "complete": false}],
  "saves_aborted": 1, "reforms": 2})json";

TEST(RenderJobTest, SaysFirstWhyTheCoordinatorCannotStoreItsDecisions) {
  const std::string line = "coordinator: index volume full: /data: free space there\n";
  const std::string field = R"("not_ready":"index volume full: /data: free space there")";
  EXPECT_EQ(*RenderJobs("{\"jobs\":[]," + field + "}"), line + *RenderJobs(R"({"jobs":[]})"));
  EXPECT_EQ(*RenderJob("{\"job\":\"a\"," + field + "}"), line + *RenderJob(R"({"job":"a"})"));
}

TEST(RenderJobTest, Screen) {
  const auto text = RenderJob(kRunning);
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  EXPECT_EQ(
      *text,
      R"text(job lm: forming, generation 3, 3 workers (min 2, max 4), step 120 of 400, loss 2.3456
waiting for: 1 of 3: worker n1-2 last heard 1.2 s ago

RANK  WORKER  NODE  PID   ROLE     STATE                  HEARD      STEP  STAGE
0     n1-0    n1    4711  member   alive                  40 ms ago  120   reduce
1     n1-2    n1    4713  member   suspect, disconnected  1.2 s ago  119   compute: evaluation
-     n2-0    n2    99    waiting  alive                  15 ms ago  0     idle

incidents (2 in all, newest first)
  #2 22:13:32.345 process_died: 4 -> 3 workers, generation 1 -> 3
    state at step 100 from checkpoint, 20 steps redone, 2 attempts, going on
    abort 0.5, ready 1.2, form 3.0, restore 2.0, first_step 40.0, together 46.8 ms
    blamed: n1-1 (process_died): launcher of node n1 saw pid 4712 end: killed by signal 9 (SIGKILL)
  #1 22:13:20.000 first_formation: 0 -> 4 workers, generation 0 -> 1
    state at step 0 from initial
    abort 0.0, ready 1.0, form 2.0, restore 0.0, first_step 30.0, together 33.0 ms

checkpoints in /data/ck (1 save given up)
  step 100  announced  4 shards  1.5 MiB  s000000000100-g00000002
  step 80   announced  4 shards  1.5 MiB  s000000000080-g00000002  struck out
)text");
}

TEST(RenderJobTest, AJobOverNcclSaysSo) {
  const auto text = RenderJob(R"({"job": "lm", "phase": "running", "generation": 1, "world_size": 2,
      "committed": 0, "spec": {"min_workers": 1, "max_workers": 2, "backend": "nccl"}})");
  ASSERT_TRUE(text.ok());
  EXPECT_TRUE(text->starts_with(
      "job lm: running, generation 1, 2 workers (min 1, max 2), over NCCL, step 0\n"))
      << *text;
}

TEST(RenderJobTest, AnEndedJobSaysHow) {
  const auto text = RenderJob(R"({"job": "lm", "phase": "ended", "generation": 1, "world_size": 1,
      "committed": 5, "loss": 1.0, "waiting_for": "", "workers": [],
      "end": {"kind": "finished", "step": 5, "reason": "all steps are committed"}})");
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(*text,
            "job lm: ended, generation 1, 1 worker, step 5, loss 1.0000\n"
            "ended: finished at step 5: all steps are committed\n");
}

TEST(RenderJobTest, WhateverIsMissingOrOddIsShownNotTrusted) {
  EXPECT_TRUE(RenderJob("{}").ok());
  const auto odd = RenderJob(
      R"({"job": 7, "phase": null, "workers": [3, {"rank": "x", "worker": "a\u001b[2Jb\n"}],
          "spec": [], "incidents": {"a": 1}, "checkpoints": [null], "committed": "x"})");
  ASSERT_TRUE(odd.ok());
  EXPECT_NE(odd->find("a[2Jb"), std::string::npos) << "no control characters reach the terminal";
  EXPECT_EQ(odd->find('\x1b'), std::string::npos);
  for (const char* garbage : {"", "[]", "<html>", "{\"job\":"}) {
    EXPECT_EQ(RenderJob(garbage).status().code(), Code::kDataLoss) << garbage;
  }
}

TEST(RenderJobsTest, OneLineEach) {
  constexpr char kJobs[] = R"({"jobs": [
    {"job": "a", "phase": "running", "generation": 2, "world_size": 4, "committed": 10, "loss": 3},
    {"job": "long-name", "phase": "waiting", "generation": 0, "world_size": 0, "committed": 0,
     "loss": 0}]})";
  const auto text = RenderJobs(kJobs);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(*text, R"(JOB        PHASE    GENERATION  WORKERS  STEP  LOSS
a          running  2           4        10    3.0000
long-name  waiting  0           0        0     0.0000
)");
  const auto names = JobNames(kJobs);
  ASSERT_TRUE(names.ok());
  EXPECT_EQ(*names, (std::vector<std::string>{"a", "long-name"}));
  EXPECT_NE(RenderJobs(R"({"jobs": []})")->find("no jobs"), std::string::npos);
}

TEST(RenderEventsTest, OneLineEachAndWhereToGoOn) {
  const auto lines = RenderEvents(R"({"events": [
    {"seq": 7, "unix_ms": 1700000000250.0, "kind": "worker_dead", "generation": 2, "step": 57,
     "worker": "n1-1", "detail": "killed"},
    {"seq": 8, "unix_ms": 1700000000251.0, "kind": "forming", "generation": 3, "step": 57,
     "detail": ""}], "next": 9})");
  ASSERT_TRUE(lines.ok());
  EXPECT_EQ(lines->next, 9);
  EXPECT_EQ(lines->text,
            "    7 22:13:20.250 g2 step 57 worker_dead n1-1: killed\n"
            "    8 22:13:20.251 g3 step 57 forming\n");
  EXPECT_EQ(RenderEvents("{}").status().code(), Code::kDataLoss);
  EXPECT_EQ(RenderEvents(R"({"events": [], "next": 4})")->text, "");
}

TEST(TextTest, UnitsFollowTheSize) {
  EXPECT_EQ(AgeText(850), "850 ms");
  EXPECT_EQ(AgeText(12'500), "12.5 s");
  EXPECT_EQ(AgeText(600e3), "10 min");
  EXPECT_EQ(AgeText(9000e3), "2.5 h");
  EXPECT_EQ(AgeText(-1), "?");
  EXPECT_EQ(BytesText(12), "12 B");
  EXPECT_EQ(BytesText(1536), "1.5 KiB");
  EXPECT_EQ(BytesText(3.0 * 1024 * 1024 * 1024), "3.0 GiB");
}

}  // namespace
}  // namespace muster::cli
