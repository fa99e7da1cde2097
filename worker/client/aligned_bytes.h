// Storage of Muster's own for the state: of the host, or of a device.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "worker/collective/device.h"

namespace muster::worker {

// Bytes aligned for any element and for vector instructions; not initialized.
class AlignedBytes {
 public:
  AlignedBytes() = default;
  // Of the host. Throws std::bad_alloc.
  explicit AlignedBytes(std::size_t size);
  explicit AlignedBytes(DeviceMemory memory)
      : size_(memory.size()), device_memory_(std::move(memory)) {}
  AlignedBytes(AlignedBytes&& other) noexcept { *this = std::move(other); }
  AlignedBytes& operator=(AlignedBytes&& other) noexcept;
  ~AlignedBytes() = default;

  // Of a device's memory the host must not follow the pointer.
  [[nodiscard]] std::span<std::byte> span() const {
    return {bytes_ ? bytes_.get() : device_memory_.data(), size_};
  }

 private:
  struct Free {
    void operator()(std::byte* bytes) const;
  };
  std::unique_ptr<std::byte, Free> bytes_;
  std::size_t size_ = 0;
  DeviceMemory device_memory_;
};

}  // namespace muster::worker
