#include "tests/support/host_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "protocol/check.h"

namespace muster::testing {

class HostFence final : public Fence {
 public:
  HostFence(std::shared_ptr<HostDevice> device, HostDevice::Queue& queue)
      : device_(std::move(device)), queue_(queue), number_(queue.put) {}

  Result<bool> Passed() override {
    const HostDevice::Lock lock(device_->mutex_);
    if (queue_.run >= number_) return true;
    MUSTER_RETURN_IF_ERROR(device_->broken_);
    device_->RunOne(queue_, number_);
    return false;
  }

  [[nodiscard]] HostDevice::Queue& queue() const { return queue_; }
  [[nodiscard]] std::int64_t number() const { return number_; }

 private:
  std::shared_ptr<HostDevice> device_;
  HostDevice::Queue& queue_;
  std::int64_t number_;  // of the last piece of work before it
};

class HostStream final : public DeviceStream {
 public:
  HostStream(std::shared_ptr<HostDevice> device, HostDevice::Queue& queue, bool owner)
      : device_(std::move(device)), queue_(queue), owner_(owner) {}
  ~HostStream() override {
    const HostDevice::Lock lock(device_->mutex_);
    if (owner_) device_->RunUntil(queue_, queue_.put);
  }

  void Copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes == 0) return;
    MUSTER_CHECK(to != nullptr && from != nullptr, "a copy from or to nowhere");
    device_->Put(queue_, [=] { std::memmove(to, from, bytes); });
  }
  void Fill(void* to, std::uint8_t byte, std::size_t bytes) override {
    if (bytes == 0) return;
    MUSTER_CHECK(device_->IsDeviceMemory(to), "what is filled must be memory of the device");
    device_->Put(queue_, [=] { std::memset(to, byte, bytes); });
  }
  void Launch(Kernel kernel, std::uint32_t blocks, std::uint32_t threads,
              std::span<void* const> arguments) override {
    const auto* twin = static_cast<const KernelTwin*>(kernel.handle());
    MUSTER_CHECK(twin != nullptr, "a kernel that nobody found");
    MUSTER_CHECK(arguments.size() == twin->parameters, "the kernel has other parameters");
    if (blocks == 0 || threads == 0 || threads > 1024) {
      if (status_.ok()) status_ = InvalidArgument(std::string(twin->name) + ": no such launch");
      return;
    }
    std::vector<std::uint64_t> values(arguments.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::memcpy(&values[i], arguments[i], sizeof values[i]);
    }
    device_->Put(queue_, [device = device_.get(), twin, values = std::move(values)] {
      twin->run(values.data());
      ++device->launches_;
    });
  }

  std::shared_ptr<Fence> Record() override {
    const HostDevice::Lock lock(device_->mutex_);
    return std::make_shared<HostFence>(device_, queue_);
  }
  void After(Fence& fence) override {
    const auto& before = dynamic_cast<HostFence&>(fence);
    device_->Put(queue_, [device = device_.get(), &queue = before.queue(),
                          number = before.number()] { device->RunUntil(queue, number); });
  }
  [[nodiscard]] void* native() const override { return &queue_; }
  [[nodiscard]] const Status& status() const override { return status_; }

  Status Wait(Duration, const std::atomic<bool>* interrupted) override {
    const HostDevice::Lock lock(device_->mutex_);
    MUSTER_RETURN_IF_ERROR(status_);
    for (;;) {
      const bool over = queue_.run >= queue_.put;
      if (interrupted != nullptr && interrupted->load()) return Interrupted("the wait was ended");
      MUSTER_RETURN_IF_ERROR(device_->broken_);
      if (over) return {};
      device_->RunOne(queue_, queue_.put);
    }
  }

 private:
  std::shared_ptr<HostDevice> device_;
  HostDevice::Queue& queue_;
  bool owner_;
  Status status_;
};

std::shared_ptr<HostDevice> HostDevice::Make() { return Make(Options{}); }

std::shared_ptr<HostDevice> HostDevice::Make(Options options) {
  return std::shared_ptr<HostDevice>(new HostDevice(std::move(options)));
}

HostDevice::~HostDevice() {
  MUSTER_CHECK(device_blocks_.empty() && pinned_blocks_.empty(), "its memory outlives a device");
}

void HostDevice::Break(const std::string& reason) {
  const Lock lock(mutex_);
  broken_ = Internal(reason);
}

namespace {

// Of guarded memory, which has pages of its own.
std::size_t WholePages(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

std::size_t Sum(const std::map<const std::byte*, std::size_t>& blocks) {
  return std::accumulate(blocks.begin(), blocks.end(), std::size_t{0},
                         [](std::size_t sum, const auto& block) { return sum + block.second; });
}

}  // namespace

std::size_t HostDevice::allocated() const {
  const Lock lock(mutex_);
  return Sum(device_blocks_);
}

std::size_t HostDevice::pinned() const {
  const Lock lock(mutex_);
  return Sum(pinned_blocks_);
}

std::int64_t HostDevice::launches() const {
  const Lock lock(mutex_);
  return launches_;
}

Result<DeviceMemory> HostDevice::Keep(std::map<const std::byte*, std::size_t>& blocks,
                                      std::size_t bytes, bool pinned) {
  if (bytes == 0) return DeviceMemory(shared_from_this(), nullptr, 0, pinned);
  const bool guarded = options_.guarded && !pinned;
  void* const data = guarded ? ::mmap(nullptr, WholePages(bytes), PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                             : std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  MUSTER_CHECK(data != nullptr && data != MAP_FAILED, "the host is out of memory");
  std::memset(data, 0xFF, bytes);
  const Lock lock(mutex_);
  if (guarded && running_ == 0) ::mprotect(data, bytes, PROT_NONE);
  blocks.emplace(static_cast<const std::byte*>(data), bytes);
  return DeviceMemory(shared_from_this(), data, bytes, pinned);
}

Result<DeviceMemory> HostDevice::Allocate(std::size_t bytes) {
  const Lock lock(mutex_);
  const std::size_t free = options_.memory_bytes - Sum(device_blocks_);
  if (bytes > free) {
    return ResourceExhausted(name_ + ": " + std::to_string(bytes) + " bytes wanted, " +
                             std::to_string(free) + " free");
  }
  return Keep(device_blocks_, bytes, false);
}

Result<DeviceMemory> HostDevice::AllocatePinned(std::size_t bytes) {
  if (bytes > options_.pinned_bytes) {
    return ResourceExhausted(name_ + ": " + std::to_string(bytes) + " pinned bytes wanted");
  }
  return Keep(pinned_blocks_, bytes, true);
}

bool HostDevice::IsDeviceMemory(const void* address) const {
  const Lock lock(mutex_);
  const auto* const place = static_cast<const std::byte*>(address);
  const auto after = device_blocks_.upper_bound(place);
  if (after == device_blocks_.begin()) return false;
  const auto& [begin, size] = *std::prev(after);
  return place < begin + size;
}

Result<std::pair<std::size_t, std::size_t>> HostDevice::MemoryInfo() const {
  return std::pair(options_.memory_bytes - allocated(), options_.memory_bytes);
}

HostDevice::Queue& HostDevice::NewQueue() {
  const Lock lock(mutex_);
  return queues_.emplace_back();
}

Result<std::unique_ptr<DeviceStream>> HostDevice::MakeStream() {
  auto self = std::static_pointer_cast<HostDevice>(shared_from_this());
  Queue& queue = NewQueue();
  return std::unique_ptr<DeviceStream>(std::make_unique<HostStream>(self, queue, true));
}

std::unique_ptr<DeviceStream> HostDevice::Adopt(void* native_stream) {
  auto self = std::static_pointer_cast<HostDevice>(shared_from_this());
  Queue& queue = native_stream == nullptr ? default_queue_ : *static_cast<Queue*>(native_stream);
  return std::make_unique<HostStream>(self, queue, false);
}

Result<Kernel> HostDevice::Find(std::span<const unsigned char>, const std::string& function) {
  for (const std::span<const KernelTwin> twins : options_.kernels) {
    const auto twin = std::ranges::find(twins, function, &KernelTwin::name);
    if (twin != twins.end()) return Kernel(&*twin);
  }
  return NotFound("no kernel " + function);
}

Status HostDevice::Check(Duration) {
  const Lock lock(mutex_);
  return broken_;
}

void HostDevice::Free(void* data, bool pinned) noexcept {
  const Lock lock(mutex_);
  for (Queue& queue : queues_) RunUntil(queue, queue.put);
  RunUntil(default_queue_, default_queue_.put);
  auto& blocks = pinned ? pinned_blocks_ : device_blocks_;
  const auto block = blocks.find(static_cast<const std::byte*>(data));
  MUSTER_CHECK(block != blocks.end(), "freed twice");
  const std::size_t size = block->second;
  blocks.erase(block);
  if (options_.guarded && !pinned) {
    ::munmap(data, WholePages(size));
  } else {
    std::free(data);
  }
}

void HostDevice::Put(Queue& queue, std::function<void()> work) {
  const Lock lock(mutex_);
  queue.work.push_back(std::move(work));
  ++queue.put;
}

void HostDevice::RunOne(Queue& queue, std::int64_t until) {
  if (queue.run >= until || !broken_.ok()) return;
  const std::function<void()> work = std::move(queue.work.front());
  queue.work.pop_front();
  if (running_++ == 0) Guard(true);
  work();
  if (--running_ == 0) Guard(false);
  ++queue.run;
}

void HostDevice::Guard(bool open) {
  if (!options_.guarded) return;
  for (const auto& [begin, size] : device_blocks_) {
    const int error =
        ::mprotect(const_cast<std::byte*>(begin), size, open ? PROT_READ | PROT_WRITE : PROT_NONE);
    MUSTER_CHECK(error == 0, "pages can be guarded");
  }
}

void HostDevice::RunUntil(Queue& queue, std::int64_t until) {
  while (queue.run < until && broken_.ok()) RunOne(queue, until);
}

}  // namespace muster::testing
