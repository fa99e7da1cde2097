// A Device of ordinary memory, for tests on machines without a GPU.
//
// It is lazy, so that a missing wait or fence shows: what is put on a stream runs when somebody
// waits for it, asks its fence, or frees memory, and in that thread; each question to a fence runs
// one piece of work. Fresh memory is full of NaN.
// Threads: as Device says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/kernel_twins.h"
#include "worker/collective/device.h"

namespace muster::testing {

class HostDevice final : public Device {
 public:
  struct Options {
    std::size_t memory_bytes = std::size_t{1} << 30U;  // Allocate() gives no more at a time
    std::size_t pinned_bytes = std::size_t{1} << 30U;  // nor does AllocatePinned()
    // Device memory can be touched by work of its streams alone: whoever follows a pointer into it
    // otherwise dies of it.
    bool guarded = false;
    // What Find() finds, whatever the image.
    std::vector<std::span<const KernelTwin>> kernels = {CollectiveKernelTwins()};
  };
  [[nodiscard]] static std::shared_ptr<HostDevice> Make();
  [[nodiscard]] static std::shared_ptr<HostDevice> Make(Options options);
  ~HostDevice() override;

  // As a sticky error of a GPU: nothing runs any more, and every Wait(), Passed() and Check()
  // returns kInternal with this reason.
  void Break(const std::string& reason);
  // Bytes of device memory and of pinned memory that are allocated now.
  [[nodiscard]] std::size_t allocated() const;
  [[nodiscard]] std::size_t pinned() const;
  // Kernels that have run.
  [[nodiscard]] std::int64_t launches() const;

  [[nodiscard]] int ordinal() const override { return 0; }
  [[nodiscard]] const std::string& name() const override { return name_; }
  Status MakeCurrent() const override { return {}; }
  [[nodiscard]] Result<DeviceMemory> Allocate(std::size_t bytes) override;
  [[nodiscard]] Result<DeviceMemory> AllocatePinned(std::size_t bytes) override;
  [[nodiscard]] bool IsDeviceMemory(const void* address) const override;
  [[nodiscard]] Result<std::pair<std::size_t, std::size_t>> MemoryInfo() const override;
  [[nodiscard]] Result<std::unique_ptr<DeviceStream>> MakeStream() override;
  // Of another stream's native(), with which it shares its work; null is a stream too.
  [[nodiscard]] std::unique_ptr<DeviceStream> Adopt(void* native_stream) override;
  [[nodiscard]] Result<Kernel> Find(std::span<const unsigned char> image,
                                    const std::string& function) override;
  [[nodiscard]] Status Check(Duration limit) override;

 private:
  friend class HostStream;
  friend class HostFence;
  // The work of one stream, numbered from 1 in its order.
  struct Queue {
    std::deque<std::function<void()>> work;
    std::int64_t put = 0;
    std::int64_t run = 0;
  };
  using Lock = std::unique_lock<std::recursive_mutex>;

  explicit HostDevice(Options options) : options_(std::move(options)) {}
  void Free(void* data, bool pinned) noexcept override;
  [[nodiscard]] Result<DeviceMemory> Keep(std::map<const std::byte*, std::size_t>& blocks,
                                          std::size_t bytes, bool pinned);
  [[nodiscard]] Queue& NewQueue();
  void Put(Queue& queue, std::function<void()> work);
  // Runs the next piece of work, if any is left up to number `until`.
  void RunOne(Queue& queue, std::int64_t until);
  void RunUntil(Queue& queue, std::int64_t until);
  // Lets all device memory be touched, or not.
  void Guard(bool open);

  const Options options_;
  const std::string name_ = "memory of the host";

  // Recursive, for work can be to wait for another stream's.
  mutable std::recursive_mutex mutex_;
  // All below is under mutex_. Queues live as long as the device, for fences name them.
  std::list<Queue> queues_;
  Queue default_queue_;
  std::map<const std::byte*, std::size_t> device_blocks_;
  std::map<const std::byte*, std::size_t> pinned_blocks_;
  std::int64_t launches_ = 0;
  Status broken_;
  int running_ = 0;  // pieces of work, one within the other
};

}  // namespace muster::testing
