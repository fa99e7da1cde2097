// A GPU as Muster and its users' loops see it: memory, streams of work, and kernels. No header of
// the vendor's is needed to use it. OpenDevice() (gpu_backend.h) gives one where there is one.
//
// Work is put on a stream, in whose order it runs, and waited for by polling: nothing here waits
// inside the driver, where a waiting thread could not be freed.
// Threads: a Device may be used by all threads; a stream by one at a time. Each call makes the
// device the current one of the calling thread (cudaSetDevice): a thread that works with another
// one as well has to select that again.
// Errors: what cannot be put on a stream is kept, and the stream's Wait() returns it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "protocol/status.h"
#include "protocol/time.h"

namespace muster {

class Device;

// Elements in a GPU's memory. The host must not follow the pointer.
template <class T>
class DeviceSpan {
 public:
  DeviceSpan() = default;
  DeviceSpan(T* data, std::size_t size) : data_(data), size_(size) {}
  // Implicit, as std::span does it.
  template <class U>
  requires std::is_same_v<const U, T> DeviceSpan(DeviceSpan<U> other)
      : data_(other.data()), size_(other.size()) {}
  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::size_t size_bytes() const { return size_ * sizeof(T); }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  // REQUIRES: offset + count <= size()
  [[nodiscard]] DeviceSpan subspan(std::size_t offset, std::size_t count) const {
    return {data_ + offset, count};
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

// Owns memory of a device, or pinned memory of the host, which devices copy to and from without a
// detour; freed with it. Freeing may wait for all work of the device.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(std::shared_ptr<Device> device, void* data, std::size_t size, bool pinned)
      : device_(std::move(device)), data_(data), size_(size), pinned_(pinned) {}
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory();

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }
  [[nodiscard]] std::size_t size() const { return size_; }
  // REQUIRES: of a device.
  template <class T>
  [[nodiscard]] DeviceSpan<T> as() const {
    return {static_cast<T*>(data_), size_ / sizeof(T)};
  }
  // REQUIRES: pinned memory of the host.
  [[nodiscard]] std::span<std::byte> host() const { return {data(), size_}; }

 private:
  std::shared_ptr<Device> device_;
  void* data_ = nullptr;
  std::size_t size_ = 0;
  bool pinned_ = false;
};

// A function that runs on the device; belongs to its Device and lives as long.
class Kernel {
 public:
  Kernel() = default;
  explicit Kernel(const void* handle) : handle_(handle) {}
  [[nodiscard]] const void* handle() const { return handle_; }

 private:
  const void* handle_ = nullptr;
};

// How far a stream had come when it was recorded. Threads: one at a time, any.
class Fence {
 public:
  virtual ~Fence() = default;
  Fence() = default;
  Fence(const Fence&) = delete;
  Fence& operator=(const Fence&) = delete;
  // Has all work before it run? An error of the device is kept by it and returned from then on.
  [[nodiscard]] virtual Result<bool> Passed() = 0;
};

class DeviceStream {
 public:
  virtual ~DeviceStream() = default;
  DeviceStream() = default;
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;

  // Copies bytes between any two of: device memory, pinned and ordinary host memory. Ordinary
  // memory may be read before this returns; what is copied to it is there once waited for. With
  // ordinary memory the driver may wait in this call for the work before: a hung device is then
  // waited for without limit.
  virtual void Copy(void* to, const void* from, std::size_t bytes) = 0;
  // Sets device memory to a byte.
  virtual void Fill(void* to, std::uint8_t byte, std::size_t bytes) = 0;
  // Runs `blocks` blocks of `threads` threads. `arguments` point at the values of the kernel's
  // parameters, in order, and are read before this returns.
  virtual void Launch(Kernel kernel, std::uint32_t blocks, std::uint32_t threads,
                      std::span<void* const> arguments) = 0;
  // A mark after all work put here so far.
  [[nodiscard]] virtual std::shared_ptr<Fence> Record() = 0;
  // What is put here from now on runs after `fence`, which may be another stream's.
  virtual void After(Fence& fence) = 0;
  // The vendor's handle: cudaStream_t.
  [[nodiscard]] virtual void* native() const = 0;
  // The first error of putting work here, or ok.
  [[nodiscard]] virtual const Status& status() const = 0;

  // Blocks until all work put here has run; asks again and again, and never waits in the driver.
  // kInterrupted once `interrupted` (may be null) is raised. The flag is looked at after the work:
  // an abort raises it before it ends kernels, whose results are then worth nothing, so work that
  // is over counts only if the flag is still down. kDeadlineExceeded after `limit`.
  [[nodiscard]] virtual Status Wait(Duration limit, const std::atomic<bool>* interrupted) = 0;
};

class Device : public std::enable_shared_from_this<Device> {
 public:
  virtual ~Device() = default;
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] virtual int ordinal() const = 0;
  // As people know it: "NVIDIA H200 (0000:1b:00.0)".
  [[nodiscard]] virtual const std::string& name() const = 0;

  // Makes this device the calling thread's, which is what the vendor's own libraries look for.
  // Everything here does so by itself.
  virtual Status MakeCurrent() const = 0;

  // Not initialized. kResourceExhausted, with what is free, when there is not so much.
  [[nodiscard]] virtual Result<DeviceMemory> Allocate(std::size_t bytes) = 0;
  // Pinned memory of the host.
  [[nodiscard]] virtual Result<DeviceMemory> AllocatePinned(std::size_t bytes) = 0;
  // Is this address in the memory of a device?
  [[nodiscard]] virtual bool IsDeviceMemory(const void* address) const = 0;
  // Free and total bytes.
  [[nodiscard]] virtual Result<std::pair<std::size_t, std::size_t>> MemoryInfo() const = 0;

  // A stream of its own; it waits for no other.
  [[nodiscard]] virtual Result<std::unique_ptr<DeviceStream>> MakeStream() = 0;
  // A stream of the user's (a cudaStream_t of this device; null: its default stream), which stays
  // the user's and must outlive the result. The loop goes on using the stream itself as well.
  [[nodiscard]] virtual std::unique_ptr<DeviceStream> Adopt(void* native_stream) = 0;

  // A function of a compiled module (`image`: a fat binary, a cubin or PTX, which must live as long
  // as the process). Each image is loaded once. kUnimplemented when it has no code for this device,
  // kNotFound when it has no such function.
  [[nodiscard]] virtual Result<Kernel> Find(std::span<const unsigned char> image,
                                            const std::string& function) = 0;

  // Does the device still compute? Runs a small kernel and looks at its result. Blocks for at most
  // `limit`. Any error means that this process can do nothing on the device any more: a sticky one
  // (an illegal access, a device that fell off the bus) is kInternal, no answer kDeadlineExceeded.
  [[nodiscard]] virtual Status Check(Duration limit) = 0;

 private:
  friend class DeviceMemory;
  virtual void Free(void* data, bool pinned) noexcept = 0;
};

}  // namespace muster
