#include "worker/cli/ops_view.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace muster::cli {
namespace {

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kNow = 100'000 * kMs;
constexpr OpsNow kHere = {kNow, 1'700'000'000'000 * kMs, 7};
constexpr std::int64_t kFourMiB = 4 << 20;

// Rings by hand.
class Rings {
 public:
  // The next operations go to the ring of this worker.
  Rings& Worker(std::int32_t rank, Liveness liveness = Liveness::kAlive,
                std::int64_t generation = 3, std::int32_t world_size = 4) {
    FoundFlight found;
    found.liveness = liveness;
    found.log.identity.job = job;
    found.log.identity.worker = "w" + std::to_string(rank);
    found.log.identity.host = "n1";
    found.log.identity.pid = 800 + static_cast<std::int64_t>(flights.size());
    found.log.identity.pid_space = 7;
    found.path = "/flights/" + std::to_string(found.log.identity.pid);
    found.log.place.generation = Generation(generation);
    found.log.place.rank = Rank(rank);
    found.log.place.world_size = world_size;
    found.log.place.monotonic_ns = kNow - 50'000 * kMs;
    found.log.place.unix_ns = kHere.unix_ns - 50'000 * kMs + generation;
    flights.push_back(found);
    return *this;
  }
  Rings& Op(FlightKind kind, std::int64_t number, std::int64_t bytes, std::int64_t begun_ms_ago,
            std::optional<std::int64_t> done_ms_ago = {}, bool ok = true, std::int32_t peer = -1) {
    FlightLog& log = flights.back().log;
    FlightEntry entry;
    entry.index = log.entries.size();
    entry.number = number;
    entry.generation = log.place.generation;
    entry.kind = kind;
    entry.peer = peer;
    entry.bytes = bytes;
    entry.begin_ns = kNow - begun_ms_ago * kMs;
    if (done_ms_ago) {
      entry.done_ns = kNow - *done_ms_ago * kMs;
      entry.outcome = ok ? FlightOutcome::kOk : FlightOutcome::kFailed;
    }
    log.entries.push_back(entry);
    return *this;
  }
  // Done with 117, inside 118.
  Rings& Waiting(std::int64_t begun_ms_ago) {
    return Op(FlightKind::kAllReduce, 117, 64, 9000, 8000)
        .Op(FlightKind::kAllGather, 118, kFourMiB, begun_ms_ago);
  }
  Rings& Behind() { return Op(FlightKind::kAllReduce, 117, 64, 9000, 7000); }

  [[nodiscard]] JobOps Only() const {
    const auto jobs = CompareOps(flights, kHere);
    EXPECT_EQ(jobs.size(), 1U);
    return jobs.empty() ? JobOps() : jobs[0];
  }
  [[nodiscard]] std::string Verdict() const {
    std::string text;
    for (const std::string& line : Only().verdict) text += line + "\n";
    return text;
  }

  std::string job = "lm";
  std::vector<FoundFlight> flights;
};

TEST(CompareOpsTest, NamesALaggardAndWhereTheOthersWait) {
  Rings rings;
  rings.Worker(0).Waiting(2500).Worker(1).Waiting(2300).Worker(2).Behind().Worker(3).Waiting(2400);
  EXPECT_EQ(rings.Verdict(),
            "rank 2 (w2, pid 802, alive) has not entered operation 118 all_gather of 4.0 MiB, in "
            "which ranks 0, 1 and 3 have been for 2.3 s\n");
  const JobOps ops = rings.Only();
  EXPECT_EQ(ops.generation, Generation(3));
  EXPECT_DOUBLE_EQ(ops.rows[0].age_ms, 2500);
  EXPECT_DOUBLE_EQ(ops.rows[2].age_ms, 7000);
}

TEST(CompareOpsTest, NamesADeadRankThatIsMissed) {
  Rings rings;
  rings.Worker(0).Waiting(2300).Worker(1).Waiting(2300).Worker(2, Liveness::kDead).Behind();
  rings.Worker(3).Waiting(2300);
  EXPECT_EQ(rings.Verdict(),
            "rank 2 (w2, pid 802, dead) has not entered operation 118 all_gather of 4.0 MiB, in "
            "which ranks 0, 1 and 3 have been for 2.3 s\n"
            "rank 2 (w2, pid 802, dead) died outside of any operation\n");
}

TEST(CompareOpsTest, NamesARankThatDiedInTheOperationInWhichTheOthersAre) {
  Rings rings;
  rings.Worker(0).Waiting(2300).Worker(1, Liveness::kDead).Waiting(9000).Worker(2).Waiting(2350);
  rings.Worker(3).Waiting(2400);
  EXPECT_EQ(rings.Verdict(),
            "all 4 ranks have entered operation 118 all_gather of 4.0 MiB, in which ranks 0, 2 and "
            "3 have been for 2.3 s; rank 1 (w1, pid 801, dead) died in it\n");
}

TEST(CompareOpsTest, AJobThatDiedAsAWholeIsReadAfterwards) {
  Rings rings;
  rings.Worker(0, Liveness::kDead).Waiting(500).Worker(1, Liveness::kDead).Behind();
  rings.flights[0].log.place.world_size = rings.flights[1].log.place.world_size = 2;
  EXPECT_EQ(rings.Verdict(),
            "rank 1 (w1, pid 801, dead) has not entered operation 118 all_gather of 4.0 MiB, in "
            "which rank 0 (dead) was when it died\n"
            "rank 1 (w1, pid 801, dead) died outside of any operation\n");
}

TEST(CompareOpsTest, NamesAMismatchOfKindOrSizeEvenAfterwards) {
  Rings rings;
  rings.Worker(0).Waiting(2300).Worker(1).Waiting(2300);
  rings.Worker(2).Behind().Op(FlightKind::kAllReduce, 118, 8, 2000);
  rings.Worker(3).Waiting(2300);
  EXPECT_EQ(rings.Verdict().substr(0, rings.Verdict().find('\n')),
            "operation 118 is not the same everywhere: all_reduce of 8 B on rank 2 and all_gather "
            "of 4.0 MiB on ranks 0, 1 and 3");
  Rings sizes;
  sizes.Worker(0, Liveness::kAlive, 3, 2).Op(FlightKind::kAllReduce, 1, 8, 90, 80, false);
  sizes.Worker(1, Liveness::kAlive, 3, 2).Op(FlightKind::kAllReduce, 1, 16, 90, 80, false);
  EXPECT_EQ(sizes.Verdict(),
            "operation 1 is not the same everywhere: all_reduce of 8 B on rank 0 and all_reduce of "
            "16 B on rank 1\n"
            "operation 1 all_reduce of 8 B failed or was interrupted on ranks 0 and 1\n"
            "nobody waits: all 2 ranks have left operation 1 all_reduce of 8 B\n");
  // Each rank sends what it has in an exchange: no mismatch.
  Rings exchange;
  exchange.Worker(0, Liveness::kAlive, 3, 2).Op(FlightKind::kExchange, 1, 8, 90, 80);
  exchange.Worker(1, Liveness::kAlive, 3, 2).Op(FlightKind::kExchange, 1, 16, 90, 80);
  EXPECT_EQ(exchange.Verdict(), "nobody waits: all 2 ranks have left operation 1 exchange\n");
}

TEST(CompareOpsTest, SaysThatNobodyWaits) {
  Rings rings;
  for (std::int32_t rank = 0; rank < 4; ++rank) rings.Worker(rank).Behind();
  EXPECT_EQ(rings.Verdict(),
            "nobody waits: all 4 ranks have left operation 117 all_reduce of 64 B\n");
  rings.flights[0].log.entries[0].number = 118;
  EXPECT_EQ(rings.Verdict(),
            "nobody waits: rank 1 (w1, pid 801, alive), rank 2 (w2, pid 802, alive) and rank 3 "
            "(w3, pid 803, alive) have not entered operation 118 all_reduce of 64 B, which is over "
            "for the others\n");
  Rings fresh;
  fresh.Worker(0, Liveness::kAlive, 1, 1);
  EXPECT_EQ(fresh.Verdict(), "nobody waits: no operation has begun in this generation\n");
  Rings none;
  none.Worker(-1, Liveness::kAlive, 0, 0);
  EXPECT_EQ(none.Verdict(), "nobody waits: no worker is in a generation yet\n");
}

TEST(CompareOpsTest, SaysThatAllAreInTheSameOperation) {
  Rings rings;
  for (std::int32_t rank = 0; rank < 4; ++rank) rings.Worker(rank).Waiting(1000 + rank);
  EXPECT_EQ(rings.Verdict(),
            "all 4 ranks have entered operation 118 all_gather of 4.0 MiB, in which ranks 0, 1, 2 "
            "and 3 have been for 1.0 s: nobody is missing\n");
}

TEST(CompareOpsTest, ToldApartAreThoseFurtherOnAndThoseLeftBehindInside) {
  Rings rings;
  rings.Worker(0).Waiting(2300);
  rings.flights.back().log.entries.back().outcome = FlightOutcome::kOk;
  rings.Op(FlightKind::kBarrier, 119, 0, 2000);
  rings.Worker(1).Waiting(2300).Worker(2).Behind();
  rings.Worker(3).Op(FlightKind::kAllReduce, 117, 64, 9000);
  EXPECT_EQ(
      rings.Verdict(),
      "rank 2 (w2, pid 802, alive) and rank 3 (w3, pid 803, alive) have not entered "
      "operation 118 all_gather of 4.0 MiB, in which rank 1 has been for 2.3 s\n"
      "operation 117 all_reduce of 64 B is over for the others, and rank 3 has been in it for "
      "9.0 s\n"
      "further on, in operation 119 barrier, rank 0 has been for 2.0 s\n");
}

TEST(CompareOpsTest, OlderGenerationsAreShownAndNotJudged) {
  Rings rings;
  rings.Worker(0, Liveness::kAlive, 4, 2).Behind().Worker(1, Liveness::kAlive, 4, 2).Behind();
  rings.Worker(2, Liveness::kDead, 3).Waiting(2300);
  rings.Worker(1, Liveness::kAlive, 3).Waiting(4000);
  const JobOps ops = rings.Only();
  EXPECT_EQ(rings.Verdict(),
            "nobody waits: all 2 ranks have left operation 117 all_reduce of 64 B\n");
  ASSERT_EQ(ops.rows.size(), 4U);
  EXPECT_TRUE(ops.rows[1].current);
  EXPECT_FALSE(ops.rows[2].current);
  EXPECT_EQ(ops.rows[2].generation, Generation(3));
  EXPECT_FALSE(ops.rows[3].current);
}

// A new run of the same job counts its generations from 1 again.
TEST(CompareOpsTest, TheDeadOfAnEarlierRunAreNotOfThisGeneration) {
  Rings rings;
  rings.Worker(0, Liveness::kDead, 57, 2).Waiting(90'000);
  rings.Worker(1, Liveness::kDead, 1, 2).Waiting(90'000);
  rings.flights.back().log.place.lineage = Lineage(1);
  rings.Worker(0, Liveness::kAlive, 1, 2).Behind();
  rings.flights.back().log.place.lineage = Lineage(2);
  EXPECT_EQ(rings.Only().generation, Generation(1));
  EXPECT_EQ(rings.Verdict(),
            "nobody waits: the only rank here has left operation 117 all_reduce of 64 B\n"
            "of rank 1 there is no ring here: on another host, left in order, or not in this "
            "generation yet\n");
}

// Two terminals, each with `muster run --standalone`.
TEST(CompareOpsTest, TwoJobsOfOneNameAreToldApart) {
  Rings rings;
  rings.Worker(0, Liveness::kAlive, 5, 2).Waiting(2300);
  rings.Worker(1, Liveness::kAlive, 5, 2).Behind();
  for (FoundFlight& found : rings.flights) found.log.place.lineage = Lineage(1);
  rings.Worker(0, Liveness::kAlive, 6, 1).Behind();
  rings.flights.back().log.place.lineage = Lineage(2);
  rings.Worker(3, Liveness::kDead, 2, 4).Behind();
  rings.flights.back().log.place.lineage = Lineage(3);
  const std::vector<JobOps> jobs = CompareOps(rings.flights, kHere);
  ASSERT_EQ(jobs.size(), 2U);
  EXPECT_EQ(jobs[0].generation, Generation(6));
  EXPECT_EQ(jobs[0].rows.size(), 2U);
  EXPECT_EQ(jobs[1].generation, Generation(5));
  EXPECT_EQ(jobs[1].rows.size(), 2U);
  EXPECT_EQ(jobs[1].verdict.front(),
            "rank 1 (w1, pid 801, alive) has not entered operation 118 all_gather of 4.0 MiB, in "
            "which rank 0 has been for 2.3 s");
  EXPECT_EQ(jobs[1].verdict.back(),
            "2 jobs of this name run on this host, each with a coordinator of its own");
}

TEST(CompareOpsTest, SendAndRecvAreComparedPairByPair) {
  Rings rings;
  rings.Worker(0, Liveness::kAlive, 3, 2)
      .Op(FlightKind::kRecv, 3, 64, 1500, {}, true, 1)
      .Worker(1, Liveness::kAlive, 3, 2)
      .Op(FlightKind::kSend, 2, 64, 3000, 2900, true, 0);
  EXPECT_EQ(
      rings.Verdict(),
      "rank 0 (w0, pid 800, alive) has been in operation 3 recv of 64 B from rank 1 for 1.5 s; "
      "rank 1 (w1, pid 801, alive) has not entered its send\n");
  rings.Op(FlightKind::kSend, 3, 64, 1000, {}, true, 0);
  EXPECT_NE(rings.Verdict().find("alive) has entered its send\n"), std::string::npos);
}

TEST(CompareOpsTest, RingsOfAnotherHostAreComparedByTheWallClock) {
  Rings rings;
  rings.Worker(0, Liveness::kUnknown, 3, 2)
      .Waiting(2300)
      .Worker(1, Liveness::kAlive, 3, 2)
      .Behind();
  FlightLog& far = rings.flights[0].log;
  far.identity.pid_space = 8;
  far.identity.host = "n2";
  far.place.monotonic_ns += 777 * kMs;
  for (FlightEntry& entry : far.entries) entry.begin_ns += 777 * kMs;
  EXPECT_NEAR(rings.Only().rows[0].age_ms, 2300, 0.001);
}

TEST(CompareOpsTest, AnyNumbersAreBorne) {
  Rings rings;
  rings.Worker(0).Waiting(1).Worker(1).Behind();
  rings.flights[0].log.place.world_size = 2'000'000'000;
  rings.flights[0].log.place.unix_ns = INT64_MIN;
  rings.flights[1].log.place.unix_ns = INT64_MIN;
  rings.flights[0].log.entries[1].begin_ns = INT64_MIN;
  rings.flights[0].log.entries[1].bytes = INT64_MAX;
  rings.flights[1].log.identity.worker = "\x1b[31m\xff";
  const std::string text = RenderOps(CompareOps(rings.flights, kHere), {"bad\x1b"});
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_NE(text.find("has not entered operation 118"), std::string::npos);
  EXPECT_FALSE(OpsJson(CompareOps(rings.flights, kHere), {}).empty());
}

TEST(CompareOpsTest, OneJobOfSeveral) {
  Rings rings;
  rings.Worker(0).Behind();
  rings.job = "other";
  rings.Worker(0).Behind();
  EXPECT_EQ(CompareOps(rings.flights, kHere).size(), 2U);
  const auto one = CompareOps(rings.flights, kHere, "other");
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one[0].job, "other");
  EXPECT_TRUE(CompareOps(rings.flights, kHere, "none").empty());
}

TEST(RenderOpsTest, Screen) {
  Rings rings;
  rings.Worker(0, Liveness::kAlive, 3, 2).Waiting(2300).Worker(1, Liveness::kDead, 3, 2).Behind();
  rings.Worker(2, Liveness::kUnknown, 2).Op(FlightKind::kBroadcast, 9, 2048, 60, 50, false, 1);
  EXPECT_EQ(
      RenderOps(CompareOps(rings.flights, kHere), {"/flights/x.flight: garbage"}),
      "job lm: generation 3, 2 workers\n"
      "\n"
      "RANK  WORKER  HOST  PID  LIFE   GENERATION  LAST OPERATION                      STATE\n"
      "0     w0      n1    800  alive  3           118 all_gather of 4.0 MiB           in it "
      "for 2.3 s\n"
      "1     w1      n1    801  dead   3           117 all_reduce of 64 B              done "
      "7.0 s ago\n"
      "(2)   w2      n1    802  ?      2           9 broadcast of 2.0 KiB from rank 1  failed "
      "50 ms ago\n"
      "\n"
      "rank 1 (w1, pid 801, dead) has not entered operation 118 all_gather of 4.0 MiB, in "
      "which rank 0 has been for 2.3 s\n"
      "rank 1 (w1, pid 801, dead) died outside of any operation\n"
      "\n"
      "unreadable: /flights/x.flight: garbage\n");
}

TEST(OpsJsonTest, HasTheSame) {
  Rings rings;
  rings.Worker(0, Liveness::kAlive, 3, 2).Waiting(2300).Worker(1, Liveness::kUnknown, 3, 2);
  const auto json = nlohmann::json::parse(OpsJson(CompareOps(rings.flights, kHere), {"x"}));
  const auto& job = json["jobs"][0];
  EXPECT_EQ(job["generation"], 3);
  EXPECT_EQ(job["workers"][0]["operation"]["kind"], "all_gather");
  EXPECT_EQ(job["workers"][0]["operation"]["outcome"], "running");
  EXPECT_EQ(job["workers"][1]["life"], "unknown");
  EXPECT_FALSE(job["workers"][1].contains("operation"));
  EXPECT_EQ(job["verdict"].size(), 1U);
  EXPECT_EQ(json["unreadable"][0], "x");
}

// The command itself, over rings that real writers left, with garbage beside them.
TEST(RunOpsTest, ReadsADirectory) {
  std::string pattern = ::testing::TempDir() + "muster-ops-XXXXXX";
  const std::string directory = ::mkdtemp(pattern.data());
  const auto output = [&](const OpsOptions& options, int expected) {
    ::testing::internal::CaptureStdout();
    EXPECT_EQ(RunOps(options), expected);
    return ::testing::internal::GetCapturedStdout();
  };
  OpsOptions options;
  options.directory = directory;
  EXPECT_NE(output(options, 0).find("no flight rings in " + directory), std::string::npos);
  std::vector<FlightFile> files(2);
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    FlightFile& file = files[static_cast<std::size_t>(rank)];
    const WorkerId worker("w" + std::to_string(rank));
    ASSERT_TRUE(file.Open(directory, ThisProcess(JobName("lm"), worker)).ok());
    file.ring().StartGeneration(Generation(1), Lineage(1), Rank(rank), 2);
    file.ring().Done(file.ring().Begin(FlightKind::kBarrier, 0), true);
  }
  (void)files[1].ring().Begin(FlightKind::kAllReduce, 64);
  std::ofstream(directory + "/garbage.flight") << std::string(100'000, 'g');
  const std::string text = output(options, 0);
  EXPECT_NE(text.find(") has not entered operation 2 all_reduce of 64 B, in which rank 1 has been"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("rank 0 (w0, pid " + std::to_string(::getpid()) + ", alive)"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("unreadable: " + directory + "/garbage.flight"), std::string::npos) << text;
  options.json = true;
  EXPECT_TRUE(nlohmann::json::accept(output(options, 0)));
  options.directory += "/none";
  EXPECT_EQ(output(options, 1), "");
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace muster::cli
