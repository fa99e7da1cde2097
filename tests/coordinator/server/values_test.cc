#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "coordinator/server/event_log.h"
#include "coordinator/server/log.h"
#include "coordinator/server/metrics.h"
#include "coordinator/server/server.h"
#include "protocol/duration_text.h"
#include "protocol/limits.h"

namespace muster::coordinator {
namespace {

using Json = nlohmann::json;

TEST(DurationText, ReadsAndWritesWhatPeopleWrite) {
  EXPECT_EQ(*ParseDuration("500ms"), Duration::Millis(500));
  EXPECT_EQ(*ParseDuration("2s"), Duration::Seconds(2));
  EXPECT_EQ(*ParseDuration("1.5s"), Duration::Millis(1500));
  EXPECT_EQ(*ParseDuration("10m"), Duration::Seconds(600));
  EXPECT_EQ(*ParseDuration("0"), Duration());
  for (const char* text : {"", "5", "s", "-1s", "1 s", "1x", "nan s", "infs", "1e3s", "99999h"}) {
    EXPECT_FALSE(ParseDuration(text).ok()) << text;
  }
  for (const Duration value :
       {Duration::Seconds(600), Duration::Millis(1500), Duration::Nanos(7)}) {
    EXPECT_EQ(*ParseDuration(DurationText(value)), value);
  }
  EXPECT_EQ(DurationText(Duration::Seconds(600)), "10m");
}

TEST(Log, LinesCannotBeForged) {
  EXPECT_EQ(TextLine("died:\nx", {{"worker", "w\x1b[0m"}, {"empty", ""}}),
            "died:\\nx worker=w\\x1b[0m");
  const std::string line =
      JsonLine(1500.25, LogLevel::kWarning, "a \"quote\"\n", {{"job", "\xff"}, {"empty", ""}});
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const Json json = Json::parse(line);
  EXPECT_EQ(json["time"], "1970-01-01T00:00:01.500Z");
  EXPECT_EQ(json["level"], "warning");
  EXPECT_EQ(json["message"], "a \"quote\"\n");
  EXPECT_FALSE(json.contains("empty"));
}

Event TestEvent(EventKind kind) {
  Event event;
  event.job = JobName("a");
  event.kind = kind;
  event.at = Instant::FromNanos(5'000'000);
  event.generation = Generation(2);
  event.detail = "w0 \"joined\"";
  event.member = Member{WorkerId("w0"), Incarnation(1)};
  return event;
}

TEST(EventLog, NumbersEventsAndGivesThoseSince) {
  EventLog log;
  const ClockPair clocks{Instant::FromNanos(6'000'000), 1000.0};
  EXPECT_EQ(Json::parse(log.Since(JobName("a"), 0)), Json::parse(R"({"events":[],"next":1})"));
  for (int i = 0; i < 3; ++i) log.Add(TestEvent(EventKind::kWorkerJoined), clocks, nullptr);
  const Json all = Json::parse(log.Since(JobName("a"), 0));
  ASSERT_EQ(all["events"].size(), 3U);
  EXPECT_EQ(all["next"], 4);
  EXPECT_EQ(all["events"][0]["seq"], 1);
  EXPECT_EQ(all["events"][0]["unix_ms"], 999.0);
  EXPECT_EQ(all["events"][0]["worker"], "w0");
  EXPECT_EQ(all["events"][0]["detail"], "w0 \"joined\"");
  EXPECT_EQ(Json::parse(log.Since(JobName("a"), 3))["events"].size(), 1U);
  EXPECT_EQ(Json::parse(log.Since(JobName("a"), 4))["events"].size(), 0U);
  // Asked by someone who knows a longer history: this one began anew.
  EXPECT_EQ(Json::parse(log.Since(JobName("a"), 900))["events"].size(), 3U);
}

TEST(EventLog, IsBoundedAndKeepsNothingOfStrangers) {
  EventLog log;
  for (std::size_t i = 0; i < kMaxEvents + 10; ++i) {
    log.Add(TestEvent(EventKind::kForming), ClockPair{}, nullptr);
  }
  const Json all = Json::parse(log.Since(JobName("a"), 0));
  EXPECT_EQ(all["events"].size(), kMaxEvents);
  EXPECT_EQ(all["events"][0]["seq"], 11);
  Event refused = TestEvent(EventKind::kRefused);
  refused.job = JobName("stranger");
  log.Add(refused, ClockPair{}, nullptr);
  EXPECT_EQ(Json::parse(log.Since(JobName("stranger"), 0))["events"].size(), 0U);
}

TEST(Metrics, ExportsLivingJobsAlone) {
  Metrics metrics;
  Event started = TestEvent(EventKind::kStarted);
  started.incident = Incident{};
  started.incident->cause = Cause::kLeaseExpired;
  metrics.Observe(started);
  started.kind = EventKind::kFirstStep;
  started.incident->form = Duration::Millis(20);
  metrics.Observe(started);
  JobView view;
  view.job = JobName("a");
  view.phase = JobPhase::kRunning;
  view.world_size = 3;
  view.workers.resize(2);
  view.workers[0].role = view.workers[1].role = "member";
  view.workers[0].state = view.workers[1].state = "alive";
  ServerGauges server;
  server.sessions = 5;
  const std::string text = metrics.Render({view}, server);
  for (const char* line :
       {"muster_sessions 5\n", "muster_job_world_size{job=\"a\"} 3\n",
        "muster_job_phase{job=\"a\",phase=\"running\"} 1\n",
        "muster_job_phase{job=\"a\",phase=\"forming\"} 0\n",
        "muster_job_reforms_total{job=\"a\",cause=\"lease_expired\"} 1\n",
        "muster_incident_phase_seconds_count{job=\"a\",phase=\"form\"} 1\n",
        "muster_job_workers{job=\"a\",role=\"member\",state=\"alive\",connected=\"false\"} 2\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
  view.phase = JobPhase::kEnded;
  EXPECT_EQ(metrics.Render({view}, server).find("job=\"a\""), std::string::npos);
}

TEST(Exposure, BeyondLoopbackATokenIsNeeded) {
  for (const char* host : {"127.0.0.1", "127.1.2.3", "::1", "localhost"}) {
    EXPECT_TRUE(CheckExposure({host, 1}, "").ok()) << host;
  }
  for (const char* host : {"0.0.0.0", "::", "10.0.0.1", "example.org"}) {
    EXPECT_EQ(CheckExposure({host, 1}, "").code(), Code::kPermissionDenied) << host;
    EXPECT_TRUE(CheckExposure({host, 1}, "secret").ok()) << host;
  }
}

}  // namespace
}  // namespace muster::coordinator
