// Muster's hands on the part of the state that lies in the memory of a device.
//
// The user's loop changes the state by work on one stream, the user's. Muster reads and writes it
// by copies on a stream of its own, which is ordered after the user's by fences.
//
// Threads: the training thread, except PinnedMemory(). Errors: those of the device; kInterrupted
// and kDeadlineExceeded when it does not come to an end.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "checkpoint/aligned_buffer.h"
#include "protocol/status.h"
#include "protocol/time.h"
#include "worker/client/aligned_bytes.h"
#include "worker/collective/device.h"

namespace muster::worker {

class DeviceState {
 public:
  // How long the device may take for what was put on it: the user's work and a copy of the state.
  static constexpr Duration kPatience = Duration::Seconds(600);
  // Of each of two pieces of pinned memory, through which all goes that ordinary memory of the
  // host takes part in. Large enough that a copy is worth what it costs to start it.
  static constexpr std::size_t kStagingBytes = std::size_t{8} << 20U;

  // `users` is not owned, and must outlive the result.
  [[nodiscard]] static Result<std::unique_ptr<DeviceState>> Make(
      std::shared_ptr<Device> device, DeviceStream& users,
      std::size_t staging_bytes = kStagingBytes);
  // Waits a while for copies that are under way.
  ~DeviceState();
  DeviceState(const DeviceState&) = delete;
  DeviceState& operator=(const DeviceState&) = delete;

  [[nodiscard]] Device& device() const { return *device_; }
  [[nodiscard]] std::size_t staging_bytes() const { return staging_bytes_; }
  // What waits here ends with kInterrupted once `flag` is raised. Null: nothing interrupts it.
  void InterruptBy(const std::atomic<bool>* flag) { interrupted_ = flag; }

  // Waits until the user's work so far has run and Muster's copies have: what the device holds is
  // then the state, and others may read and write it.
  [[nodiscard]] Status Settle();

  // Lets copies run after the user's work so far, without waiting for it.
  void BeginCopies();
  // Puts a copy between memory of the device and pinned memory, or within either.
  void Copy(void* to, const void* from, std::size_t bytes);
  void Fill(std::span<std::byte> device_memory, std::uint8_t byte);
  // What the user puts on the stream from now on runs after the copies so far. Returns the fence
  // behind them; it may be asked by any thread.
  [[nodiscard]] Result<std::shared_ptr<Fence>> EndCopies();
  // Waits until the copies so far have run.
  [[nodiscard]] Status Wait();
  // Frees memory once the copies so far have been waited for: of those that were not, one may still
  // be on its way from or to it.
  void Retire(DeviceMemory memory) { retired_.push_back(std::move(memory)); }

  // Copies between memory of the device and ordinary memory, and waits. REQUIRES: equal sizes.
  [[nodiscard]] Status Fetch(std::span<std::byte> to, std::span<const std::byte> device_memory);
  [[nodiscard]] Status Store(std::span<std::byte> device_memory, std::span<const std::byte> from);

  // Pinned memory of the device's for buffers; from any thread, and it outlives this.
  [[nodiscard]] checkpoint::BufferMemory PinnedMemory() const;

 private:
  DeviceState(std::shared_ptr<Device> device, DeviceStream& users, std::size_t staging_bytes)
      : device_(std::move(device)), users_(users), staging_bytes_(staging_bytes) {}
  [[nodiscard]] Status MakeStaging();

  const std::shared_ptr<Device> device_;
  DeviceStream& users_;
  const std::size_t staging_bytes_;
  const std::atomic<bool>* interrupted_ = nullptr;
  DeviceMemory staging_[2];  // pinned; got when they are first needed
  std::vector<DeviceMemory> retired_;
  std::unique_ptr<DeviceStream> stream_;
};

// Bytes of the state as the host can follow them: themselves, or a copy of what a device holds.
class HostView {
 public:
  // With a device: `bytes` lie in its memory, and the view is a copy, which does not hold them yet.
  // Without: it is `bytes`. kResourceExhausted when there is no memory for the copy.
  [[nodiscard]] static Result<HostView> Of(DeviceState* device, std::span<std::byte> bytes);

  [[nodiscard]] std::span<std::byte> span() const {
    return device_ == nullptr ? bytes_ : copy_.span();
  }
  // Brings what the device holds into the copy, and the other way. Blocks. Without a device: done.
  [[nodiscard]] Status Fetch() const;
  [[nodiscard]] Status Store() const;

 private:
  DeviceState* device_ = nullptr;
  std::span<std::byte> bytes_;
  AlignedBytes copy_;
};

}  // namespace muster::worker
