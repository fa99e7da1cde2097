// The double of NCCL hangs, fails and is aborted as the real one is.
#include <gtest/gtest.h>
#include <nccl.h>
#include <signal.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/gpu/double_member.h"
#include "tests/gpu/processes.h"

namespace muster::gpu_double {
namespace {

Variables Faults(const std::string& faults, Variables others = {}) {
  others["MUSTER_DOUBLE_FAULTS"] = faults;
  return others;
}

// `size` ranks sum once; then the last one dies, and the others begin a sum that never ends, in
// which `then` finds them. All of them live on until each is through with it.
void AfterADeath(int size, const std::function<void(const Child&, Member&)>& then,
                 const Variables& variables = {}) {
  const int dead = size - 1;
  Processes ranks(
      size,
      [&](const Child& child) {
        Member member(child);
        member.Form();
        member.Sum();
        child.Tell("summed");
        REQUIRE(child.Await() == "dead");
        member.StartSum();
        then(child, member);
        child.Tell("done");
        REQUIRE(child.Await() == "end");
      },
      variables);
  ranks.PassOnId();
  for (int rank = 0; rank < size; ++rank) ASSERT_EQ(ranks.Await(rank), "summed");
  ranks.Kill(dead);
  for (int rank = 0; rank < dead; ++rank) ranks.Tell(rank, "dead");
  for (int rank = 0; rank < dead; ++rank) {
    if (ranks.Await(rank) != "done") ADD_FAILURE() << ranks.Wait(rank).output;
  }
  for (int rank = 0; rank < dead; ++rank) {
    ranks.Tell(rank, "end");
    const End end = ranks.Wait(rank);
    EXPECT_EQ(end.exit_code, 0) << "rank " << rank << ": " << end.output;
  }
}

// Waits until both ranks of RunTwo are here: the first to abort shows the other its end.
void Meet(const Child& child) {
  child.Tell("here");
  REQUIRE(child.Await() == "both");
}

// Runs the body in two ranks that have formed a communicator. `meets`: whether it calls Meet().
void RunTwo(const std::function<void(const Child&, Member&)>& body, const Variables& variables,
            bool meets = false) {
  Processes ranks(
      2,
      [&](const Child& child) {
        Member member(child);
        member.Form();
        body(child, member);
      },
      variables);
  ranks.PassOnId();
  for (int rank = 0; meets && rank < 2; ++rank) EXPECT_EQ(ranks.Await(rank), "here");
  for (int rank = 0; meets && rank < 2; ++rank) ranks.Tell(rank, "both");
  ranks.ExpectAllWell();
}

TEST(DoubleDeath, IsToldToNeighboursAndHangsTheOperation) {
  AfterADeath(3, [](const Child&, Member& member) {
    Until([&] { return member.AsyncError() == ncclRemoteError; });
    Stays([&] { return !member.Passed() && member.AsyncError() == ncclRemoteError; });
    REQUIRE(ncclAllReduce(member.values, member.values, 1, ncclFloat64, ncclSum, member.comm,
                          member.stream) == ncclRemoteError);
    member.Abort();
  });
}

TEST(DoubleDeath, IsNotToldToOthersThanNeighbours) {
  AfterADeath(4, [](const Child& child, Member& member) {
    if (child.rank() != 1) Until([&] { return member.AsyncError() == ncclRemoteError; });
    Stays([&] { return child.rank() != 1 || member.AsyncError() == ncclSuccess; });
  });
}

TEST(DoubleDeath, IsToldLateWhereAsked) {
  AfterADeath(2, [](const Child&, Member& member) { REQUIRE(member.AsyncError() == ncclSuccess); },
              {{"MUSTER_DOUBLE_PEER_DEATH", "600000"}});
  AfterADeath(2,
              [](const Child&, Member& member) {
                Until([&] { return member.AsyncError() == ncclRemoteError; });
              },
              {{"MUSTER_DOUBLE_PEER_DEATH", "20"}});
}

TEST(DoubleDeath, AnAbortCompletesTheEventOverGarbage) {
  AfterADeath(2, [](const Child&, Member& member) {
    Stays([&] { return !member.Passed(); });
    member.Abort();
    Until([&] { return member.Passed(); });
    REQUIRE(IsGarbage(member.Value()));
  });
}

TEST(DoubleDeath, MayBeSilent) {
  AfterADeath(2,
              [](const Child&, Member& member) {
                Stays([&] { return !member.Passed() && member.AsyncError() == ncclSuccess; });
                member.Abort();
                Until([&] { return member.Passed(); });
              },
              {{"MUSTER_DOUBLE_PEER_DEATH", "silent"}});
}

TEST(DoubleDeath, HangsFinalizeAndDestroy) {
  const auto finalize = [](const Child& child, Member& member) {
    child.Tell("formed");
    REQUIRE(child.Await() == "dead");
    REQUIRE(ncclCommFinalize(member.comm) == ncclInProgress);
    Stays([&] { return member.AsyncError() == ncclInProgress; });
    member.Abort();  // that it can be, as long as Finalize runs on its own
  };
  const auto destroy = [](const Child& child, Member& member) {
    child.Tell("formed");
    REQUIRE(child.Await() == "dead");
    std::atomic<bool> destroyed = false;
    std::thread([&] { destroyed = ncclCommDestroy(member.comm) == ncclSuccess; }).detach();
    Stays([&] { return !destroyed; });
    Leave();
  };
  using Then = std::function<void(const Child&, Member&)>;
  for (const Then& then : {Then(finalize), Then(destroy)}) {
    Processes ranks(2, [&](const Child& child) {
      Member member(child);
      member.Form();
      then(child, member);
    });
    ranks.PassOnId();
    ASSERT_EQ(ranks.Await(0), "formed");
    ASSERT_EQ(ranks.Await(1), "formed");
    ranks.Kill(1);
    ranks.Tell(0, "dead");
    const End end = ranks.Wait(0);
    EXPECT_EQ(end.exit_code, 0) << end.output;
  }
}

TEST(DoubleDestroy, WorksWhenAllAreAlive) {
  RunTwo(
      [](const Child&, Member& member) {
        member.Sum();
        REQUIRE(ncclCommFinalize(member.comm) == ncclInProgress);
        REQUIRE(member.Settle() == ncclSuccess);
        REQUIRE(member.BeginSum() == ncclInvalidUsage);
        REQUIRE(ncclCommDestroy(member.comm) == ncclSuccess);
      },
      kOneHost);
}

TEST(DoubleConnect, HappensInTheFirstOperationAndWaitsForAll) {
  Processes ranks(2, [](const Child& child) {
    Member member(child);
    member.Form();
    if (child.rank() == 1) REQUIRE(child.Await() == "go");
    REQUIRE(member.BeginSum() == ncclInProgress);
    if (child.rank() == 0) {
      Stays([&] { return member.AsyncError() == ncclInProgress; });
      child.Tell("connects");
    }
    REQUIRE(member.Settle() == ncclSuccess);
    Until([&] { return cudaStreamQuery(member.stream) == cudaSuccess; });
  });
  ranks.PassOnId();
  EXPECT_EQ(ranks.Await(0), "connects");
  ranks.Tell(1, "go");
  ranks.ExpectAllWell();
}

TEST(DoubleConnect, ToADeadPeerFailsAfterRetries) {
  Processes ranks(2,
                  [](const Child& child) {
                    Member member(child);
                    member.Form();
                    child.Tell("formed");
                    REQUIRE(child.Await() == "dead");
                    REQUIRE(member.BeginSum() == ncclInProgress);
                    REQUIRE(member.Settle() == ncclRemoteError);
                    member.Abort();
                  },
                  {{"MUSTER_DOUBLE_CONNECT_MS", "50"}});
  ranks.PassOnId();
  ASSERT_EQ(ranks.Await(0), "formed");
  ASSERT_EQ(ranks.Await(1), "formed");
  ranks.Kill(0);
  ranks.Tell(1, "dead");
  const End end = ranks.Wait(1);
  EXPECT_EQ(end.exit_code, 0) << end.output;
}

// Rank 0 aborts; rank 1 does when told.
void AbortOneAfterTheOther(const Variables& variables, bool waits, bool kill) {
  Processes ranks(
      2,
      [&](const Child& child) {
        Member member(child);
        member.Form();
        member.Sum();
        if (child.rank() == 1) {
          REQUIRE(child.Await() == "abort");
          member.Abort();
          return;
        }
        std::atomic<bool> aborted = false;
        std::thread abort([&] {
          member.Abort();
          aborted = true;
        });
        if (waits) Stays([&] { return !aborted; });
        if (!waits) Until([&] { return aborted.load(); });
        child.Tell("seen");
        abort.join();
      },
      variables);
  ranks.PassOnId();
  ASSERT_EQ(ranks.Await(0), "seen") << ranks.Wait(0).output;
  if (kill) {
    ranks.Kill(1);
  } else {
    ranks.Tell(1, "abort");
    EXPECT_EQ(ranks.Wait(1).exit_code, 0);
  }
  EXPECT_EQ(ranks.Wait(0).exit_code, 0);
}

TEST(DoubleAbort, WaitsForTheRanksOfItsHost) { AbortOneAfterTheOther(kOneHost, true, false); }
TEST(DoubleAbort, NeedNotWaitForTheDead) { AbortOneAfterTheOther(kOneHost, true, true); }
TEST(DoubleAbort, NeedNotWaitForOtherHosts) { AbortOneAfterTheOther({}, false, false); }

TEST(DoubleAbort, WaitsForEverythingOnTheDevice) {
  const End end = RunAlone(
      [] {
        Member member(0, 1, Member::MakeId());
        member.Form();
        cudaLibrary_t library = nullptr;
        cudaKernel_t kernel = nullptr;
        Ok(cudaLibraryLoadData(&library, "x", nullptr, nullptr, 0, nullptr, nullptr, 0));
        Ok(cudaLibraryGetKernel(&kernel, library, "muster_probe"));
        void* arguments[] = {&member.values};
        cudaStream_t other = nullptr;
        Ok(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
        Ok(cudaLaunchKernel(static_cast<const void*>(kernel), dim3(1), dim3(1), arguments, 0,
                            other));
        std::atomic<bool> aborted = false;
        std::thread([&] {
          member.Abort();
          aborted = true;
        }).detach();
        Stays([&] { return !aborted; });
        Leave();
      },
      Faults("kernel-hang"));
  EXPECT_EQ(end.exit_code, 0) << end.output;
}

TEST(DoubleAbort, UseAfterwardsDies) {
  const End end = RunAlone([] {
    const Member member(0, 1, Member::MakeId());
    member.Form();
    member.Abort();
    static_cast<void>(member.AsyncError());
  });
  EXPECT_EQ(end.signal, SIGABRT);
  EXPECT_NE(end.output.find("was aborted"), std::string::npos) << end.output;
}

TEST(DoubleAbort, UseMeanwhileDies) {
  const End end = RunAlone(
      [] {
        const Member member(0, 1, Member::MakeId());
        member.Form();
        std::thread([&] { member.Abort(); }).detach();
        Until([&] { return member.AsyncError() != ncclSuccess; });  // dies once it has begun
      },
      Faults("abort-hang"));
  EXPECT_EQ(end.signal, SIGABRT);
  EXPECT_NE(end.output.find("while it is being aborted"), std::string::npos) << end.output;
}

TEST(DoubleFault, InitHangsAndFails) {
  const auto second = [](const std::function<void(Member&)>& body, const std::string& faults) {
    const End end = RunAlone(
        [&] {
          const Member first(0, 1, Member::MakeId());
          first.Form();
          Member member(0, 1, Member::MakeId());
          body(member);
          member.Abort();
        },
        Faults(faults));
    EXPECT_EQ(end.exit_code, 0) << end.output;
    EXPECT_NE(end.output.find("strikes"), std::string::npos);
  };
  second([](Member& member) { Stays([&] { return member.AsyncError() == ncclInProgress; }); },
         "init-hang@comm=2");
  second([](Member& member) { REQUIRE(member.Settle() == ncclSystemError); }, "init-error@comm=2");
  second([](Member& member) { REQUIRE(member.Settle() == ncclRemoteError); },
         "init-error@comm=2@error=remote");
  second(
      [](Member& member) {
        member.Form();
        REQUIRE(member.BeginSum() == ncclInProgress);
        Stays([&] { return member.AsyncError() == ncclInProgress; });
      },
      "connect-hang@comm=2");
  second(
      [](Member& member) {
        member.Form();
        REQUIRE(member.BeginSum() == ncclInternalError);
      },
      "collective-error@comm=2");
  const End end = RunAlone(
      [] {
        ncclUniqueId id;
        REQUIRE(ncclGetUniqueId(&id) == ncclSystemError);
      },
      Faults("id-error"));
  EXPECT_EQ(end.exit_code, 0) << end.output;
}

TEST(DoubleFault, FinalizeAndDestroyHang) {
  End end = RunAlone(
      [] {
        const Member member(0, 1, Member::MakeId());
        member.Form();
        REQUIRE(ncclCommFinalize(member.comm) == ncclInProgress);
        Stays([&] { return member.AsyncError() == ncclInProgress; });
        member.Abort();
      },
      Faults("finalize-hang"));
  EXPECT_EQ(end.exit_code, 0) << end.output;
  end = RunAlone(
      [] {
        const Member member(0, 1, Member::MakeId());
        member.Form();
        std::atomic<bool> destroyed = false;
        std::thread([&] { destroyed = ncclCommDestroy(member.comm) == ncclSuccess; }).detach();
        Stays([&] { return !destroyed; });
        Leave();
      },
      Faults("destroy-hang"));
  EXPECT_EQ(end.exit_code, 0) << end.output;
}

TEST(DoubleFault, StrikesARunningProcessOnceItsFileExists) {
  std::string folder = (std::filesystem::temp_directory_path() / "muster-double-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string file = folder + "/now";
  Processes ranks(
      1,
      [](const Child& child) {
        Member member(child);
        member.Form();
        member.Sum();
        REQUIRE(member.AsyncError() == ncclSuccess);
        child.Tell("well");
        Until([&] { return member.AsyncError() == ncclSystemError; });
        member.Abort();
      },
      Faults("async-error@error=system@when=" + file));
  ranks.PassOnId();
  EXPECT_EQ(ranks.Await(0), "well");
  std::ofstream(file).put('x');
  ranks.ExpectAllWell();
  std::filesystem::remove_all(folder);
}

TEST(DoubleFault, OneRankLeavesTheOthersHanging) {
  RunTwo(
      [](const Child& child, Member& member) {
        member.Sum();
        member.StartSum();
        Stays([&] { return !member.Passed() && member.AsyncError() == ncclSuccess; });
        Meet(child);
        member.Abort();
        Until([&] { return member.Passed(); });
      },
      Faults("collective-hang@op=2@rank=1", kOneHost), true);
}

TEST(DoubleFault, AnAsyncErrorOfOneRankAlone) {
  RunTwo(
      [](const Child& child, Member& member) {
        member.Sum();
        member.StartSum();
        if (child.rank() == 1) Until([&] { return member.AsyncError() == ncclInternalError; });
        Stays([&] {
          return !member.Passed() && (child.rank() == 1 || member.AsyncError() == ncclSuccess);
        });
        Meet(child);
        member.Abort();
      },
      Faults("async-error@op=2@rank=1@error=internal", kOneHost), true);
}

TEST(DoubleFault, AWrongAnswer) {
  RunTwo(
      [](const Child& child, Member& member) {
        member.StartSum();
        Until([&] { return member.Passed(); });
        REQUIRE(child.rank() == 0 ? member.Value() == 3 : IsGarbage(member.Value()));
      },
      Faults("collective-wrong@rank=1"));
}

TEST(DoubleFault, AbortsThatHangOrTakeTheirTimeOrBreakTheContext) {
  const auto aborting = [](const std::function<void(std::atomic<bool>&)>& body,
                           const std::string& faults) {
    const End end = RunAlone(
        [&] {
          const Member member(0, 1, Member::MakeId());
          member.Form();
          std::atomic<bool> aborted = false;
          std::thread([&] {
            member.Abort();
            aborted = true;
          }).detach();
          body(aborted);
          Leave();
        },
        Faults(faults));
    EXPECT_EQ(end.exit_code, 0) << end.output;
  };
  aborting([](std::atomic<bool>& aborted) { Stays([&] { return !aborted; }); }, "abort-hang");
  aborting([](std::atomic<bool>& aborted) { Stays([&] { return !aborted; }); },
           "abort-slow@ms=50000");
  aborting([](std::atomic<bool>& aborted) { Until([&] { return aborted.load(); }); },
           "abort-slow@ms=20");
  aborting(
      [](std::atomic<bool>& aborted) {
        Until([&] { return aborted.load(); });
        void* address = nullptr;
        REQUIRE(cudaMalloc(&address, 1) == cudaErrorIllegalAddress);
        ncclComm_t comm = nullptr;
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        REQUIRE(ncclCommInitRankConfig(&comm, 1, Member::MakeId(), 0, &config) ==
                ncclUnhandledCudaError);
      },
      "abort-sticky");
}

}  // namespace
}  // namespace muster::gpu_double
