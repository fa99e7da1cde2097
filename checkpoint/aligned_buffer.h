// Host memory for snapshots and for reads and writes around the page cache: aligned to pages, in
// huge pages where the kernel has them, and mapped before it is used, so that the first copy into
// it is as fast as any other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "checkpoint/file_system.h"
#include "protocol/status.h"

namespace muster::checkpoint {

// Gives so many bytes, a multiple of kDirectAlignment, at such a multiple, with memory behind all
// of them; freed with the last owner. For memory of a kind that others ask for, such as devices.
using BufferMemory = std::function<Result<std::shared_ptr<std::byte>>(std::int64_t bytes)>;

// Owns its memory, which only grows until the buffer is destroyed. Movable; a moved-from buffer is
// empty. Forked children do not inherit the memory, and must not touch the buffer. Not thread-safe.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Gets its memory from `memory`; null: from the system.
  explicit AlignedBuffer(BufferMemory memory) : memory_(std::move(memory)) {}
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  ~AlignedBuffer();

  // From now on the buffer has `bytes` bytes. Within the capacity this costs nothing and keeps the
  // content; beyond it the content is lost, and the new memory is mapped before this returns (about
  // 0.3 s a GiB). kResourceExhausted when there is not so much memory: the buffer is empty then.
  // REQUIRES: bytes >= 0
  Status Resize(std::int64_t bytes);

  // Does it get its memory from elsewhere than the system?
  [[nodiscard]] bool has_memory() const { return memory_ != nullptr; }
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] std::int64_t capacity() const { return capacity_; }
  // The bytes; the address is a multiple of kDirectAlignment.
  [[nodiscard]] std::span<std::byte> span() { return {data_, static_cast<std::size_t>(size_)}; }
  [[nodiscard]] std::span<const std::byte> span() const {
    return {data_, static_cast<std::size_t>(size_)};
  }
  // The bytes and, up to the next multiple of kDirectAlignment, what follows them.
  [[nodiscard]] std::span<const std::byte> padded() const {
    return {data_, static_cast<std::size_t>(AlignUp(size_))};
  }

 private:
  void Free();
  Status Grow(std::int64_t bytes);
  Status Borrow(std::int64_t capacity);

  BufferMemory memory_;
  std::shared_ptr<std::byte> lent_;  // what `memory_` gave; data_ is then the same
  std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
  std::int64_t capacity_ = 0;  // a multiple of kDirectAlignment
};

}  // namespace muster::checkpoint
