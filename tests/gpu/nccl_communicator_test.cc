// The communicator over NCCL against the double: one process a rank.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/nccl_rig.h"
#include "worker/client/gradient_sum.h"
#include "worker/collective/gpu_backend.h"
#include "worker/collective/reduction_tree.h"

namespace muster {
namespace {

void RunRanks(int size, const std::function<void(const Child&, Rig&)>& body,
              const Variables& variables = {}) {
  Processes ranks(
      size,
      [&](const Child& child) {
        Rig rig(child);
        REQUIRE(rig.communicator->Connect().ok());
        body(child, rig);
      },
      With(variables));
  if (size > 1) ranks.PassOnId();
  ranks.ExpectAllWell();
}

template <class T>
std::span<std::byte> Bytes(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

// Runs `operation` on a copy of `values` in the device's memory.
template <class T>
void OnDevice(Rig& rig, std::vector<T>& values,
              const std::function<Status(std::span<std::byte>)>& operation) {
  const std::size_t bytes = values.size() * sizeof(T);
  Result<DeviceMemory> memory = rig.device->Allocate(bytes);
  REQUIRE(memory.ok());
  DeviceStream& stream = rig.communicator->stream();
  stream.Copy(memory->data(), values.data(), bytes);
  REQUIRE(operation({memory->data(), bytes}).ok());
  stream.Copy(values.data(), memory->data(), bytes);
  REQUIRE(rig.communicator->Complete().ok());
}

TEST(NcclCommunicator, SumsMaximaAndBroadcasts) {
  RunRanks(3, [](const Child& child, Rig& rig) {
    Communicator& all = *rig.communicator;
    std::vector<std::int64_t> sums = {1, child.rank(), 10};
    REQUIRE(all.AllReduce(Bytes(sums), ElementType::kInt64, ReduceOp::kSum).ok());
    REQUIRE((sums == std::vector<std::int64_t>{3, 3, 30}));
    std::vector<double> most(5000, child.rank());
    OnDevice<double>(rig, most, [&](std::span<std::byte> bytes) {
      return all.AllReduce(bytes, ElementType::kFloat64, ReduceOp::kMax);
    });
    REQUIRE(most == std::vector<double>(5000, 2));
    std::vector<float> told(100, static_cast<float>(child.rank()));
    REQUIRE(all.Broadcast(Bytes(told), Rank(1)).ok());
    REQUIRE(told == std::vector<float>(100, 1));
    OnDevice<float>(rig, told,
                    [&](std::span<std::byte> bytes) { return all.Broadcast(bytes, Rank(0)); });
    REQUIRE(told == std::vector<float>(100, 1));
    REQUIRE(all.Barrier().ok());
    std::vector<std::int64_t> none;
    REQUIRE(all.AllReduce(Bytes(none), ElementType::kInt64, ReduceOp::kSum).ok());
    REQUIRE(all.AllReduce(Bytes(sums), ElementType::kInt64, ReduceOp::kBitOr).code() ==
            Code::kUnimplemented);
  });
}

TEST(NcclCommunicator, GathersEvenAndUnevenParts) {
  RunRanks(3, [](const Child& child, Rig& rig) {
    Communicator& all = *rig.communicator;
    for (const std::vector<std::int64_t>& counts :
         {std::vector<std::int64_t>{8, 8, 8}, {24, 0, 8}, {0, 0, 0}}) {
      std::vector<std::uint8_t> expected;
      std::vector<std::uint8_t> own;
      for (int rank = 0; rank < 3; ++rank) {
        for (std::int64_t i = 0; i < counts[static_cast<std::size_t>(rank)]; ++i) {
          expected.push_back(static_cast<std::uint8_t>(10 * rank + i));
          own.push_back(rank == child.rank() ? expected.back() : std::uint8_t{255});
        }
      }
      std::vector<std::uint8_t> on_host = own;
      REQUIRE(all.AllGather(Bytes(on_host), counts).ok());
      REQUIRE(on_host == expected);
      std::vector<std::uint8_t> on_device = own;
      OnDevice<std::uint8_t>(
          rig, on_device, [&](std::span<std::byte> bytes) { return all.AllGather(bytes, counts); });
      REQUIRE(on_device == expected);
    }
  });
}

// More than one round, of different lengths for each pair, some of it on the device.
TEST(NcclCommunicator, ExchangesMessagesOfAnySize) {
  RunRanks(3, [](const Child& child, Rig& rig) {
    const auto size_of = [](int from, int to) {
      return from == to ? std::size_t{16}
                        : static_cast<std::size_t>(from * 9 + to) * 1'500'000U + 3;
    };
    const auto byte_of = [](int from, int to, std::size_t at) {
      return static_cast<std::uint8_t>(static_cast<std::size_t>(from * 3 + to) + at % 251);
    };
    std::vector<std::vector<std::uint8_t>> out(3);
    std::vector<std::vector<std::uint8_t>> in(3);
    std::vector<std::span<const std::byte>> outgoing;
    std::vector<std::span<std::byte>> incoming;
    for (int peer = 0; peer < 3; ++peer) {
      auto& message = out[static_cast<std::size_t>(peer)];
      message.resize(size_of(child.rank(), peer));
      for (std::size_t i = 0; i < message.size(); ++i) message[i] = byte_of(child.rank(), peer, i);
      in[static_cast<std::size_t>(peer)].resize(size_of(peer, child.rank()));
    }
    // What goes to rank 0 comes from the device.
    Result<DeviceMemory> memory = rig.device->Allocate(out[0].size());
    REQUIRE(memory.ok());
    rig.communicator->stream().Copy(memory->data(), out[0].data(), out[0].size());
    REQUIRE(rig.communicator->Complete().ok());
    for (int peer = 0; peer < 3; ++peer) {
      outgoing.push_back(std::as_bytes(std::span(out[static_cast<std::size_t>(peer)])));
      incoming.push_back(Bytes(in[static_cast<std::size_t>(peer)]));
    }
    outgoing[0] = {memory->data(), memory->size()};
    REQUIRE(rig.communicator->Exchange(outgoing, incoming).ok());
    for (int peer = 0; peer < 3; ++peer) {
      const auto& message = in[static_cast<std::size_t>(peer)];
      for (std::size_t i = 0; i < message.size(); ++i) {
        REQUIRE(message[i] == byte_of(peer, child.rank(), i));
      }
    }
  });
}

TEST(NcclCommunicator, AWorldOfOneUsesNoNccl) {
  RunRanks(
      1,
      [](const Child&, Rig& rig) {
        std::vector<std::int64_t> values = {1, 2};
        REQUIRE(
            rig.communicator->AllReduce(Bytes(values), ElementType::kInt64, ReduceOp::kSum).ok());
        REQUIRE((values == std::vector<std::int64_t>{1, 2}));
        rig.communicator->Abort();
        REQUIRE(rig.communicator->AwaitAborted(Duration::Seconds(60)).ok());
      },
      {{"MUSTER_DOUBLE_FAULTS", "init-error,abort-hang,id-error"}});
}

// A kernel that waits for a dead peer, which nothing tells of: only the abort frees this rank.
TEST(NcclCommunicator, AnAbortFreesAWaitingRank) {
  Processes ranks(
      2,
      [](const Child& child) {
        Rig rig(child);
        REQUIRE(rig.communicator->Connect().ok());
        REQUIRE(rig.communicator->Barrier().ok());
        child.Tell("formed");
        if (child.rank() == 1) (void)child.Await();  // until it is killed
        REQUIRE(child.Await() == "killed");
        Status status;
        std::thread waiting([&] { status = rig.communicator->Barrier(); });
        const std::uint64_t before = 2;
        gpu_double::Until([&] { return rig.communicator->operations_begun() > before; });
        rig.communicator->Abort();
        REQUIRE(rig.communicator->AwaitAborted(Duration::Seconds(60)).ok());
        waiting.join();
        REQUIRE(status.code() == Code::kInterrupted);
        REQUIRE(rig.communicator->Barrier().code() == Code::kInterrupted);
        REQUIRE(rig.device->Check(Duration::Seconds(60)).ok());
      },
      With({{"MUSTER_DOUBLE_PEER_DEATH", "silent"}}));
  ranks.PassOnId();
  ASSERT_EQ(ranks.Await(0), "formed");
  ASSERT_EQ(ranks.Await(1), "formed");
  ranks.Kill(1);
  (void)ranks.Wait(1);
  ranks.Tell(0, "killed");
  const gpu_double::End end = ranks.Wait(0);
  EXPECT_EQ(end.exit_code, 0) << end.output;
}

// One process that forms a world of two alone, with the options of ShortAborts.
gpu_double::End AloneOfTwo(const std::function<void(Rig&)>& body, const std::string& faults) {
  return gpu_double::RunAlone(
      [&] {
        auto device = OpenDevice(0);
        REQUIRE(device.ok());
        const Result<std::string> id = MintNcclId();
        REQUIRE(id.ok());
        NcclOptions options = ShortAborts();
        options.init_deadline = Duration::Millis(200);
        auto made = MakeNcclCommunicator(*device, {Generation(1), Rank(0), 2, *id}, options);
        REQUIRE(made.ok());
        const Child nobody(0, 1, -1);
        Rig rig(nobody);
        rig.communicator = *made;
        body(rig);
        gpu_double::Leave();
      },
      With(faults.empty() ? Variables() : Variables{{"MUSTER_DOUBLE_FAULTS", faults}}));
}

TEST(NcclCommunicator, RanksThatDoNotComeAreWaitedForUntilTheDeadline) {
  const gpu_double::End end = AloneOfTwo(
      [](Rig& rig) {
        const Status status = rig.communicator->Connect();
        REQUIRE(status.code() == Code::kDeadlineExceeded);
        REQUIRE(status.message().find("not all ranks have come") != std::string::npos);
        rig.communicator->Abort();
        REQUIRE(rig.communicator->AwaitAborted(Duration::Seconds(60)).ok());
      },
      "");
  EXPECT_EQ(end.exit_code, 0) << end.output;
}

TEST(NcclCommunicator, AnAbortThatHangsIsGivenUp) {
  const gpu_double::End end = AloneOfTwo(
      [](Rig& rig) {
        (void)rig.communicator->Connect();
        rig.communicator->Abort();
        const Status status = rig.communicator->AwaitAborted(Duration::Seconds(60));
        REQUIRE(status.code() == Code::kInternal);
        REQUIRE(rig.communicator->stuck());
      },
      "abort-hang");
  EXPECT_EQ(end.exit_code, 0) << end.output;
  EXPECT_NE(end.output.find("said: generation 1, rank 0 of 2: aborting"), std::string::npos)
      << end.output;
}

TEST(NcclCommunicator, ADeviceThatIsLostIsSaidToBe) {
  const gpu_double::End end = AloneOfTwo(
      [](Rig& rig) {
        (void)rig.communicator->Connect();
        rig.communicator->Abort();
        const Status status = rig.communicator->AwaitAborted(Duration::Seconds(60));
        REQUIRE(status.code() == Code::kInternal);
        REQUIRE(status.message().find("is lost") != std::string::npos);
        REQUIRE(!rig.communicator->stuck());
      },
      "abort-sticky");
  EXPECT_EQ(end.exit_code, 0) << end.output;
}

TEST(NcclCommunicator, AnErrorThatComesLaterEndsTheOperation) {
  const std::string armed = SwitchFile();
  RunRanks(2,
           [&](const Child& child, Rig& rig) {
             REQUIRE(rig.communicator->Barrier().ok());
             if (child.rank() == 1) {
               std::ofstream(armed) << "on";
               const Status status = rig.communicator->Barrier();
               REQUIRE(status.code() == Code::kUnavailable);
               REQUIRE(status.message().find("NCCL") != std::string::npos);
             }
             rig.communicator->Abort();
             REQUIRE(rig.communicator->AwaitAborted(Duration::Seconds(60)).ok());
           },
           {{"MUSTER_DOUBLE_FAULTS", "async-error@rank=1@when=" + armed}});
  std::filesystem::remove(armed);
}

// The gradient on devices has the bits of the one on the host, whatever ranks hold which leaves.
TEST(DeviceGradientSum, HasTheBitsOfTheHost) {
  RunRanks(3, [](const Child& child, Rig& rig) {
    constexpr std::int64_t kElements = (std::int64_t{2} << 20U) + 77;
    constexpr std::int64_t kLeaves = 7;
    const auto value = [](std::int64_t leaf, std::int64_t at) {
      return 1.0F / static_cast<float>(leaf * 31 + at % 1013 + 1);
    };
    FlightRing ring;
    auto made = worker::MakeDeviceGradientSum(rig.device, kElements, ring);
    REQUIRE(made.ok());
    worker::GradientSum& gradient = **made;
    auto stream = rig.device->MakeStream();
    REQUIRE(stream.ok());
    Result<DeviceMemory> memory = rig.device->Allocate(kElements * sizeof(float));
    REQUIRE(memory.ok());
    for (const std::vector<Range>& ranges :
         {std::vector<Range>{{0, 3}, {3, 6}, {6, 7}}, {{0, 0}, {0, 5}, {5, 7}}}) {
      REQUIRE(gradient.Open(rig.communicator, kLeaves, ranges).ok());
      std::vector<float> leaf(kElements);
      PartialSums<float> all(kLeaves, {0, kLeaves}, kElements);
      for (std::int64_t i = 0; i < kLeaves; ++i) {
        for (std::int64_t at = 0; at < kElements; ++at) {
          leaf[static_cast<std::size_t>(at)] = value(i, at);
        }
        REQUIRE(all.Add(i, leaf).ok());
        const Range own = ranges[static_cast<std::size_t>(child.rank())];
        if (i < own.lo || i >= own.hi) continue;
        (*stream)->Copy(memory->data(), leaf.data(), memory->size());
        const auto whole = memory->as<const float>();
        constexpr std::size_t kCut = 1'234'567;
        // As a backward pass: the last part first.
        REQUIRE(gradient.AddPart(i, kCut, whole.subspan(kCut, kElements - kCut), **stream).ok());
        REQUIRE(gradient.AddPart(i, 0, whole.subspan(0, kCut), **stream).ok());
      }
      REQUIRE(gradient.Reduce().ok());
      const Result<double> norm = gradient.Mean(0.25);
      REQUIRE(norm.ok());
      std::vector<float> expected(all.values(0).begin(), all.values(0).end());
      for (float& v : expected) v = static_cast<float>(static_cast<double>(v) * 0.25);
      REQUIRE(*norm == std::sqrt(NormSquared(expected)));
      (*stream)->Copy(leaf.data(), gradient.device().data(), memory->size());
      REQUIRE((*stream)->Wait(Duration::Seconds(60), nullptr).ok());
      REQUIRE(leaf == expected);
    }
  });
}

TEST(NcclSettings, WhatWouldMakeAbortsImpossibleIsSwitchedOffOrRefused) {
  const gpu_double::End switched = gpu_double::RunAlone(
      [] {
        REQUIRE(NcclUsable().ok());
        REQUIRE(std::string(::getenv("NCCL_WIN_ENABLE")) == "0");
        REQUIRE(std::string(::getenv("NCCL_COMM_BLOCKING")) == "0");
      },
      With({{"NCCL_WIN_ENABLE", "1"}, {"NCCL_COMM_BLOCKING", "1"}}));
  EXPECT_EQ(switched.exit_code, 0) << switched.output;
  EXPECT_NE(switched.output.find("NCCL_WIN_ENABLE=1 is switched off"), std::string::npos);
  const gpu_double::End refused = gpu_double::RunAlone(
      [] {
        const Status status = NcclUsable();
        REQUIRE(status.code() == Code::kFailedPrecondition);
        REQUIRE(status.message().find("CUDA_LAUNCH_BLOCKING") != std::string::npos);
      },
      With({{"CUDA_LAUNCH_BLOCKING", "1"}}));
  EXPECT_EQ(refused.exit_code, 0) << refused.output;
}

TEST(NcclLoading, SaysInOneLineWhatIsMissing) {
  const auto says = [](const Variables& variables, const std::string& words) {
    const gpu_double::End end = gpu_double::RunAlone(
        [&] {
          const Status nccl = NcclUsable();
          const Status device = OpenDevice(0).status();
          fmt::print(stderr, "{}\n{}\n", nccl.message(), device.message());
        },
        variables);
    EXPECT_EQ(end.exit_code, 0) << end.output;
    EXPECT_NE(end.output.find(words), std::string::npos) << end.output;
  };
  Variables old = With({{"MUSTER_DOUBLE_NCCL_VERSION", "21801"}});
  says(old, "is NCCL 2.18.1: Muster needs 2.26.0 or newer");
  Variables nowhere = With();
  nowhere["MUSTER_NCCL_LIBRARY"] = "/nowhere/libnccl.so.2";
  says(nowhere, "NCCL is not there: /nowhere/libnccl.so.2");
  Variables incomplete = With();
  incomplete["MUSTER_CUDART_LIBRARY"] = MUSTER_CUDART_INCOMPLETE;
  says(incomplete, "Muster needs CUDA 12.8 or newer");
}

}  // namespace
}  // namespace muster
