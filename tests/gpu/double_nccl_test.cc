// The double of NCCL forms communicators and computes as the real one does.
#include <gtest/gtest.h>
#include <nccl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include "tests/gpu/double_member.h"
#include "tests/gpu/processes.h"

namespace muster::gpu_double {
namespace {

std::ptrdiff_t EntriesOf(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder),
                       std::filesystem::directory_iterator());
}
std::ptrdiff_t Threads() { return EntriesOf("/proc/self/task"); }
std::ptrdiff_t Files() { return EntriesOf("/proc/self/fd"); }

// Runs the body in `size` ranks that have formed a communicator, and expects them to end well.
void RunFormed(int size, const std::function<void(const Child&, Member&)>& body,
               const Variables& variables = {}) {
  Processes ranks(
      size,
      [&](const Child& child) {
        Member member(child);
        member.Form();
        body(child, member);
      },
      variables);
  ranks.PassOnId();
  ranks.ExpectAllWell();
}

template <class T>
T* Upload(const std::vector<T>& values, cudaStream_t stream) {
  void* memory = nullptr;
  Ok(cudaMalloc(&memory, values.size() * sizeof(T)));
  Ok(cudaMemcpyAsync(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice,
                     stream));
  return static_cast<T*>(memory);
}

template <class T>
std::vector<T> Download(const T* array, std::size_t count, cudaStream_t stream) {
  std::vector<T> values(count);
  Ok(cudaMemcpyAsync(values.data(), array, count * sizeof(T), cudaMemcpyDeviceToHost, stream));
  return values;
}

// What the call says, once it has got onto its stream.
void Settled(ncclResult_t called, const Member& member) {
  REQUIRE(called == ncclInProgress);
  REQUIRE(member.Settle() == ncclSuccess);
}

// What rank `rank` has at `index`: rounding makes the order of a sum visible.
float ValueOf(int rank, std::size_t index) {
  return 1.0F / static_cast<float>(rank + 3 + static_cast<int>(index % 97));
}

TEST(DoubleInit, WaitsForAllRanks) {
  Processes ranks(2, [](const Child& child) {
    const ncclUniqueId id = Member::IdFor(child);
    if (child.rank() == 1) REQUIRE(child.Await() == "go");
    const Member member(child.rank(), 2, id);
    if (child.rank() == 0) {
      REQUIRE(member.begun == ncclInProgress && member.comm != nullptr);
      Stays([&] { return member.AsyncError() == ncclInProgress; });
      child.Tell("alone");
    }
    member.Form();
  });
  ranks.PassOnId();
  EXPECT_EQ(ranks.Await(0), "alone");
  ranks.Tell(1, "go");
  ranks.ExpectAllWell();
}

TEST(DoubleInit, AloneIsFreedByAnAbort) {
  Processes ranks(2, [](const Child& child) {
    const ncclUniqueId id = Member::IdFor(child);
    if (child.rank() == 1) return;
    const Member member(0, 2, id);
    REQUIRE(member.AsyncError() == ncclInProgress);
    member.Abort();
  });
  ranks.PassOnId();
  ranks.ExpectAllWell();
}

TEST(DoubleInit, OtherCallsAreRefusedUntilItWasSeenToSucceed) {
  RunFormed(1, [](const Child&, Member& member) {
    int count = 0;
    REQUIRE(ncclCommCount(member.comm, &count) == ncclSuccess && count == 1);
  });
  const End end = RunAlone([] {
    Member member(0, 1, Member::MakeId());
    int count = 0;
    // Whether or not it has come to its end meanwhile: nobody has asked.
    Stays([&] { return ncclCommCount(member.comm, &count) == ncclInvalidArgument; });
    REQUIRE(member.BeginSum() == ncclInvalidArgument);
    REQUIRE(std::string(ncclGetLastError(nullptr)).find("before the previous") !=
            std::string::npos);
    member.Form();
    REQUIRE(ncclCommCount(member.comm, &count) == ncclSuccess);
  });
  EXPECT_EQ(end.exit_code, 0) << end.output;
}

TEST(DoubleInit, AnIdServesOnce) {
  const End end = RunAlone([] {
    const ncclUniqueId id = Member::MakeId();
    const Member first(0, 1, id);
    first.Form();
    const Member second(0, 1, id);
    REQUIRE(second.begun == ncclInvalidUsage && second.comm == nullptr);
  });
  EXPECT_EQ(end.exit_code, 0) << end.output;
}

TEST(DoubleInit, OfTwoWithOneRankTheSecondIsRefused) {
  Processes ranks(2, [](const Child& child) {
    const Member member(0, 2, Member::IdFor(child));  // both say that they are rank 0
    REQUIRE(member.Settle() == ncclInternalError);
    child.Tell("refused");
    Until([] { return false; });
  });
  ranks.PassOnId();
  // Who is second is up to the machine; the first waits for rank 1 for ever.
  EXPECT_EQ(ranks.AwaitAny(), "refused");
}

TEST(DoubleInit, OneGpuServesOneRankOfAHost) {
  Processes ranks(
      2,
      [](const Child& child) {
        const ncclUniqueId id = Member::IdFor(child);
        Ok(cudaSetDevice(0));
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        ncclComm_t comm = nullptr;  // blocking: the call waits
        REQUIRE(ncclCommInitRankConfig(&comm, 2, id, child.rank(), &config) == ncclInvalidUsage);
        REQUIRE(std::string(ncclGetLastError(comm)).find("Duplicate GPU") != std::string::npos);
        // The id's thread is rank 0's: rank 0 stays until the other has heard from it.
        child.Tell("refused");
        REQUIRE(child.Await() == "end");
      },
      kOneHost);
  ranks.PassOnId();
  for (int rank = 0; rank < 2; ++rank) {
    if (ranks.Await(rank) != "refused") ADD_FAILURE() << ranks.Wait(rank).output;
  }
  for (int rank = 0; rank < 2; ++rank) ranks.Tell(rank, "end");
  ranks.ExpectAllWell();
}

TEST(DoubleId, KeepsAThreadAndASocketUntilAllHaveCome) {
  const End end = RunAlone([] {
    const std::ptrdiff_t threads = Threads();
    const std::ptrdiff_t files = Files();
    const ncclUniqueId of_one = Member::MakeId();
    const ncclUniqueId of_two = Member::MakeId();
    REQUIRE(Threads() == threads + 2 && Files() > files + 1);
    const Member alone(0, 1, of_one);
    alone.Form();
    alone.Abort();
    const Member half(0, 2, of_two);
    half.Abort();
    // The streams of the two members run; the first id's thread is gone, the second's stays.
    Until([&] { return Threads() == threads + 3; });
    Stays([&] { return Threads() == threads + 3; });
  });
  EXPECT_EQ(end.exit_code, 0) << end.output;
}

TEST(DoubleId, StrangersAreSentAway) {
  const End end = RunAlone([] {
    const ncclUniqueId id = Member::MakeId();
    sockaddr_in address{};
    std::memcpy(&address, id.internal + 8, sizeof address);
    for (const std::string& said : {std::string(), std::string(200, 'x')}) {
      const int stranger = ::socket(AF_INET, SOCK_STREAM, 0);
      REQUIRE(::connect(stranger, reinterpret_cast<const sockaddr*>(&address), sizeof address) ==
              0);
      REQUIRE(::send(stranger, said.data(), said.size(), MSG_NOSIGNAL) ==
              static_cast<ssize_t>(said.size()));
      ::close(stranger);
    }
    const Member member(0, 1, id);
    member.Form();
  });
  EXPECT_EQ(end.exit_code, 0) << end.output;
}

TEST(DoubleOperations, SumInRankOrder) {
  RunFormed(3, [](const Child& child, Member& member) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{2}, std::size_t{500'001}}) {
      std::vector<float> own(count);
      std::vector<float> expected(count);
      for (std::size_t i = 0; i < count; ++i) {
        own[i] = ValueOf(child.rank(), i);
        expected[i] = (ValueOf(0, i) + ValueOf(1, i)) + ValueOf(2, i);
      }
      float* const values = Upload(own, member.stream);
      Settled(
          ncclAllReduce(values, values, count, ncclFloat32, ncclSum, member.comm, member.stream),
          member);
      REQUIRE(Download(values, count, member.stream) == expected);
    }
  });
}

TEST(DoubleOperations, MoveAndCombineWhatTheySay) {
  RunFormed(3, [](const Child& child, Member& member) {
    const auto rank = static_cast<std::int64_t>(child.rank());
    using Values = std::vector<std::int64_t>;
    std::int64_t* const own = Upload(Values{rank, 10 * rank, -rank}, member.stream);
    std::int64_t* const all = Upload(Values(9), member.stream);
    const auto seen = [&](std::size_t count) { return Download(all, count, member.stream); };
    const auto reduce = [&](ncclRedOp_t op) {
      Settled(ncclAllReduce(own, all, 3, ncclInt64, op, member.comm, member.stream), member);
      return seen(3);
    };
    REQUIRE(reduce(ncclMax) == Values({2, 20, 0}));
    REQUIRE(reduce(ncclMin) == Values({0, 0, -2}));
    REQUIRE(reduce(ncclSum) == Values({3, 30, -3}));
    Settled(ncclBroadcast(own, all, 3, ncclInt64, 1, member.comm, member.stream), member);
    REQUIRE(seen(3) == Values({1, 10, -1}));
    Settled(ncclAllGather(own, all, 3, ncclInt64, member.comm, member.stream), member);
    REQUIRE(seen(9) == Values({0, 0, 0, 1, 10, -1, 2, 20, -2}));
    Settled(ncclReduceScatter(own, all, 1, ncclInt64, ncclSum, member.comm, member.stream), member);
    REQUIRE(seen(1)[0] == Values({3, 30, -3})[static_cast<std::size_t>(rank)]);
  });
}

TEST(DoubleOperations, SendsAndReceivesOfAGroupRunTogether) {
  RunFormed(3, [](const Child& child, Member& member) {
    const int rank = child.rank();
    const std::size_t count = 300'000;  // more than sockets hold: one after the other would hang
    int* const own = Upload(std::vector<int>(count, rank), member.stream);
    int* const received = Upload(std::vector<int>(count), member.stream);
    REQUIRE(ncclGroupStart() == ncclSuccess);
    REQUIRE(ncclSend(own, count, ncclInt32, (rank + 1) % 3, member.comm, member.stream) ==
            ncclSuccess);
    REQUIRE(ncclRecv(received, count, ncclInt32, (rank + 2) % 3, member.comm, member.stream) ==
            ncclSuccess);
    Settled(ncclGroupEnd(), member);
    REQUIRE(Download(received, count, member.stream) == std::vector<int>(count, (rank + 2) % 3));
  });
}

TEST(DoubleOperations, UnknownOnesAreRefused) {
  RunFormed(1, [](const Child&, Member& member) {
    REQUIRE(ncclAllReduce(member.values, member.values, 1, ncclBfloat16, ncclSum, member.comm,
                          member.stream) == ncclInvalidArgument);
    REQUIRE(ncclBroadcast(member.values, member.values, 1, ncclInt8, 1, member.comm,
                          member.stream) == ncclInvalidArgument);
    REQUIRE(ncclGroupEnd() == ncclInvalidUsage);
  });
}

TEST(DoubleOperations, DieWhenRanksDisagree) {
  Processes ranks(2, [](const Child& child) {
    Member member(child);
    member.Form();
    const std::size_t count = child.rank() == 0 ? 10 : 12;
    Settled(ncclAllReduce(member.values, member.values, count, ncclFloat64, ncclSum, member.comm,
                          member.stream),
            member);
    Until([] { return false; });
  });
  ranks.PassOnId();
  const End end = ranks.Wait(0);
  EXPECT_EQ(end.signal, SIGABRT);
  EXPECT_NE(end.output.find("ranks run different operations"), std::string::npos) << end.output;
}

TEST(DoubleOperations, TheStreamIsNotToBeUsedBeforeTheyAreOnIt) {
  const End end = RunAlone([] {
    Member member(0, 1, Member::MakeId());
    member.Form();
    REQUIRE(member.BeginSum() == ncclInProgress);
    member.Record();
  });
  EXPECT_EQ(end.signal, SIGABRT);
  EXPECT_NE(end.output.find("ncclCommGetAsyncError"), std::string::npos) << end.output;
}

TEST(DoubleOperations, NeedMemoryOfTheDevice) {
  const End end = RunAlone([] {
    Member member(0, 1, Member::MakeId());
    member.Form();
    double ordinary[2] = {};
    static_cast<void>(
        ncclAllReduce(ordinary, ordinary, 2, ncclFloat64, ncclSum, member.comm, member.stream));
  });
  EXPECT_EQ(end.signal, SIGABRT);
  EXPECT_NE(end.output.find("no device can reach"), std::string::npos) << end.output;
}

TEST(DoubleReform, LeavesNothingBehind) {
  constexpr int kRounds = 20;
  Processes ranks(2, [](const Child& child) {
    std::ptrdiff_t threads = 0;
    std::ptrdiff_t files = 0;
    for (int round = 0; round < kRounds; ++round) {
      Member member(child);
      member.Form();
      member.Sum();
      member.Abort();
      Ok(cudaEventDestroy(member.event));
      Ok(cudaStreamDestroy(member.stream));
      Ok(cudaFree(member.values));
      if (round == 0) {
        Until([] { return Threads() == 1; });
        threads = Threads();
        files = Files();
      }
    }
    Until([&] { return Threads() == threads && Files() == files; });
  });
  for (int round = 0; round < kRounds; ++round) ranks.PassOnId();
  ranks.ExpectAllWell();
}

TEST(DoubleVersion, IsWhatATestSays) {
  const auto version = [] {
    int number = 0;
    REQUIRE(ncclGetVersion(&number) == ncclSuccess);
    REQUIRE(number == (::getenv("MUSTER_DOUBLE_NCCL_VERSION") == nullptr ? 22809 : 21801));
  };
  EXPECT_EQ(RunAlone(version).exit_code, 0);
  EXPECT_EQ(RunAlone(version, {{"MUSTER_DOUBLE_NCCL_VERSION", "21801"}}).exit_code, 0);
}

}  // namespace
}  // namespace muster::gpu_double
