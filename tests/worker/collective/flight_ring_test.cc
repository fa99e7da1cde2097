#include "worker/collective/flight_ring.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/worker/collective/group.h"
#include "worker/collective/recorded_communicator.h"

namespace muster {
namespace {

FlightIdentity Someone() {
  FlightIdentity identity;
  identity.job = "lm";
  identity.worker = "n1-0";
  identity.host = "n1";
  identity.pid = 4711;
  identity.start_ticks = 99;
  identity.pid_space = 7;
  return identity;
}

class FlightRingTest : public ::testing::Test {
 protected:
  FlightRingTest() {
    std::string pattern = ::testing::TempDir() + "muster-flight-XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
    path_ = directory_ + "/a.flight";
  }
  ~FlightRingTest() override { std::filesystem::remove_all(directory_); }

  FlightRing Make() {
    Result<FlightRing> ring = FlightRing::Create(path_, Someone());
    EXPECT_TRUE(ring.ok()) << ring.status().ToString();
    return ring.ok() ? std::move(*ring) : FlightRing();
  }
  FlightLog Read() {
    Result<FlightLog> log = ReadFlightRing(path_);
    EXPECT_TRUE(log.ok()) << log.status().ToString();
    return log.ok() ? *log : FlightLog();
  }
  std::string Bytes() {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void Put(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }

  std::string directory_;
  std::string path_;
};

TEST_F(FlightRingTest, SaysWhoseItIsAndWhereThatStands) {
  FlightRing ring = Make();
  EXPECT_EQ(Read().identity, Someone());
  EXPECT_EQ(Read().place.generation, Generation());
  EXPECT_EQ(Read().place.world_size, 0);
  for (int generation = 1; generation <= 3; ++generation) {
    ring.StartGeneration(Generation(generation), Lineage(0xab), Rank(2), 4);
    const FlightPlace place = Read().place;
    EXPECT_EQ(place.generation, Generation(generation));
    EXPECT_EQ(place.lineage, Lineage(0xab));
    EXPECT_EQ(place.rank, Rank(2));
    EXPECT_EQ(place.world_size, 4);
    EXPECT_GT(place.monotonic_ns, 0);
    EXPECT_GT(place.unix_ns, 0);
  }
}

TEST_F(FlightRingTest, OperationsAreCountedWithinTheGenerationAndPairwiseOnesPerPeer) {
  FlightRing ring = Make();
  ring.StartGeneration(Generation(1), Lineage(), Rank(0), 3);
  ring.Done(ring.Begin(FlightKind::kAllReduce, 4096), true);
  ring.Done(ring.Begin(FlightKind::kSend, 8, Rank(1)), true);
  ring.Done(ring.Begin(FlightKind::kSend, 8, Rank(2)), true);
  ring.Done(ring.Begin(FlightKind::kSend, 8, Rank(1)), false);
  ring.Done(ring.Begin(FlightKind::kRecv, 8, Rank(1)), true);
  ring.Done(ring.Begin(FlightKind::kBarrier, 0), true);
  ring.StartGeneration(Generation(2), Lineage(), Rank(0), 2);
  (void)ring.Begin(FlightKind::kBroadcast, 16, Rank(1));
  const FlightLog log = Read();
  std::vector<std::pair<FlightKind, std::int64_t>> seen;
  for (const FlightEntry& entry : log.entries) seen.emplace_back(entry.kind, entry.number);
  const std::vector<std::pair<FlightKind, std::int64_t>> expected = {
      {FlightKind::kAllReduce, 1}, {FlightKind::kSend, 1}, {FlightKind::kSend, 1},
      {FlightKind::kSend, 2},      {FlightKind::kRecv, 1}, {FlightKind::kBarrier, 2},
      {FlightKind::kBroadcast, 1},
  };
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(log.entries[0].bytes, 4096);
  EXPECT_EQ(log.entries[0].outcome, FlightOutcome::kOk);
  EXPECT_GE(log.entries[0].done_ns, log.entries[0].begin_ns);
  EXPECT_EQ(log.entries[3].outcome, FlightOutcome::kFailed);
  const FlightEntry& last = log.entries.back();
  EXPECT_EQ(last.generation, Generation(2));
  EXPECT_EQ(last.outcome, FlightOutcome::kRunning);
  EXPECT_EQ(last.peer, 1);
  EXPECT_EQ(last.done_ns, 0);
}

TEST_F(FlightRingTest, KeepsTheLastOnes) {
  FlightRing ring = Make();
  ring.StartGeneration(Generation(1), Lineage(), Rank(0), 1);
  const FlightRing::Ticket first = ring.Begin(FlightKind::kBarrier, 0);
  for (std::size_t i = 0; i < kFlightEntries + 10; ++i) {
    ring.Done(ring.Begin(FlightKind::kAllReduce, static_cast<std::int64_t>(i)), true);
  }
  ring.Done(first, false);  // its place is another's by now
  const FlightLog log = Read();
  ASSERT_EQ(log.entries.size(), kFlightEntries);
  EXPECT_EQ(log.entries.front().index, 11U);
  EXPECT_EQ(log.entries.back().number, static_cast<std::int64_t>(kFlightEntries) + 11);
  for (const FlightEntry& entry : log.entries) EXPECT_EQ(entry.outcome, FlightOutcome::kOk);
}

TEST_F(FlightRingTest, AnInactiveOneRecordsNothing) {
  FlightRing ring;
  ring.StartGeneration(Generation(1), Lineage(), Rank(0), 1);
  ring.Done(ring.Begin(FlightKind::kBarrier, 0), true);
  EXPECT_FALSE(ring.active());
}

TEST_F(FlightRingTest, TakesNoFileThatIsThere) {
  Put("somebody's");
  EXPECT_EQ(FlightRing::Create(path_, Someone()).status().code(), Code::kAlreadyExists);
  EXPECT_EQ(Bytes(), "somebody's");
  EXPECT_EQ(FlightRing::Create(directory_ + "/no/a.flight", Someone()).status().code(),
            Code::kNotFound);
}

TEST_F(FlightRingTest, ReadsNothingFromWhatIsNoRing) {
  EXPECT_EQ(ReadFlightRing(path_).status().code(), Code::kNotFound);
  EXPECT_EQ(ReadFlightRing(directory_).status().code(), Code::kDataLoss);
  const std::string whole = (Make(), Bytes());
  ASSERT_EQ(whole.size(), kFlightFileBytes);
  std::string other = whole;
  other[8] = 2;
  Put(other);
  const Status version = ReadFlightRing(path_).status();
  EXPECT_NE(version.message().find("version 2"), std::string::npos) << version.ToString();
  for (const std::string& bytes :
       {std::string(), whole.substr(0, 1), whole.substr(0, kFlightFileBytes - 1), whole + "x",
        std::string(kFlightFileBytes, '\0'), std::string(kFlightFileBytes, '\xff')}) {
    Put(bytes);
    EXPECT_EQ(ReadFlightRing(path_).status().code(), Code::kDataLoss) << bytes.size();
  }
  std::filesystem::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(ReadFlightRing(path_).status().code(), Code::kDataLoss);
}

// Whatever byte is changed: the entry that it belongs to is left out or reads as it was.
TEST_F(FlightRingTest, ADamagedEntryIsNeverShown) {
  {
    FlightRing ring = Make();
    ring.StartGeneration(Generation(5), Lineage(1), Rank(1), 2);
    for (int i = 0; i < 3; ++i) ring.Done(ring.Begin(FlightKind::kAllGather, 1000 + i), true);
  }
  const FlightLog sound = Read();
  const std::string whole = Bytes();
  for (std::size_t at = 4096; at < 4096 + 64 * 3; ++at) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x40);
    Put(bytes);
    const FlightLog log = Read();
    for (const FlightEntry& entry : log.entries) {
      EXPECT_EQ(entry, sound.entries[entry.index]) << "byte " << at;
    }
    EXPECT_EQ(log.entries.size(), 2U) << "byte " << at;
  }
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::string bytes = whole;
    for (int i = 0; i < 40; ++i) bytes[random() % 4400] = static_cast<char>(random());
    Put(bytes);
    const Result<FlightLog> log = ReadFlightRing(path_);
    if (!log.ok()) {
      EXPECT_EQ(log.status().code(), Code::kDataLoss);
      continue;
    }
    EXPECT_EQ(log->identity, Someone());
    for (const FlightEntry& entry : log->entries) EXPECT_EQ(entry, sound.entries[entry.index]);
  }
}

TEST_F(FlightRingTest, IsReadWhileItIsWritten) {
  FlightRing ring = Make();
  std::atomic<bool> over = false;
  std::thread writer([&] {
    for (std::int64_t generation = 1; !over; ++generation) {
      ring.StartGeneration(Generation(generation), Lineage(static_cast<std::uint64_t>(generation)),
                           Rank(0), 1);
      for (std::int64_t i = 1; i <= 100; ++i) {
        ring.Done(ring.Begin(FlightKind::kAllReduce, generation * 1000 + i), i % 2 == 0);
      }
    }
  });
  std::size_t seen = 0;
  for (int round = 0; round < 200 || seen < 100'000; ++round) {
    const FlightLog log = Read();
    EXPECT_EQ(log.place.lineage.value(), static_cast<std::uint64_t>(log.place.generation.value()));
    for (const FlightEntry& entry : log.entries) {
      EXPECT_EQ(entry.bytes, entry.generation.value() * 1000 + entry.number);
      if (entry.outcome != FlightOutcome::kRunning) {
        EXPECT_EQ(entry.outcome == FlightOutcome::kOk, entry.number % 2 == 0);
      }
    }
    seen += log.entries.size();
  }
  over = true;
  writer.join();
}

TEST_F(FlightRingTest, OutlivesTheKillOfItsProcessInsideAnOperation) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Result<FlightRing> ring = FlightRing::Create(path_, Someone());
    if (!ring.ok()) ::_exit(1);
    ring->StartGeneration(Generation(3), Lineage(), Rank(1), 4);
    ring->Done(ring->Begin(FlightKind::kAllReduce, 100), true);
    (void)ring->Begin(FlightKind::kAllGather, std::int64_t{4} << 20);
    (void)!::write(ready[1], "x", 1);
    for (;;) ::pause();
  }
  ::close(ready[1]);
  char byte = 0;
  EXPECT_EQ(::read(ready[0], &byte, 1), 1);
  ::close(ready[0]);
  ::kill(child, SIGKILL);
  int how = 0;
  ASSERT_EQ(::waitpid(child, &how, 0), child);
  ASSERT_TRUE(WIFSIGNALED(how));
  const FlightLog log = Read();
  EXPECT_EQ(log.place.generation, Generation(3));
  ASSERT_EQ(log.entries.size(), 2U);
  EXPECT_EQ(log.entries[0].outcome, FlightOutcome::kOk);
  EXPECT_EQ(log.entries[1].number, 2);
  EXPECT_EQ(log.entries[1].kind, FlightKind::kAllGather);
  EXPECT_EQ(log.entries[1].bytes, 4 << 20);
  EXPECT_EQ(log.entries[1].outcome, FlightOutcome::kRunning);
}

// Every operation of the interface, with the outcome that the caller saw.
TEST_F(FlightRingTest, ARecordedCommunicatorWritesDownEveryOperation) {
  FlightRing ring = Make();
  std::vector<std::shared_ptr<Communicator>> ranks;
  for (auto& rank : testing::LocalRanks(2)) ranks.push_back(std::move(rank));
  FlightRing none;
  RecordedCommunicator zero(ranks[0], ring, Generation(9), Lineage(5));
  RecordedCommunicator one(ranks[1], none, Generation(9));
  EXPECT_EQ(zero.backend(), "local");
  const auto work = [](Communicator& self) -> Status {
    std::vector<std::byte> buffer(16);
    const std::vector<std::int64_t> counts = {12, 4};
    MUSTER_RETURN_IF_ERROR(self.AllReduce(buffer, ElementType::kFloat32, ReduceOp::kSum));
    MUSTER_RETURN_IF_ERROR(self.AllGather(buffer, counts));
    MUSTER_RETURN_IF_ERROR(self.Broadcast(buffer, Rank(1)));
    std::vector<std::byte> in(6);
    const std::vector<std::span<const std::byte>> outgoing(2, std::span(buffer).first(3));
    const std::vector<std::span<std::byte>> incoming = {std::span(in).first(3),
                                                        std::span(in).last(3)};
    MUSTER_RETURN_IF_ERROR(self.Exchange(outgoing, incoming));
    if (self.rank() == Rank(0)) {
      MUSTER_RETURN_IF_ERROR(self.Send(buffer, Rank(1)));
      MUSTER_RETURN_IF_ERROR(self.Recv(buffer, Rank(1)));
    } else {
      MUSTER_RETURN_IF_ERROR(self.Recv(buffer, Rank(0)));
      MUSTER_RETURN_IF_ERROR(self.Send(buffer, Rank(0)));
    }
    return self.Barrier();
  };
  const auto all = testing::OnEach(2, [&](std::int32_t rank) {
    return work(rank == 0 ? static_cast<Communicator&>(zero) : one);
  });
  EXPECT_EQ(testing::Unlike(Code::kOk, all), "");
  EXPECT_EQ(zero.operations_begun(), ranks[0]->operations_begun());
  zero.Abort();
  EXPECT_EQ(zero.Barrier().code(), Code::kInterrupted);
  EXPECT_TRUE(zero.AwaitAborted(testing::kBound).ok());

  const FlightLog log = Read();
  EXPECT_EQ(log.place.generation, Generation(9));
  EXPECT_EQ(log.place.lineage, Lineage(5));
  EXPECT_EQ(log.place.world_size, 2);
  std::string text;
  for (const FlightEntry& entry : log.entries) {
    text += std::string(FlightKindName(entry.kind)) + " " + std::to_string(entry.number) + " " +
            std::to_string(entry.bytes) + " " + std::to_string(entry.peer) +
            (entry.outcome == FlightOutcome::kOk ? " ok\n" : " not ok\n");
  }
  EXPECT_EQ(text,
            "all_reduce 1 16 -1 ok\nall_gather 2 16 -1 ok\nbroadcast 3 16 1 ok\n"
            "exchange 4 6 -1 ok\nsend 1 16 1 ok\nrecv 1 16 1 ok\nbarrier 5 0 -1 ok\n"
            "barrier 6 0 -1 not ok\n");
}

}  // namespace
}  // namespace muster
