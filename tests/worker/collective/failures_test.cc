// What happens when ranks disagree, die, stop or are interrupted. C03, C07, C12, C11, M21.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/worker/collective/group.h"
#include "worker/collective/frame.h"

namespace muster::testing {
namespace {

constexpr std::size_t kLong = 5 * 1024 * 1024;
using Body = std::function<Status(Communicator&)>;

struct Named {
  std::string name;
  Body body;
};

// Every operation, long enough to block in the middle and short enough to block at the start.
std::vector<Named> AllOperations() {
  std::vector<Named> all;
  for (const std::size_t bytes : {std::size_t{8}, kLong}) {
    const std::string size = std::to_string(bytes);
    all.push_back({"all_reduce " + size, [bytes](Communicator& ours) {
                     std::vector<std::byte> buffer(bytes);
                     return ours.AllReduce(buffer, ElementType::kFloat64, ReduceOp::kSum);
                   }});
    all.push_back({"all_gather " + size, [bytes](Communicator& ours) {
                     const auto world = static_cast<std::size_t>(ours.world_size());
                     const std::vector<std::int64_t> counts(world,
                                                            static_cast<std::int64_t>(bytes));
                     std::vector<std::byte> buffer(bytes * world);
                     return ours.AllGather(buffer, counts);
                   }});
    all.push_back({"broadcast " + size, [bytes](Communicator& ours) {
                     std::vector<std::byte> buffer(bytes);
                     return ours.Broadcast(buffer, Rank(1));
                   }});
    all.push_back({"exchange " + size, [bytes](Communicator& ours) {
                     const auto world = static_cast<std::size_t>(ours.world_size());
                     const std::vector<std::byte> out(bytes);
                     std::vector<std::vector<std::byte>> in(world, std::vector<std::byte>(bytes));
                     const std::vector<std::span<const std::byte>> outgoing(world, out);
                     const std::vector<std::span<std::byte>> incoming(in.begin(), in.end());
                     return ours.Exchange(outgoing, incoming);
                   }});
    all.push_back({"send " + size, [bytes](Communicator& ours) {
                     return ours.Send(std::vector<std::byte>(bytes), Rank(1));
                   }});
    all.push_back({"recv " + size, [bytes](Communicator& ours) {
                     std::vector<std::byte> buffer(bytes);
                     return ours.Recv(buffer, Rank(1));
                   }});
  }
  all.push_back({"barrier", [](Communicator& ours) { return ours.Barrier(); }});
  return all;
}

// Ranks without communicators: the test holds their sockets, and says what they do.
struct Puppets {
  std::vector<std::vector<UniqueFd>> sockets;  // of the ranks that are played by hand
  Ranks ranks;                                 // of the real ones, which come first
};
Puppets RealRanksOf(std::int32_t real, std::int32_t size, Duration deadline = kForever) {
  Puppets group{TcpSockets(size), {}};
  for (std::int32_t rank = 0; rank < real; ++rank) {
    group.ranks.push_back(std::make_unique<TcpCommunicator>(
        Rank(rank), std::move(group.sockets[static_cast<std::size_t>(rank)]), "tcp", deadline));
  }
  return group;
}

// ---- Interrupts -----------------------------------------------------------------------------

TEST(CommunicatorAbort, EndsEveryOperationFromAnotherThread) {
  for (const bool tcp : {true, false}) {
    for (const Named& operation : AllOperations()) {
      const Ranks ranks = tcp ? TcpRanks(3) : LocalRanks(3);
      // Ranks 1 and 2 never come.
      std::future<Status> blocked =
          std::async(std::launch::async, [&] { return operation.body(*ranks[0]); });
      ASSERT_TRUE(Eventually([&] { return ranks[0]->operations_begun() == 1; }));
      const Instant start = PollClockNow();
      ranks[0]->Abort();
      EXPECT_EQ(ranks[0]->AwaitAborted(kBound), Status()) << operation.name;
      const Duration took = PollClockNow() - start;
      EXPECT_EQ(blocked.get().code(), Code::kInterrupted) << operation.name;
      EXPECT_LT(took, Duration::Seconds(10)) << operation.name;  // milliseconds on a quiet machine
      EXPECT_EQ(operation.body(*ranks[0]).code(), Code::kInterrupted) << operation.name;
      EXPECT_EQ(ranks[0]->failed_peer(), std::nullopt);
    }
  }
}

// The same in the middle of the data: the peer takes part of it and then nothing more.
TEST(CommunicatorAbort, EndsATransferThatIsStuckInTheMiddle) {
  Puppets group = RealRanksOf(1, 2);
  std::future<Status> blocked = std::async(std::launch::async, [&] {
    return group.ranks[0]->Send(std::vector<std::byte>(4 * kLong), Rank(1));
  });
  const int peer = group.sockets[1][0].get();
  FrameHeader header;
  ASSERT_EQ(::recv(peer, &header, sizeof header, MSG_WAITALL), ssize_t{sizeof header});
  std::swap(header.outgoing_bytes, header.incoming_bytes);
  header.operation = Operation::kRecv;
  ASSERT_EQ(::send(peer, &header, sizeof header, 0), ssize_t{sizeof header});
  std::vector<std::byte> some(1024 * 1024);
  ASSERT_EQ(::recv(peer, some.data(), some.size(), MSG_WAITALL), static_cast<ssize_t>(some.size()));
  group.ranks[0]->Abort();
  EXPECT_EQ(group.ranks[0]->AwaitAborted(kBound), Status());
  EXPECT_EQ(blocked.get().code(), Code::kInterrupted);
}

TEST(CommunicatorAbort, AwaitAbortedHasALimitAndAbortMayBeRepeated) {
  const Ranks ranks = TcpRanks(1);
  ranks[0]->Abort();
  ranks[0]->Abort();
  EXPECT_EQ(ranks[0]->AwaitAborted(Duration::Max()), Status());
  EXPECT_EQ(ranks[0]->Barrier().code(), Code::kInterrupted);
}

// A rank that was interrupted first must not be reported as dead by those that are not yet.
TEST(CommunicatorAbort, LeavingIsNotDying) {
  Ranks ranks = TcpRanks(2);
  std::future<Status> other = std::async(std::launch::async, [&] { return ranks[1]->Barrier(); });
  ASSERT_TRUE(Eventually([&] { return ranks[1]->operations_begun() == 1; }));
  ranks[0]->Abort();
  ASSERT_EQ(ranks[0]->AwaitAborted(kBound), Status());
  ranks[0].reset();
  EXPECT_EQ(other.get().code(), Code::kUnavailable);
  EXPECT_EQ(ranks[1]->failed_peer(), std::nullopt);
}

// ---- Deaths ---------------------------------------------------------------------------------

TEST(CommunicatorDeath, OfAPeerIsNamedInEveryOperation) {
  for (const Named& operation : AllOperations()) {
    Puppets group = RealRanksOf(1, 2);
    std::future<Status> blocked =
        std::async(std::launch::async, [&] { return operation.body(*group.ranks[0]); });
    ASSERT_TRUE(Eventually([&] { return group.ranks[0]->operations_begun() == 1; }));
    group.sockets[1].clear();
    const Status status = blocked.get();
    EXPECT_EQ(status.code(), Code::kUnavailable) << operation.name << ": " << status.ToString();
    EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.ToString();
    EXPECT_EQ(group.ranks[0]->failed_peer(), Rank(1)) << operation.name;
    EXPECT_EQ(operation.body(*group.ranks[0]).code(), Code::kUnavailable) << "it stays failed";
  }
}

TEST(CommunicatorDeath, WhileIdleShowsInTheNextOperation) {
  for (const bool reset : {false, true}) {
    Puppets group = RealRanksOf(1, 2);
    const linger abortive{1, 0};
    if (reset) {
      ::setsockopt(group.sockets[1][0].get(), SOL_SOCKET, SO_LINGER, &abortive, sizeof abortive);
    }
    group.sockets[1].clear();
    EXPECT_EQ(group.ranks[0]->Barrier().code(), Code::kUnavailable);
    EXPECT_EQ(group.ranks[0]->failed_peer(), Rank(1));
  }
}

TEST(CommunicatorDeath, InTheMiddleOfTheDataIsNamed) {
  Puppets group = RealRanksOf(1, 2);
  std::future<Status> blocked = std::async(std::launch::async, [&] {
    std::vector<std::byte> buffer(kLong);
    return group.ranks[0]->AllReduce(buffer, ElementType::kFloat32, ReduceOp::kSum);
  });
  const int peer = group.sockets[1][0].get();
  FrameHeader header;
  ASSERT_EQ(::recv(peer, &header, sizeof header, MSG_WAITALL), ssize_t{sizeof header});
  ASSERT_EQ(::send(peer, &header, sizeof header, 0), ssize_t{sizeof header});
  std::vector<std::byte> some(300'000);
  ASSERT_EQ(::recv(peer, some.data(), some.size(), MSG_WAITALL), static_cast<ssize_t>(some.size()));
  group.sockets[1].clear();
  EXPECT_EQ(blocked.get().code(), Code::kUnavailable);
  EXPECT_EQ(group.ranks[0]->failed_peer(), Rank(1));
}

// All survivors name the dead one, also those that hear of it from another survivor only.
TEST(CommunicatorDeath, AllSurvivorsBlameTheDead) {
  for (int round = 0; round < 10; ++round) {
    Puppets group = RealRanksOf(3, 4);
    std::thread death([&] {
      EXPECT_TRUE(Eventually([&] { return group.ranks[2]->operations_begun() == 1; }));
      group.sockets[3].clear();
    });
    const std::vector<Status> statuses = OnAll(group.ranks, [](Communicator& ours) {
      std::vector<std::byte> buffer(kLong);
      return ours.AllReduce(buffer, ElementType::kFloat32, ReduceOp::kSum);
    });
    death.join();
    EXPECT_EQ(Unlike(Code::kUnavailable, statuses), "");
    for (const auto& rank : group.ranks) EXPECT_EQ(rank->failed_peer(), Rank(3));
  }
}

TEST(CommunicatorDeath, ARankThatWaitsForASurvivorHearsOfIt) {
  Puppets group = RealRanksOf(2, 3);
  group.sockets[2].clear();
  // Rank 1 has no business with rank 2, but rank 0, which it waits for, has failed on its account.
  std::future<Status> other = std::async(std::launch::async, [&] {
    std::vector<std::byte> buffer(8);
    return group.ranks[1]->Recv(buffer, Rank(0));
  });
  EXPECT_EQ(group.ranks[0]->Send(std::vector<std::byte>(8), Rank(2)).code(), Code::kUnavailable);
  EXPECT_EQ(other.get().code(), Code::kUnavailable);
  EXPECT_EQ(group.ranks[1]->failed_peer(), Rank(2));
}

TEST(CommunicatorDeath, GarbageOnAConnectionIsAnError) {
  Puppets group = RealRanksOf(1, 2);
  const std::string garbage(1000, 'x');
  ASSERT_EQ(::send(group.sockets[1][0].get(), garbage.data(), garbage.size(), 0), 1000);
  EXPECT_EQ(group.ranks[0]->Barrier().code(), Code::kUnavailable);
  EXPECT_EQ(group.ranks[0]->failed_peer(), Rank(1));
}

// ---- Ranks that disagree (C07) --------------------------------------------------------------

Status Reduce(Communicator& ours, std::size_t bytes, ElementType type = ElementType::kFloat32,
              ReduceOp op = ReduceOp::kSum) {
  std::vector<std::byte> buffer(bytes);
  return ours.AllReduce(buffer, type, op);
}

void ExpectAllRefuse(std::int32_t size, const std::function<Status(Communicator&)>& body) {
  for (int round = 0; round < 5; ++round) {
    Ranks ranks = TcpRanks(size);
    // Each rank drops its communicator as soon as it has failed, as a worker may.
    const std::vector<Status> statuses = OnEach(size, [&](std::int32_t rank) {
      auto& ours = ranks[static_cast<std::size_t>(rank)];
      Status status = body(*ours);
      EXPECT_EQ(ours->failed_peer(), std::nullopt);
      ours.reset();
      return status;
    });
    EXPECT_EQ(Unlike(Code::kInvalidArgument, statuses), "");
  }
}

TEST(CommunicatorMismatch, SizesOnEveryRank) {
  for (const std::size_t unit : {std::size_t{8}, std::size_t{100 * 2560 * 4}}) {
    for (const std::int32_t odd : {0, 1, 3}) {
      ExpectAllRefuse(4, [&](Communicator& ours) {
        return Reduce(ours, ours.rank().value() == odd ? 2 * unit : unit);
      });
    }
  }
}

TEST(CommunicatorMismatch, TypesReductionsAndOperations) {
  ExpectAllRefuse(3, [](Communicator& ours) {
    return Reduce(ours, 800,
                  ours.rank().value() == 1 ? ElementType::kFloat64 : ElementType::kFloat32);
  });
  ExpectAllRefuse(3, [](Communicator& ours) {
    return Reduce(ours, 1'000'000, ElementType::kFloat32,
                  ours.rank().value() == 2 ? ReduceOp::kMax : ReduceOp::kSum);
  });
  ExpectAllRefuse(3, [](Communicator& ours) {
    return ours.rank().value() == 0 ? ours.Barrier() : Reduce(ours, 1'000'000);
  });
  ExpectAllRefuse(3, [](Communicator& ours) {
    std::vector<std::byte> buffer(1'000'000);
    return ours.Broadcast(buffer, Rank(ours.rank().value() == 0 ? 1 : 0));
  });
  ExpectAllRefuse(2, [](Communicator& ours) {
    std::vector<std::byte> buffer(10);
    const std::vector<std::int64_t> counts = ours.rank().value() == 0
                                                 ? std::vector<std::int64_t>{4, 6}
                                                 : std::vector<std::int64_t>{5, 5};
    return ours.AllGather(buffer, counts);
  });
}

TEST(CommunicatorMismatch, OfAPairInSendAndRecv) {
  ExpectAllRefuse(2, [](Communicator& ours) {
    std::vector<std::byte> buffer(ours.rank().value() == 0 ? 100 : 1'000'000);
    return ours.rank().value() == 0 ? ours.Send(buffer, Rank(1)) : ours.Recv(buffer, Rank(0));
  });
  ExpectAllRefuse(2, [](Communicator& ours) {
    std::vector<std::byte> buffer(100);
    return ours.Send(buffer, Rank(1 - ours.rank().value()));
  });
}

// Rank 2 sees no mismatch itself: the one it waits for tells it.
TEST(CommunicatorMismatch, ReachesBystanders) {
  ExpectAllRefuse(3, [](Communicator& ours) {
    std::vector<std::byte> buffer(1'000'000);
    if (ours.rank().value() == 0) return ours.Send(buffer, Rank(1));
    return Reduce(ours, 1'000'000);
  });
}

TEST(CommunicatorMismatch, OfOnePairInExchangeReachesBothOfIt) {
  const Ranks ranks = TcpRanks(3);
  const std::vector<Status> statuses = OnAll(ranks, [](Communicator& ours) {
    const std::int32_t self = ours.rank().value();
    const std::vector<std::byte> out(1'000'000);
    std::vector<std::vector<std::byte>> in(3, std::vector<std::byte>(1'000'000));
    if (self == 1) in[0].resize(999'999);
    const std::vector<std::span<const std::byte>> outgoing(3, out);
    const std::vector<std::span<std::byte>> incoming(in.begin(), in.end());
    MUSTER_RETURN_IF_ERROR(ours.Exchange(outgoing, incoming));
    return ours.Barrier();  // where rank 2 hears of it at the latest
  });
  EXPECT_EQ(Unlike(Code::kInvalidArgument, statuses), "");
}

// What is wrong with one rank's own arguments is told to the others, who wait for it.
TEST(CommunicatorMismatch, WrongArgumentsOfOneRankEndTheOthersWait) {
  ExpectAllRefuse(
      3, [](Communicator& ours) { return Reduce(ours, ours.rank().value() == 0 ? 7 : 8); });
  ExpectAllRefuse(2, [](Communicator& ours) {
    return Reduce(ours, 8, ElementType::kFloat32,
                  ours.rank().value() == 0 ? ReduceOp::kBitOr : ReduceOp::kSum);
  });
  ExpectAllRefuse(2, [](Communicator& ours) {
    std::vector<std::byte> buffer(8);
    return ours.Broadcast(buffer, Rank(ours.rank().value() == 0 ? -1 : 0));
  });
}

// ---- Deadlines (C03, C11, M21) --------------------------------------------------------------

constexpr Duration kShort = Duration::Millis(300);

TEST(CommunicatorDeadline, NamesTheRankThatHasNotEntered) {
  const Ranks ranks = TcpRanks(3, kShort);
  const std::vector<Status> statuses = OnAll(ranks, [](Communicator& ours) {
    if (ours.rank().value() == 1) return Status();  // sleeps in its data phase
    return Reduce(ours, 8);
  });
  for (const std::int32_t rank : {0, 2}) {
    const Status& status = statuses[static_cast<std::size_t>(rank)];
    EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << status.ToString();
    EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.ToString();
    EXPECT_EQ(ranks[static_cast<std::size_t>(rank)]->failed_peer(), Rank(1));
  }
}

// C03: the first operation on a pair, never matched. Both say which pair.
TEST(CommunicatorDeadline, UnmatchedSendAndRecv) {
  for (const std::size_t bytes : {std::size_t{1}, kLong}) {
    const Ranks ranks = TcpRanks(3, kShort);
    const std::vector<Status> statuses = OnAll(ranks, [&](Communicator& ours) {
      std::vector<std::byte> buffer(bytes);
      if (ours.rank().value() == 2) return ours.Send(buffer, Rank(1));
      if (ours.rank().value() == 0) return ours.Recv(buffer, Rank(1));
      return Status();
    });
    for (const std::int32_t rank : {0, 2}) {
      const Status& status = statuses[static_cast<std::size_t>(rank)];
      EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << status.ToString();
      EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.ToString();
    }
  }
}

TEST(CommunicatorDeadline, NamesAPeerThatStopsInTheMiddle) {
  Puppets group = RealRanksOf(1, 2, kShort);
  std::future<Status> blocked = std::async(std::launch::async, [&] {
    std::vector<std::byte> buffer(kLong);
    return group.ranks[0]->AllReduce(buffer, ElementType::kFloat32, ReduceOp::kSum);
  });
  const int peer = group.sockets[1][0].get();
  FrameHeader header;
  ASSERT_EQ(::recv(peer, &header, sizeof header, MSG_WAITALL), ssize_t{sizeof header});
  ASSERT_EQ(::send(peer, &header, sizeof header, 0), ssize_t{sizeof header});
  const Status status = blocked.get();
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_NE(status.message().find("moves no data"), std::string::npos) << status.ToString();
  EXPECT_EQ(group.ranks[0]->failed_peer(), Rank(1));
}

// ---- Misuse (C12) ---------------------------------------------------------------------------

TEST(CommunicatorMisuse, ASecondThreadInsideIsRefusedAndTheFirstGoesOn) {
  const Ranks ranks = TcpRanks(2);
  std::future<Status> first = std::async(std::launch::async, [&] { return ranks[0]->Barrier(); });
  ASSERT_TRUE(Eventually([&] { return ranks[0]->operations_begun() == 1; }));
  EXPECT_EQ(ranks[0]->Barrier().code(), Code::kFailedPrecondition);
  EXPECT_EQ(Reduce(*ranks[0], 8).code(), Code::kFailedPrecondition);
  EXPECT_EQ(ranks[1]->Barrier(), Status());
  EXPECT_EQ(first.get(), Status());
  EXPECT_EQ(Unlike(Code::kOk, OnAll(ranks, [](Communicator& ours) { return Reduce(ours, 8); })),
            "");
}

}  // namespace
}  // namespace muster::testing
