// State on a device: copies, their order among the user's work, and snapshots that are written
// while training goes on.
#include "worker/client/device_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/format.h"
#include "checkpoint/reader.h"
#include "tests/checkpoint/memory_disk.h"
#include "tests/support/host_device.h"
#include "worker/client/saver.h"
#include "worker/client/snapshot.h"
#include "worker/client/state_table.h"
#include "worker/client/training_state.h"

namespace muster::worker {
namespace {

using testing::HostDevice;

constexpr Duration kLong = Duration::Seconds(60);
constexpr std::size_t kStaging = 64;

// A kernel that does not end before it is let.
std::mutex gate_mutex;
std::condition_variable gate_changed;
bool gate_open = true;
bool gate_reached = false;
void AwaitGate(const std::uint64_t*) {
  std::unique_lock lock(gate_mutex);
  gate_reached = true;
  gate_changed.notify_all();
  gate_changed.wait(lock, [] { return gate_open; });
}
void SetGate(bool open) {
  const std::lock_guard lock(gate_mutex);
  gate_open = open;
  gate_changed.notify_all();
}
constexpr testing::KernelTwin kGateTwins[] = {{"await_gate", 0, AwaitGate}};

std::shared_ptr<HostDevice> MakeDevice(std::size_t memory_bytes = 1 << 20,
                                       std::size_t pinned_bytes = 1 << 20) {
  HostDevice::Options options;
  options.guarded = true;
  options.memory_bytes = memory_bytes;
  options.pinned_bytes = pinned_bytes;
  options.kernels.push_back(kGateTwins);
  return HostDevice::Make(options);
}

std::vector<std::byte> Pattern(std::size_t size, unsigned salt) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + salt);
  return bytes;
}

class DeviceStateTest : public ::testing::Test {
 protected:
  DeviceStateTest()
      : device_(MakeDevice()),
        stream_(device_->MakeStream().value()),
        state_(DeviceState::Make(device_, *stream_, kStaging).value()) {}

  static std::span<std::byte> Span(const DeviceMemory& memory) {
    return {memory.data(), memory.size()};
  }

  std::shared_ptr<HostDevice> device_;
  std::unique_ptr<DeviceStream> stream_;  // the user's
  std::unique_ptr<DeviceState> state_;
};

TEST_F(DeviceStateTest, CopiesOfAnySizeGoThroughBoundedStaging) {
  for (const std::size_t size : {0U, 1U, 63U, 64U, 65U, 128U, 129U, 1000U}) {
    SCOPED_TRACE(size);
    const DeviceMemory memory = device_->Allocate(size).value();
    const std::vector<std::byte> bytes = Pattern(size, 3);
    ASSERT_EQ(state_->Store(Span(memory), bytes), Status());
    std::vector<std::byte> back(size);
    ASSERT_EQ(state_->Fetch(back, Span(memory)), Status());
    EXPECT_EQ(back, bytes);
  }
  EXPECT_EQ(device_->pinned(), 2 * kStaging);
}

TEST_F(DeviceStateTest, SettlingSeesWhatTheUserHasPutOnTheStream) {
  const DeviceMemory memory = device_->Allocate(4).value();
  stream_->Fill(memory.data(), 5, 4);
  ASSERT_EQ(state_->Settle(), Status());
  std::vector<std::byte> bytes(4);
  ASSERT_EQ(state_->Fetch(bytes, Span(memory)), Status());
  EXPECT_EQ(bytes, std::vector<std::byte>(4, std::byte{5}));
}

TEST_F(DeviceStateTest, AWaitCanBeInterrupted) {
  const DeviceMemory memory = device_->Allocate(4).value();
  std::atomic<bool> interrupted = true;
  state_->InterruptBy(&interrupted);
  stream_->Fill(memory.data(), 5, 4);
  EXPECT_EQ(state_->Settle().code(), Code::kInterrupted);
  state_->InterruptBy(nullptr);
  EXPECT_EQ(state_->Settle(), Status());
}

// What was not waited for may still be on its way from or to memory that nobody wants any more.
TEST_F(DeviceStateTest, RetiredMemoryStaysUntilTheCopiesHaveRun) {
  const DeviceMemory memory = device_->Allocate(4).value();
  std::atomic<bool> interrupted = true;
  state_->InterruptBy(&interrupted);
  DeviceMemory pinned = device_->AllocatePinned(4).value();
  std::ranges::fill(pinned.host(), std::byte{6});
  state_->Copy(memory.data(), pinned.data(), 4);
  ASSERT_EQ(state_->Wait().code(), Code::kInterrupted);
  state_->Retire(std::move(pinned));
  EXPECT_EQ(device_->pinned(), 4U);
  state_->InterruptBy(nullptr);
  ASSERT_EQ(state_->Settle(), Status());
  EXPECT_EQ(device_->pinned(), 0U);
}

TEST_F(DeviceStateTest, PinnedMemoryIsAsBuffersNeedIt) {
  std::optional<checkpoint::AlignedBuffer> buffer(state_->PinnedMemory());
  state_.reset();  // which it outlives
  for (const std::int64_t bytes : {1, 4096, 5000, 100}) {
    ASSERT_EQ(buffer->Resize(bytes), Status());
    EXPECT_EQ(buffer->size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->span().data()) % 4096, 0U);
    EXPECT_GE(buffer->capacity(), std::ssize(buffer->padded()));
    std::ranges::fill(buffer->span(), std::byte{1});
  }
  EXPECT_GE(device_->pinned(), 5000U);
  checkpoint::AlignedBuffer moved = std::move(*buffer);
  EXPECT_TRUE(moved.has_memory());
  buffer.reset();
  EXPECT_GE(device_->pinned(), 5000U);
  moved = checkpoint::AlignedBuffer();
  EXPECT_EQ(device_->pinned(), 0U);
}

// A table with a tensor on a device and one on the host, and a saver.
class DeviceSaves : public ::testing::Test {
 protected:
  static constexpr std::size_t kDeviceBytes = 10000;

  explicit DeviceSaves(std::size_t pinned_bytes = 1 << 20)
      : device_(MakeDevice(1 << 20, pinned_bytes)),
        stream_(device_->MakeStream().value()),
        memory_(device_->Allocate(kDeviceBytes).value()),
        host_(3) {
    table_.UseDevice(DeviceState::Make(device_, *stream_, kStaging).value());
    Add("device", {10, 1000}, {memory_.data(), memory_.size()})->where = MemoryKind::kDevice;
    Add("host", {3}, host_);
    auto disk = std::make_unique<checkpoint::MemoryDisk>();
    disk_ = disk.get();
    EXPECT_TRUE(disk_->MakeDirectory("/c").ok());
    saver_ = std::make_unique<Saver>(std::move(disk), "/c", [this](Message message) {
      const std::lock_guard lock(mutex_);
      answers_.push_back(std::move(message));
      changed_.notify_all();
    });
  }

  std::shared_ptr<TensorSlot> Add(const char* name, Shape shape, std::span<std::byte> memory) {
    auto slot = std::make_shared<TensorSlot>();
    slot->spec = {name, DType::kU8, std::move(shape), -1};
    slot->memory = memory;
    table_.Add(slot);
    return slot;
  }
  // Every byte becomes `value`: on the device when the work runs.
  void SetAll(std::uint8_t value) {
    stream_->Fill(memory_.data(), value, memory_.size());
    std::ranges::fill(host_, std::byte{value});
  }
  checkpoint::ShardPlan Plan(std::int64_t step, std::int32_t rank = 0, std::int32_t size = 1) {
    return {"job", {Step(step), Generation(1)}, Lineage(1), Rank(rank), size, table_.Specs()};
  }
  Message Await(std::size_t index) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return answers_.size() > index; });
    return answers_[index];
  }
  void ExpectWritten(std::size_t answer, std::uint8_t value) {
    const Message message = Await(answer);
    const auto* written = std::get_if<ShardWritten>(&message);
    ASSERT_NE(written, nullptr);
    ASSERT_TRUE(saver_->AwaitIdle(kLong));
    CheckpointRecord record;
    record.job = "job";
    record.key = written->key;
    record.lineage = Lineage(1);
    record.world_size = 1;
    record.directory = checkpoint::DirectoryName(record.key);
    record.tensors = table_.Specs();
    record.files = {written->file};
    record.bytes = written->file.bytes;
    std::vector<std::byte> device(kDeviceBytes);
    std::vector<std::byte> host(3);
    const checkpoint::WantedBox wanted[] = {{0, Box::Whole({10, 1000}), device},
                                            {1, Box::Whole({3}), host}};
    const auto report = checkpoint::LoadBoxes(*disk_, "/c", record, wanted);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(device, std::vector<std::byte>(kDeviceBytes, std::byte{value}));
    EXPECT_EQ(host, std::vector<std::byte>(3, std::byte{value}));
  }

  std::shared_ptr<HostDevice> device_;
  std::unique_ptr<DeviceStream> stream_;  // the user's
  DeviceMemory memory_;
  std::vector<std::byte> host_;
  StateTable table_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Message> answers_;
  checkpoint::MemoryDisk* disk_ = nullptr;
  std::unique_ptr<Saver> saver_;
};

// The training thread does not wait for the device: nothing of the user's work has run when the
// snapshot is on its way, and later work runs behind it.
TEST_F(DeviceSaves, ASnapshotTakesItsPlaceAmongTheUsersWork) {
  SetAll(7);
  const std::shared_ptr<Fence> before = stream_->Record();
  checkpoint::IoPool pool(1);
  checkpoint::AlignedBuffer data;
  std::shared_ptr<Fence> ready;
  ASSERT_EQ(TakeSnapshot(table_, Plan(1), pool, &data, &ready), Status());
  ASSERT_NE(ready, nullptr);
  EXPECT_FALSE(before->Passed().value());
  SetAll(9);
  const std::shared_ptr<Fence> after = stream_->Record();
  ASSERT_EQ(stream_->Wait(kLong, nullptr), Status());
  EXPECT_TRUE(ready->Passed().value());
  EXPECT_TRUE(after->Passed().value());
  ASSERT_EQ(data.size(), static_cast<std::int64_t>(kDeviceBytes + 3));
  EXPECT_TRUE(std::ranges::all_of(data.span(), [](std::byte b) { return b == std::byte{7}; }));
}

// Of a world of three, and without asking for the fence: it is waited for.
TEST_F(DeviceSaves, APartIsTheSameAsOfTheHost) {
  const std::vector<std::byte> bytes = Pattern(kDeviceBytes, 1);
  stream_->Copy(memory_.data(), bytes.data(), bytes.size());
  StateTable same;
  for (const auto& slot : table_.slots()) {
    auto copy = std::make_shared<TensorSlot>();
    copy->spec = slot->spec;
    copy->memory = slot->memory;
    same.Add(std::move(copy));
  }
  std::vector<std::byte> on_host = bytes;
  same.slots()[0]->memory = on_host;
  for (std::int32_t rank = 0; rank < 3; ++rank) {
    checkpoint::IoPool pool(2);
    checkpoint::AlignedBuffer data;
    checkpoint::AlignedBuffer expected;
    ASSERT_EQ(TakeSnapshot(table_, Plan(1, rank, 3), pool, &data), Status());
    ASSERT_EQ(TakeSnapshot(same, Plan(1, rank, 3), pool, &expected), Status());
    EXPECT_TRUE(std::ranges::equal(data.span(), expected.span()));
    EXPECT_TRUE(data.has_memory());
    EXPECT_FALSE(expected.has_memory());
  }
}

TEST_F(DeviceSaves, AreWrittenByValueFromPinnedMemory) {
  for (std::uint8_t step = 1; step <= 5; ++step) {
    if (step % 2 == 0) saver_->Prepare(kDeviceBytes * step, table_.SnapshotMemory());
    SetAll(step);
    ASSERT_EQ(saver_->Save(table_, Plan(step)), Status());
    SetAll(99);
    ExpectWritten(step - 1U, step);
  }
  EXPECT_GE(device_->pinned(), kDeviceBytes);
}

TEST_F(DeviceSaves, ADeviceThatIsLostFailsTheSave) {
  SetAll(1);
  device_->Break("fell off the bus");
  ASSERT_EQ(saver_->Save(table_, Plan(1)), Status());
  const Message message = Await(0);
  const auto* failed = std::get_if<ShardFailed>(&message);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->reason, "fell off the bus");
  EXPECT_TRUE(saver_->AwaitIdle(kLong));
}

// Without a line about the storage, which is not to blame.
TEST_F(DeviceSaves, ADeviceThatHangsIsLeftBehindByItsName) {
  saver_ = std::make_unique<Saver>(
      std::make_unique<checkpoint::MemoryDisk>(), "/c", [](Message) {}, Duration::Millis(1));
  SetGate(false);
  stream_->Launch(device_->Find({}, "await_gate").value(), 1, 1, {});
  ASSERT_EQ(saver_->Save(table_, Plan(1)), Status());
  {
    std::unique_lock lock(gate_mutex);
    gate_changed.wait(lock, [] { return gate_reached; });
  }
  const Status busy = saver_->Save(table_, Plan(2));
  EXPECT_EQ(busy.code(), Code::kResourceExhausted);
  EXPECT_NE(busy.message().find("copied from the device"), std::string::npos);
  ::testing::internal::CaptureStderr();
  saver_.reset();
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("the device has not copied"), std::string::npos) << said;
  EXPECT_EQ(said.find("has not answered"), std::string::npos) << said;
  SetGate(true);
}

// There is pinned memory for the staging alone.
class DeviceSavesWithLittlePinnedMemory : public DeviceSaves {
 protected:
  DeviceSavesWithLittlePinnedMemory() : DeviceSaves(kStaging) {}
};

TEST_F(DeviceSavesWithLittlePinnedMemory, GoThroughOrdinaryMemoryAndSayItOnce) {
  ::testing::internal::CaptureStderr();
  for (std::uint8_t step = 1; step <= 4; ++step) {
    if (step % 2 == 0) saver_->Prepare(kDeviceBytes * step, table_.SnapshotMemory());
    SetAll(step);
    ASSERT_EQ(saver_->Save(table_, Plan(step)), Status());
    SetAll(99);
    ExpectWritten(step - 1U, step);
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("through ordinary memory"), std::string::npos) << said;
  EXPECT_EQ(std::ranges::count(said, '\n'), 1) << said;
  EXPECT_EQ(device_->pinned(), 2 * kStaging);
}

TEST(DeviceTable, LackOfMemoryNamesTheTensorAndLeavesNothingBehind) {
  const auto device = MakeDevice(100);
  const auto stream = device->MakeStream().value();
  StateTable table;
  table.UseDevice(DeviceState::Make(device, *stream).value());
  for (const char* name : {"small", "large"}) {
    auto slot = std::make_shared<TensorSlot>();
    slot->kind = TensorKind::kSharded;
    slot->where = MemoryKind::kDevice;
    slot->spec = {name, DType::kU8, {60}, 0};
    table.Add(std::move(slot));
  }
  const Status status = table.BeginCut(Generation(1), Rank(0), 1, false);
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_NE(status.message().find("'large'"), std::string::npos) << status.message();
  EXPECT_EQ(device->allocated(), 0U);
  ASSERT_EQ(table.BeginCut(Generation(2), Rank(0), 2, false), Status());
  table.AdoptCut(Generation(2));
  EXPECT_EQ(device->allocated(), 60U);
}

class DeviceRegistration : public ::testing::Test {
 protected:
  DeviceRegistration()
      : device_(MakeDevice()),
        stream_(device_->MakeStream().value()),
        memory_(device_->Allocate(24).value()),
        host_(6) {}

  void ExpectMistake(const char* part) {
    EXPECT_NE(state_.status().message().find(part), std::string::npos) << state_.status().message();
  }

  std::shared_ptr<HostDevice> device_;
  std::unique_ptr<DeviceStream> stream_;
  DeviceMemory memory_;
  std::vector<float> host_;
  TrainingState state_;
};

TEST_F(DeviceRegistration, AcceptsAllKindsOfTensors) {
  state_.UseDevice(device_, *stream_);
  const DeviceSpan<float> given = memory_.as<float>();
  EXPECT_EQ(state_.AddReplicated("model", given).data(), given.data());
  state_.AddReplicated("on host", host_);
  const ShardedTensor moments =
      state_.AddSharded("m", DType::kFloat32, {6}, Cut::Even(0), Fill(0), MemoryKind::kDevice);
  const ShardedTensor weights = state_.AddSharded(
      "w", DType::kFloat32, {6}, Cut::Flat(), std::as_bytes(std::span(host_)), MemoryKind::kDevice);
  const DeviceMemory full = device_->Allocate(24).value();
  EXPECT_EQ(state_.AddDerived("full", weights, full.as<float>()).size(), 6U);
  state_.AddDerived("full on host", moments, std::span<float>(host_));
  EXPECT_EQ(state_.status(), Status());
  EXPECT_TRUE(moments.device_data<float>().empty() && moments.data<float>().empty());
}

TEST_F(DeviceRegistration, ADeviceComesBeforeItsTensors) {
  state_.AddReplicated("model", memory_.as<float>());
  ExpectMistake("'model' lies on a device, and none is in use: call UseDevice() first");
}

TEST_F(DeviceRegistration, ADeviceIsNamedOnce) {
  state_.UseDevice(device_, *stream_);
  state_.UseDevice(device_, *stream_);
  ExpectMistake("UseDevice() is called once");
}

TEST_F(DeviceRegistration, MemoryOfTheHostIsNotTakenForADevices) {
  state_.UseDevice(device_, *stream_);
  state_.AddReplicated("model", DeviceSpan<float>(host_.data(), host_.size()));
  ExpectMistake("'model' is given as a DeviceSpan, but does not lie in device memory");
}

TEST_F(DeviceRegistration, MemoryOfADeviceIsNotTakenForTheHosts) {
  state_.UseDevice(device_, *stream_);
  const DeviceSpan<float> given = memory_.as<float>();
  state_.AddReplicated("model", std::span<float>(given.data(), given.size()));
  ExpectMistake("'model' lies in device memory: give it as a DeviceSpan");
}

}  // namespace
}  // namespace muster::worker
