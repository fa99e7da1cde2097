#include "coordinator/server/http_api.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/coordinator/server/support.h"

namespace muster::coordinator {
namespace {

using Json = nlohmann::json;

JobView TestView(const std::string& name) {
  JobView view;
  view.job = JobName(name);
  view.phase = JobPhase::kRunning;
  view.generation = Generation(3);
  view.world_size = 2;
  view.spec = TestSpec();
  view.spec.tensors.resize(2);
  view.lineage = Lineage(255);
  view.committed = Step(41);
  view.loss = 1.5;
  view.waiting_for = "1 of 3";
  WorkerView worker;
  worker.member = {WorkerId("w0"), Incarnation(7)};
  worker.rank = Rank(0);
  worker.role = "member";
  worker.state = "alive";
  worker.connected = true;
  view.workers = {worker};
  view.checkpoints.push_back({{Step(40), Generation(3)},
                              CheckpointState::kAnnounced,
                              99,
                              2,
                              "s000000000040-g00000003",
                              ""});
  Incident incident;
  incident.number = 2;
  incident.cause = Cause::kProcessDied;
  incident.blamed.push_back(
      {{WorkerId("w1"), Incarnation(8)}, Cause::kProcessDied, "\"signal\" 9"});
  incident.abort = Duration::Micros(2500);
  incident.complete = true;
  view.incidents = {incident};
  return view;
}

ApiSource TestSource() {
  ApiSource source;
  source.jobs = [] { return std::vector<JobName>{JobName("a"), JobName("b:1")}; };
  source.describe = [](const JobName& job) -> std::optional<JobView> {
    if (job == JobName("a") || job == JobName("b:1")) return TestView(job.value());
    return std::nullopt;
  };
  source.events = [](const JobName& job, std::int64_t since) {
    return job.value() + "@" + std::to_string(since);
  };
  source.metrics = [] { return std::string("m 1\n"); };
  source.ready = [] { return Status(); };
  return source;
}

HttpResponse Get(const std::string& target, const ApiSource& source = TestSource()) {
  return Respond({"GET", target, ""}, source);
}

TEST(HttpApi, SaysThatItLivesAndWhetherItIsReady) {
  EXPECT_EQ(Get("/livez").status, 200);
  EXPECT_EQ(Get("/readyz").status, 200);
  ApiSource failing = TestSource();
  failing.ready = [] { return ResourceExhausted("disk full"); };
  EXPECT_EQ(Get("/readyz", failing).status, 503);
  EXPECT_EQ(Get("/readyz", failing).body, "disk full\n");
  EXPECT_EQ(Get("/livez", failing).status, 200);
}

TEST(HttpApi, SaysWithEachJobThatDecisionsCannotBeStored) {
  ApiSource failing = TestSource();
  failing.ready = [] { return ResourceExhausted("index volume full: /data"); };
  for (const char* target : {"/v1/jobs", "/v1/jobs/b:1"}) {
    EXPECT_EQ(Json::parse(Get(target, failing).body).value("not_ready", ""),
              "index volume full: /data")
        << target;
    EXPECT_FALSE(Json::parse(Get(target).body).contains("not_ready")) << target;
  }
}

TEST(HttpApi, ListsJobs) {
  const HttpResponse response = Get("/v1/jobs");
  EXPECT_EQ(response.content_type, "application/json");
  const Json json = Json::parse(response.body);
  ASSERT_EQ(json["jobs"].size(), 2U);
  EXPECT_EQ(json["jobs"][1]["job"], "b:1");
  EXPECT_EQ(json["jobs"][1]["workers"], 1);
}

TEST(HttpApi, DescribesOneJob) {
  const Json json = Json::parse(Get("/v1/jobs/a").body);
  EXPECT_EQ(json["phase"], "running");
  EXPECT_EQ(json["committed"], 41);
  EXPECT_EQ(json["lineage"], "00000000000000ff");
  EXPECT_EQ(json["spec"]["micro_batches"], 4);
  EXPECT_EQ(json["spec"]["tensors"], 2);
  EXPECT_EQ(json["workers"][0]["incarnation"], "0000000000000007");
  EXPECT_EQ(json["checkpoints"][0]["state"], "announced");
  EXPECT_EQ(json["incidents"][0]["phases_ms"]["abort"], 2.5);
  EXPECT_EQ(json["incidents"][0]["blamed"][0]["evidence"], "\"signal\" 9");
  EXPECT_EQ(json["incidents"][0]["complete"], true);
  EXPECT_FALSE(json.contains("end"));
  EXPECT_EQ(Get("/v1/jobs/b%3A1").status, 200);
}

TEST(HttpApi, NamesTheJobsThereAreForAnUnknownOne) {
  const HttpResponse response = Get("/v1/jobs/typo");
  EXPECT_EQ(response.status, 404);
  EXPECT_NE(response.body.find("\"typo\""), std::string::npos) << response.body;
  EXPECT_NE(response.body.find("a, b:1"), std::string::npos) << response.body;
  ApiSource empty = TestSource();
  empty.jobs = [] { return std::vector<JobName>(); };
  EXPECT_NE(Get("/v1/jobs/typo", empty).body.find("none yet"), std::string::npos);
}

TEST(HttpApi, GivesEventsSince) {
  EXPECT_EQ(Get("/v1/jobs/a/events").body, "a@0\n");
  EXPECT_EQ(Get("/v1/jobs/a/events?since=17").body, "a@17\n");
  EXPECT_EQ(Get("/v1/jobs/a/events?x=1&since=17").body, "a@17\n");
  EXPECT_EQ(Get("/v1/jobs/a/events?since=x").status, 400);
  EXPECT_EQ(Get("/v1/jobs/a/events?since=-1").status, 400);
  EXPECT_EQ(Get("/v1/jobs/typo/events").status, 404);
}

TEST(HttpApi, RefusesOtherPathsAndMethods) {
  EXPECT_EQ(Get("/").status, 404);
  EXPECT_EQ(Get("").status, 404);
  EXPECT_EQ(Get("/v1/jobsx").status, 404);
  EXPECT_EQ(Get("/v1/jobs/a/b").status, 400);
  EXPECT_EQ(Get("/v1/jobs/%zz").status, 400);
  EXPECT_EQ(Get("/v1/jobs/%4").status, 400);
  EXPECT_EQ(Get("/v1/jobs/%").status, 400);
  EXPECT_EQ(Get("/" + std::string(5000, 'x')).status, 400);
  EXPECT_EQ(Get("/v1/session").status, 426);
  const HttpResponse post = Respond({"POST", "/v1/jobs", ""}, TestSource());  // nothing to command
  EXPECT_EQ(post.status, 405);
  EXPECT_EQ(post.allow, "GET");
}

TEST(HttpApi, AsksForTheTokenWhereItMatters) {
  ApiSource source = TestSource();
  source.token = "s3cret";
  EXPECT_EQ(Get("/livez", source).status, 200);
  EXPECT_EQ(Get("/readyz", source).status, 200);
  for (const char* path : {"/v1/jobs", "/v1/jobs/a", "/v1/jobs/a/events", "/metrics"}) {
    EXPECT_EQ(Get(path, source).status, 401) << path;
    EXPECT_EQ(Respond({"GET", path, "Bearer s3creT"}, source).status, 401) << path;
    EXPECT_EQ(Respond({"GET", path, "Bearer s3cret"}, source).status, 200) << path;
  }
}

TEST(HttpApi, ComparesWholeTokens) {
  EXPECT_TRUE(Authorized("", ""));
  EXPECT_TRUE(Authorized("Bearer abc", "abc"));
  for (const char* offer : {"", "Bearer ", "Bearer ab", "Bearer abcd", "Bearer abcabc",
                            "bearer abc", "Basic abc", "abc", "Bearer  abc"}) {
    EXPECT_FALSE(Authorized(offer, "abc")) << offer;
  }
}

TEST(HttpApi, UpgradesTheSessionPathAlone) {
  EXPECT_FALSE(RefuseUpgrade({"GET", "/v1/session", ""}, "").has_value());
  EXPECT_EQ(RefuseUpgrade({"GET", "/v1/jobs", ""}, "")->status, 404);
  EXPECT_EQ(RefuseUpgrade({"GET", "/v1/session", "Bearer x"}, "y")->status, 401);
  EXPECT_FALSE(RefuseUpgrade({"GET", "/v1/session", "Bearer y"}, "y").has_value());
}

struct Commands {
  std::vector<Drain> drains;
  std::vector<ForceAdopt> adopts;
};

HttpResponse Post(const std::string& target, Commands* commands,
                  const std::string& authorization = "") {
  ApiSource source = TestSource();
  source.drain = [commands](const Drain& drain) { commands->drains.push_back(drain); };
  source.adopt = [commands](const ForceAdopt& adopt) { commands->adopts.push_back(adopt); };
  if (!authorization.empty()) source.token = "secret";
  return Respond({"POST", target, authorization == "none" ? "" : authorization}, source);
}

TEST(HttpApi, DrainsAPlaceAndWelcomesItAgain) {
  Commands commands;
  EXPECT_EQ(Post("/v1/jobs/b%3A1/drain?node=n1&within_ms=1500", &commands).status, 200);
  EXPECT_EQ(Post("/v1/jobs/a/drain?node=n1&worker=n1-0&undo=1", &commands).status, 200);
  ASSERT_EQ(commands.drains.size(), 2U);
  EXPECT_EQ(commands.drains[0].job, JobName("b:1"));
  EXPECT_EQ(commands.drains[0].node, NodeName("n1"));
  EXPECT_EQ(commands.drains[0].within, Duration::Millis(1500));
  EXPECT_FALSE(commands.drains[0].undo);
  EXPECT_EQ(commands.drains[1].worker, WorkerId("n1-0"));
  EXPECT_TRUE(commands.drains[1].undo);
  EXPECT_EQ(Post("/v1/jobs/a/adopt", &commands).status, 200);
  ASSERT_EQ(commands.adopts.size(), 1U);
}

TEST(HttpApi, CommandsThatMakeNoSenseAreRefusedByName) {
  Commands commands;
  for (const auto& [target, word] : std::vector<std::pair<std::string, std::string>>{
           {"/v1/jobs/a/drain", "name a node"},
           {"/v1/jobs/a/drain?nodes=n1", "nodes"},
           {"/v1/jobs/a/drain?node=", "no name"},
           {"/v1/jobs/a/drain?node=a%20b", "no name"},
           {"/v1/jobs/a/drain?node=n1&node=n2", "each once"},
           {"/v1/jobs/a/drain?node=%zz", "a=1"},
           {"/v1/jobs/a/drain?node=n1&within_ms=soon", "within_ms"},
           {"/v1/jobs/a/drain?node=n1&undo=maybe", "undo"},
           {"/v1/jobs/a/adopt?now=1", "no parameters"}}) {
    const HttpResponse response = Post(target, &commands);
    EXPECT_EQ(response.status, 400) << target;
    EXPECT_NE(response.body.find(word), std::string::npos) << response.body;
  }
  EXPECT_EQ(Post("/v1/jobs/zz/drain?node=n1", &commands).status, 404);
  EXPECT_EQ(Post("/v1/jobs/a/dance", &commands).status, 404);
  EXPECT_EQ(Post("/v1/jobs/a/drain?node=n1", &commands, "none").status, 401);
  EXPECT_EQ(Post("/v1/jobs/a/drain?node=n1", &commands, "Bearer wrong").status, 401);
  EXPECT_TRUE(commands.drains.empty());
  EXPECT_TRUE(commands.adopts.empty());
}

}  // namespace
}  // namespace muster::coordinator
