#include "worker/collective/device.h"

namespace muster {

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  if (this == &other) return *this;
  if (data_ != nullptr) device_->Free(data_, pinned_);
  device_ = std::move(other.device_);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  pinned_ = other.pinned_;
  return *this;
}

DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr) device_->Free(data_, pinned_);
}

}  // namespace muster
