#include "tests/support/host_device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <vector>

namespace muster::testing {
namespace {

TEST(HostDevice, RunsNothingBeforeItIsWaitedFor) {
  const auto device = HostDevice::Make();
  const auto stream = device->MakeStream().value();
  const DeviceMemory memory = device->Allocate(sizeof(float)).value();
  float value = 1;
  stream->Copy(memory.data(), &value, sizeof value);
  float result = 0;
  stream->Copy(&result, memory.data(), sizeof result);
  EXPECT_EQ(result, 0.F);
  EXPECT_EQ(stream->Wait(Duration::Seconds(1), nullptr), Status());
  EXPECT_EQ(result, 1.F);
}

TEST(HostDeviceDeathTest, GuardedMemoryIsForStreamsAlone) {
  HostDevice::Options options;
  options.guarded = true;
  const auto device = HostDevice::Make(options);
  const auto stream = device->MakeStream().value();
  const DeviceMemory memory = device->Allocate(10000).value();
  const auto touch = [&] { *static_cast<volatile std::byte*>(memory.data() + 9999) = {}; };
  EXPECT_DEATH(touch(), "");
  std::vector<unsigned char> result(10000);
  stream->Fill(memory.data(), 7, 10000);
  stream->Copy(result.data(), memory.data(), 10000);
  EXPECT_EQ(stream->Wait(Duration::Seconds(1), nullptr), Status());
  EXPECT_EQ(result, std::vector<unsigned char>(10000, 7));
  EXPECT_DEATH(touch(), "");
}

TEST(HostDevice, StreamsMeetByFences) {
  const auto device = HostDevice::Make();
  const auto first = device->MakeStream().value();
  const auto second = device->MakeStream().value();
  const DeviceMemory memory = device->Allocate(4).value();
  first->Fill(memory.data(), 7, 4);
  const std::shared_ptr<Fence> fence = first->Record();
  first->Fill(memory.data(), 9, 4);
  second->After(*fence);
  std::vector<unsigned char> result(4);
  second->Copy(result.data(), memory.data(), 4);
  EXPECT_EQ(second->Wait(Duration::Seconds(1), nullptr), Status());
  EXPECT_EQ(result, std::vector<unsigned char>(4, 7));
  EXPECT_TRUE(fence->Passed().value());
  EXPECT_FALSE(first->Record()->Passed().value());
}

TEST(HostDevice, AWaitEndsWhenItIsInterrupted) {
  const auto device = HostDevice::Make();
  const auto stream = device->MakeStream().value();
  const std::atomic<bool> raised = true;
  const DeviceMemory memory = device->Allocate(4).value();
  stream->Fill(memory.data(), 1, 4);
  EXPECT_EQ(stream->Wait(Duration::Seconds(1), &raised).code(), Code::kInterrupted);
  const std::atomic<bool> down = false;
  EXPECT_EQ(stream->Wait(Duration::Seconds(1), &down), Status());
  // An abort ends work too, and what is over then is worth nothing.
  EXPECT_EQ(stream->Wait(Duration::Seconds(1), &raised).code(), Code::kInterrupted);
}

TEST(HostDevice, KnowsItsMemory) {
  const auto device = HostDevice::Make({.memory_bytes = 1000});
  {
    const DeviceMemory memory = device->Allocate(600).value();
    EXPECT_TRUE(device->IsDeviceMemory(memory.data()));
    EXPECT_TRUE(device->IsDeviceMemory(memory.data() + 599));
    EXPECT_FALSE(device->IsDeviceMemory(memory.data() + 600));
    EXPECT_FALSE(device->IsDeviceMemory(device->AllocatePinned(8).value().data()));
    EXPECT_EQ(device->Allocate(401).status().code(), Code::kResourceExhausted);
    EXPECT_EQ(device->MemoryInfo().value(), (std::pair<std::size_t, std::size_t>{400, 1000}));
    EXPECT_TRUE(std::isnan(memory.as<float>().data()[0]));
  }
  EXPECT_EQ(device->allocated(), 0U);
  EXPECT_EQ(device->pinned(), 0U);
}

TEST(HostDevice, RunsAKernelByItsTwin) {
  const auto device = HostDevice::Make();
  const auto stream = device->Adopt(nullptr);
  const Kernel probe = device->Find({}, "muster_probe").value();
  const DeviceMemory memory = device->Allocate(4).value();
  stream->Fill(memory.data(), 0, 4);
  void* data = memory.data();
  void* const arguments[] = {&data};
  stream->Launch(probe, 1, 1, arguments);
  std::uint32_t result = 0;
  stream->Copy(&result, memory.data(), 4);
  EXPECT_EQ(stream->Wait(Duration::Seconds(1), nullptr), Status());
  EXPECT_EQ(result, 1U);
  EXPECT_EQ(device->launches(), 1);
  stream->Launch(probe, 0, 1, arguments);
  EXPECT_EQ(stream->Wait(Duration::Seconds(1), nullptr).code(), Code::kInvalidArgument);
  EXPECT_EQ(device->Find({}, "another").status().code(), Code::kNotFound);
}

TEST(HostDevice, ABrokenOneDoesNothingMore) {
  const auto device = HostDevice::Make();
  const auto stream = device->MakeStream().value();
  const DeviceMemory memory = device->Allocate(4).value();
  stream->Fill(memory.data(), 1, 4);
  const std::shared_ptr<Fence> fence = stream->Record();
  device->Break("it fell off the bus");
  EXPECT_EQ(stream->Wait(Duration::Seconds(1), nullptr), Internal("it fell off the bus"));
  EXPECT_EQ(fence->Passed().status(), Internal("it fell off the bus"));
  EXPECT_EQ(device->Check(Duration::Seconds(1)), Internal("it fell off the bus"));
}

}  // namespace
}  // namespace muster::testing
