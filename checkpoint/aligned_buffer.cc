#include "checkpoint/aligned_buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <limits>
#include <utility>

#include "protocol/check.h"

namespace muster::checkpoint {
namespace {

constexpr std::int64_t kHugePageBytes = std::int64_t{2} << 20U;

// Maps `bytes` bytes at a multiple of `alignment`, without memory behind them yet; null when the
// address space or the limit on it is used up. REQUIRES: both are multiples of kDirectAlignment.
std::byte* MapAt(std::int64_t bytes, std::int64_t alignment) {
  const auto length = static_cast<std::size_t>(bytes);
  const auto spare = static_cast<std::size_t>(alignment - kDirectAlignment);
  void* mapped =
      mmap(nullptr, length + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(mapped);
  const std::size_t past = reinterpret_cast<std::uintptr_t>(begin) % (spare + kDirectAlignment);
  const std::size_t before = past == 0 ? 0 : spare + kDirectAlignment - past;
  if (before > 0) munmap(begin, before);
  if (before < spare) munmap(begin + before + length, spare - before);
  return begin + before;
}

// Puts memory behind all of it. False when there is not enough.
bool Populate(std::byte* data, std::int64_t bytes) {
  const auto length = static_cast<std::size_t>(bytes);
#ifdef MADV_POPULATE_WRITE
  int result = 0;
  do {
    result = madvise(data, length, MADV_POPULATE_WRITE);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return true;
  // EINVAL: a kernel before 5.14.
  if (errno != EINVAL) return false;
#endif
  for (std::size_t page = 0; page < length; page += kDirectAlignment) data[page] = std::byte{0};
  return true;
}

}  // namespace

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : memory_(std::move(other.memory_)),
      lent_(std::move(other.lent_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      capacity_(std::exchange(other.capacity_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  AlignedBuffer taken(std::move(other));
  std::swap(memory_, taken.memory_);
  std::swap(lent_, taken.lent_);
  std::swap(data_, taken.data_);
  std::swap(size_, taken.size_);
  std::swap(capacity_, taken.capacity_);
  return *this;
}

AlignedBuffer::~AlignedBuffer() { Free(); }

void AlignedBuffer::Free() {
  if (data_ != nullptr && lent_ == nullptr) munmap(data_, static_cast<std::size_t>(capacity_));
  lent_.reset();
  data_ = nullptr;
  size_ = 0;
  capacity_ = 0;
}

Status AlignedBuffer::Resize(std::int64_t bytes) {
  MUSTER_CHECK(bytes >= 0, "a buffer has no negative size");
  if (bytes > capacity_) {
    // First give back the old memory: both together may be more than there is.
    Free();
    MUSTER_RETURN_IF_ERROR(Grow(bytes));
  }
  size_ = bytes;
  return {};
}

Status AlignedBuffer::Grow(std::int64_t bytes) {
  const std::int64_t alignment = bytes < kHugePageBytes ? kDirectAlignment : kHugePageBytes;
  const Status none = ResourceExhausted(fmt::format("no memory for a buffer of {} bytes", bytes));
  if (bytes > std::numeric_limits<std::int64_t>::max() - 2 * kHugePageBytes) return none;
  const std::int64_t capacity = (bytes + alignment - 1) / alignment * alignment;
  if (memory_) return Borrow(capacity);
  data_ = MapAt(capacity, alignment);
  if (data_ == nullptr) return none;
  capacity_ = capacity;
  // Advice only: without huge pages the buffer works as well, only slower. Forked children (data
  // loaders) do not get it, so that no page has to be copied for their sake.
  static_cast<void>(madvise(data_, static_cast<std::size_t>(capacity), MADV_HUGEPAGE));
  static_cast<void>(madvise(data_, static_cast<std::size_t>(capacity), MADV_DONTFORK));
  if (!Populate(data_, capacity)) {
    Free();
    return none;
  }
  return {};
}

Status AlignedBuffer::Borrow(std::int64_t capacity) {
  Result<std::shared_ptr<std::byte>> lent = memory_(capacity);
  if (!lent.ok()) return lent.status();
  lent_ = std::move(*lent);
  data_ = lent_.get();
  capacity_ = capacity;
  MUSTER_CHECK(reinterpret_cast<std::uintptr_t>(data_) % kDirectAlignment == 0,
               "memory for buffers is aligned");
  return {};
}

}  // namespace muster::checkpoint
