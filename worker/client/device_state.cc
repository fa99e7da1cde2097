#include "worker/client/device_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "checkpoint/file_system.h"
#include "checkpoint/stream_copy.h"
#include "protocol/check.h"

namespace muster::worker {
namespace {

// At the end of the worker: what has not run by then waits for something that will not come.
constexpr Duration kLastPatience = Duration::Seconds(5);

}  // namespace

Result<std::unique_ptr<DeviceState>> DeviceState::Make(std::shared_ptr<Device> device,
                                                       DeviceStream& users,
                                                       std::size_t staging_bytes) {
  MUSTER_CHECK(staging_bytes > 0, "copies go through memory");
  Result<std::unique_ptr<DeviceStream>> stream = device->MakeStream();
  if (!stream.ok()) return stream.status();
  std::unique_ptr<DeviceState> made(new DeviceState(std::move(device), users, staging_bytes));
  made->stream_ = std::move(*stream);
  return made;
}

DeviceState::~DeviceState() { static_cast<void>(stream_->Wait(kLastPatience, nullptr)); }

void DeviceState::BeginCopies() { stream_->After(*users_.Record()); }

void DeviceState::Copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) stream_->Copy(to, from, bytes);
}

void DeviceState::Fill(std::span<std::byte> device_memory, std::uint8_t byte) {
  if (!device_memory.empty()) stream_->Fill(device_memory.data(), byte, device_memory.size());
}

Result<std::shared_ptr<Fence>> DeviceState::EndCopies() {
  MUSTER_RETURN_IF_ERROR(stream_->status());
  std::shared_ptr<Fence> fence = stream_->Record();
  users_.After(*fence);
  MUSTER_RETURN_IF_ERROR(users_.status());
  return fence;
}

Status DeviceState::Wait() {
  Status status = stream_->Wait(kPatience, interrupted_);
  if (status.ok()) retired_.clear();
  return status;
}

Status DeviceState::Settle() {
  BeginCopies();
  return Wait();
}

Status DeviceState::MakeStaging() {
  for (DeviceMemory& piece : staging_) {
    if (piece.size() > 0) continue;
    Result<DeviceMemory> memory = device_->AllocatePinned(staging_bytes_);
    if (!memory.ok()) return memory.status();
    piece = std::move(*memory);
  }
  return {};
}

// While one piece is on its way from the device, the one before is copied on.
Status DeviceState::Fetch(std::span<std::byte> to, std::span<const std::byte> device_memory) {
  MUSTER_CHECK(to.size() == device_memory.size(), "a copy has one size");
  MUSTER_RETURN_IF_ERROR(MakeStaging());
  std::span<const std::byte> arrived;
  for (std::size_t at = 0, turn = 0; at < to.size() || !arrived.empty(); turn ^= 1U) {
    const std::size_t bytes = std::min(staging_bytes_, to.size() - at);
    Copy(staging_[turn].data(), device_memory.data() + at, bytes);
    checkpoint::StreamCopy(to.data() + at - arrived.size(), arrived.data(), arrived.size());
    MUSTER_RETURN_IF_ERROR(Wait());
    arrived = staging_[turn].host().first(bytes);
    at += bytes;
  }
  return {};
}

// While one piece is on its way to the device, the next one is copied into the other memory.
Status DeviceState::Store(std::span<std::byte> device_memory, std::span<const std::byte> from) {
  MUSTER_CHECK(device_memory.size() == from.size(), "a copy has one size");
  MUSTER_RETURN_IF_ERROR(MakeStaging());
  for (std::size_t at = 0, turn = 0; at < from.size(); turn ^= 1U) {
    const std::size_t bytes = std::min(staging_bytes_, from.size() - at);
    checkpoint::StreamCopy(staging_[turn].data(), from.data() + at, bytes);
    MUSTER_RETURN_IF_ERROR(Wait());
    Copy(device_memory.data() + at, staging_[turn].data(), bytes);
    at += bytes;
  }
  return Wait();
}

checkpoint::BufferMemory DeviceState::PinnedMemory() const {
  return [device = device_](std::int64_t bytes) -> Result<std::shared_ptr<std::byte>> {
    constexpr auto kAlignment = static_cast<std::size_t>(checkpoint::kDirectAlignment);
    Result<DeviceMemory> memory =
        device->AllocatePinned(static_cast<std::size_t>(bytes) + kAlignment);
    if (!memory.ok()) return memory.status();
    const auto owner = std::make_shared<DeviceMemory>(std::move(*memory));
    const std::size_t past = reinterpret_cast<std::uintptr_t>(owner->data()) % kAlignment;
    return std::shared_ptr<std::byte>(owner, owner->data() + (kAlignment - past) % kAlignment);
  };
}

Result<HostView> HostView::Of(DeviceState* device, std::span<std::byte> bytes) {
  HostView view;
  view.device_ = device;
  view.bytes_ = bytes;
  if (device == nullptr) return view;
  try {
    view.copy_ = AlignedBytes(bytes.size());
  } catch (const std::bad_alloc&) {
    return ResourceExhausted(
        fmt::format("no memory for a copy of {} bytes of the device's", bytes.size()));
  }
  return view;
}

Status HostView::Fetch() const {
  return device_ == nullptr ? Status() : device_->Fetch(copy_.span(), bytes_);
}

Status HostView::Store() const {
  return device_ == nullptr ? Status() : device_->Store(bytes_, copy_.span());
}

}  // namespace muster::worker
