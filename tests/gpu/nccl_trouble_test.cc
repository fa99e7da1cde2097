// What a communicator over NCCL owes to what is around it: the loop's own use of the device,
// threads that sit in the driver, signals, and its own end.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/nccl_rig.h"
#include "worker/client/gradient_sum.h"

namespace muster {
namespace {

// ---- A device whose driver does what a test wants ----------------------------------------------

struct Driver {
  // What is on the stream takes so long; the test does not.
  Duration work;
  // Copies do not return before this.
  std::atomic<bool> copies_return = true;
  std::atomic<bool> copying = false;
};

class FakeFence final : public Fence {
 public:
  [[nodiscard]] Result<bool> Passed() override { return true; }
};

class FakeStream final : public DeviceStream {
 public:
  explicit FakeStream(Driver& driver) : driver_(driver) {}
  void Copy(void*, const void*, std::size_t) override {
    driver_.copying = true;
    gpu_double::Until([&] { return driver_.copies_return.load(); });
  }
  void Fill(void*, std::uint8_t, std::size_t) override {}
  void Launch(Kernel, std::uint32_t, std::uint32_t, std::span<void* const>) override {}
  [[nodiscard]] std::shared_ptr<Fence> Record() override { return std::make_shared<FakeFence>(); }
  void After(Fence&) override {}
  [[nodiscard]] void* native() const override { return nullptr; }
  [[nodiscard]] const Status& status() const override { return status_; }
  [[nodiscard]] Status Wait(Duration limit, const std::atomic<bool>*) override {
    return driver_.work < limit ? Status() : DeadlineExceeded("no end");
  }

 private:
  Driver& driver_;
  Status status_;
};

class FakeDevice final : public Device {
 public:
  explicit FakeDevice(Driver& driver) : driver_(driver) {}
  [[nodiscard]] int ordinal() const override { return 0; }
  [[nodiscard]] const std::string& name() const override { return name_; }
  Status MakeCurrent() const override { return {}; }
  [[nodiscard]] Result<DeviceMemory> Allocate(std::size_t) override { return Unimplemented(""); }
  [[nodiscard]] Result<DeviceMemory> AllocatePinned(std::size_t) override {
    return Unimplemented("");
  }
  [[nodiscard]] bool IsDeviceMemory(const void*) const override { return false; }
  [[nodiscard]] Result<std::pair<std::size_t, std::size_t>> MemoryInfo() const override {
    return Unimplemented("");
  }
  [[nodiscard]] Result<std::unique_ptr<DeviceStream>> MakeStream() override {
    return std::unique_ptr<DeviceStream>(std::make_unique<FakeStream>(driver_));
  }
  [[nodiscard]] std::unique_ptr<DeviceStream> Adopt(void*) override {
    return std::make_unique<FakeStream>(driver_);
  }
  [[nodiscard]] Result<Kernel> Find(std::span<const unsigned char>, const std::string&) override {
    return Unimplemented("");
  }
  [[nodiscard]] Status Check(Duration) override { return {}; }

 private:
  void Free(void*, bool) noexcept override {}
  Driver& driver_;
  const std::string name_ = "a fake";
};

std::shared_ptr<DeviceCommunicator> AloneOn(Driver& driver, NcclOptions options) {
  auto made = MakeNcclCommunicator(std::make_shared<FakeDevice>(driver),
                                   {Generation(1), Rank(0), 1, ""}, std::move(options));
  REQUIRE(made.ok());
  REQUIRE((*made)->Connect().ok());
  return *made;
}

// A loop may have put many seconds of work on the device, behind which the communicator's own
// waits.
TEST(NcclTrouble, AnAbortWaitsForTheWorkOfTheLoop) {
  const gpu_double::End end = gpu_double::RunAlone(
      [] {
        Driver driver;
        driver.work = Duration::Seconds(12);
        const auto communicator = AloneOn(driver, NcclOptions());
        communicator->Abort();
        const Status status = communicator->AwaitAborted(Duration::Seconds(60));
        fmt::print(stderr, "{}\n", status.ToString());
        REQUIRE(status.ok());
      },
      With());
  EXPECT_EQ(end.exit_code, 0) << end.output;
}

TEST(NcclTrouble, AThreadThatSitsInTheDriverIsGivenUp) {
  const gpu_double::End end = gpu_double::RunAlone(
      [] {
        Driver driver;
        driver.copies_return = false;
        const auto communicator = AloneOn(driver, ShortAborts());
        std::vector<std::byte> from(8);
        std::vector<std::byte> to(8);
        std::thread training([&] {
          const std::span<const std::byte> outgoing[] = {from};
          const std::span<std::byte> incoming[] = {to};
          (void)communicator->PutExchange(outgoing, incoming);
        });
        gpu_double::Until([&] { return driver.copying.load(); });
        communicator->Abort();
        Status status;
        gpu_double::Until([&] {
          status = communicator->AwaitAborted(Duration::Millis(10));
          return status.code() != Code::kDeadlineExceeded;
        });
        REQUIRE(status.code() == Code::kInternal);
        REQUIRE(communicator->stuck());
        driver.copies_return = true;
        training.join();
        REQUIRE(communicator->AwaitAborted(Duration::Seconds(60)).ok());
        REQUIRE(!communicator->stuck());
      },
      With());
  EXPECT_EQ(end.exit_code, 0) << end.output;
}

// ---- Against the doubles -----------------------------------------------------------------------

template <class Function>
Function* OfDouble(const char* name) {
  void* library = ::dlopen(MUSTER_CUDART_DOUBLE, RTLD_NOW | RTLD_NOLOAD);
  REQUIRE(library != nullptr);
  void* function = ::dlsym(library, name);
  REQUIRE(function != nullptr);
  return reinterpret_cast<Function*>(function);
}

// A loop with several devices makes another one the thread's.
TEST(NcclTrouble, TheDeviceOfTheWorkerIsUsedWhateverTheLoopChose) {
  Processes ranks(
      2,
      [](const Child& child) {
        auto device = OpenDevice(child.rank());
        REQUIRE(device.ok());
        REQUIRE(OfDouble<int(int)>("cudaSetDevice")(0) == 0);
        NcclGroup group{Generation(1), Rank(child.rank()), 2, ""};
        if (child.rank() == 0) {
          group.id = MintNcclId().value();
          child.Tell(group.id);
        } else {
          group.id = child.Await();
        }
        auto made = MakeNcclCommunicator(*device, std::move(group), {});
        REQUIRE(made.ok());
        // On one host two ranks on one device would be refused.
        const Status status = (*made)->Connect();
        fmt::print(stderr, "{}\n", status.ToString());
        REQUIRE(status.ok());
      },
      With({{"NCCL_HOSTID", "one"}}));
  ranks.PassOnId();
  ranks.ExpectAllWell();
}

std::set<std::string> Threads() {
  std::set<std::string> threads;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    threads.insert(entry.path().string());
  }
  return threads;
}

// A signal may interrupt an accept() there, and with it the forming.
void RequireThatNewThreadsGetNoSignals(const std::set<std::string>& before) {
  for (const std::string& thread : Threads()) {
    if (before.contains(thread)) continue;
    std::ifstream status(thread + "/status");
    std::string word;
    while (status >> word && word != "SigBlk:") {
    }
    std::uint64_t blocked = 0;
    if (!(status >> std::hex >> blocked)) continue;  // it has ended
    REQUIRE((blocked >> (SIGUSR1 - 1) & 1U) == 1);
  }
}

TEST(NcclTrouble, ThreadsOfNcclGetNoSignals) {
  Processes ranks(
      2,
      [](const Child& child) {
        auto device = OpenDevice(0);
        REQUIRE(device.ok());
        REQUIRE(NcclUsable().ok());
        NcclGroup group{Generation(1), Rank(child.rank()), 2, ""};
        if (child.rank() == 0) {
          const auto before = Threads();
          group.id = MintNcclId().value();
          REQUIRE(Threads().size() > before.size());
          RequireThatNewThreadsGetNoSignals(before);
          child.Tell(group.id);
        } else {
          group.id = child.Await();
        }
        auto made = MakeNcclCommunicator(*device, std::move(group), {});
        REQUIRE(made.ok());
        const auto before = Threads();
        REQUIRE((*made)->Connect().ok());
        REQUIRE((*made)->Barrier().ok());
        RequireThatNewThreadsGetNoSignals(before);
      },
      With());
  ranks.PassOnId();
  ranks.ExpectAllWell();
}

// The loop looks for errors of its own launches where the runtime keeps those of the thread.
TEST(NcclTrouble, PollingLeavesNoErrorBehind) {
  const gpu_double::End end = gpu_double::RunAlone(
      [] {
        auto device = OpenDevice(0);
        REQUIRE(device.ok());
        auto stream = (*device)->MakeStream();
        REQUIRE(stream.ok());
        std::atomic<bool> go = false;
        OfDouble<void(void*, void (*)(void*), void*)>("muster_double_enqueue")(
            (*stream)->native(),
            [](void* flag) {
              gpu_double::Until([&] { return static_cast<std::atomic<bool>*>(flag)->load(); });
            },
            &go);
        REQUIRE((*stream)->Wait(Duration::Millis(1), nullptr).code() == Code::kDeadlineExceeded);
        REQUIRE(OfDouble<int()>("cudaGetLastError")() == 0);
        go = true;
        REQUIRE((*stream)->Wait(Duration::Seconds(60), nullptr).ok());
      },
      With());
  EXPECT_EQ(end.exit_code, 0) << end.output;
}

// Connections are made, and shown to work, before the communicator counts as formed.
TEST(NcclTrouble, GarbageShowsWhileItIsBeingFormed) {
  Processes ranks(
      2,
      [](const Child& child) {
        Rig rig(child);
        const Status status = rig.communicator->Connect();
        fmt::print(stderr, "{}\n", status.ToString());
        // What the other one sees depends on what it was sent.
        REQUIRE(child.rank() == 0 || status.code() == Code::kInternal);
      },
      With({{"MUSTER_DOUBLE_FAULTS", "collective-wrong@rank=1@op=1"}}));
  ranks.PassOnId();
  ranks.ExpectAllWell();
}

// An operation is on its way that the other rank never comes to.
TEST(NcclTrouble, ItsEndAbortsBeforeItFreesMemory) {
  Processes ranks(
      2,
      [](const Child& child) {
        Rig rig(child);
        REQUIRE(rig.communicator->Connect().ok());
        if (child.rank() == 1) REQUIRE(child.Await() == "done");
        if (child.rank() == 1) return;
        DeviceMemory memory = rig.device->Allocate(16).value();
        const std::int64_t counts[] = {8, 8};
        REQUIRE(rig.communicator->PutAllGather({memory.data(), 16}, counts).ok());
        rig.communicator.reset();
        child.Tell("freed");
      },
      With());
  ranks.PassOnId();
  EXPECT_EQ(ranks.Await(0), "freed");
  ranks.Tell(1, "done");
  ranks.ExpectAllWell();
}

// What NCCL calls a wrong use is no mistake of the loop's that handed a gradient over.
TEST(NcclTrouble, ARefusalOfNcclIsNotTheLoopsMistake) {
  const std::string armed = SwitchFile();
  Processes ranks(
      2,
      [&](const Child& child) {
        Rig rig(child);
        REQUIRE(rig.communicator->Connect().ok());
        REQUIRE(rig.communicator->Barrier().ok());
        if (child.rank() == 1) return;
        FlightRing ring;
        auto gradient = worker::MakeDeviceGradientSum(rig.device, 64, ring);
        REQUIRE(gradient.ok());
        auto stream = rig.device->MakeStream();
        REQUIRE(stream.ok());
        DeviceMemory memory = rig.device->Allocate(64 * sizeof(float)).value();
        const std::vector<Range> ranges = {{0, 1}, {1, 2}};
        REQUIRE((*gradient)->Open(rig.communicator, 2, ranges).ok());
        std::ofstream(armed) << "on";
        const Status status = (*gradient)->AddPart(0, 0, memory.as<const float>(), **stream);
        fmt::print(stderr, "{}\n", status.ToString());
        REQUIRE(status.code() == Code::kInternal);
      },
      With({{"MUSTER_DOUBLE_FAULTS", "collective-error@rank=0@error=usage@when=" + armed}}));
  ranks.PassOnId();
  ranks.ExpectAllWell();
  std::filesystem::remove(armed);
}

}  // namespace
}  // namespace muster
