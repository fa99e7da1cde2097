#include "tests/gpu/double/double_memory.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/gpu/double/double_hooks.h"

namespace muster::gpu_double {
namespace {

// Addresses only, for all that a process ever allocates; no more, for sanitizers have little room.
constexpr std::size_t kArenaBytes = std::size_t{256} << 30;
constexpr std::size_t kPage = 4096;
constexpr int kPoison = 0xcb;

std::uintptr_t Reserve() {
  void* const at =
      ::mmap(nullptr, kArenaBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) Die("no addresses for device memory (is there a limit on them?)");
  return reinterpret_cast<std::uintptr_t>(at);
}

std::size_t RoundUp(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

std::string Hex(std::uintptr_t value) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%zx", value);
  return text;
}

}  // namespace

Memory& Memory::Get() {
  static Memory& memory = *new Memory;
  return memory;
}

Memory::Memory()
    : arena_(Reserve()),
      store_(Reserve()),
      total_(static_cast<std::size_t>(
          EnvironmentNumber("MUSTER_DOUBLE_DEVICE_BYTES", long{4} << 30))) {}

bool Memory::InArena(std::uintptr_t address) const {
  return address >= arena_ && address < arena_ + kArenaBytes;
}

Memory::Allocations::iterator Memory::Find(Allocations& allocations, std::uintptr_t address) {
  auto after = allocations.upper_bound(address);
  if (after == allocations.begin()) return allocations.end();
  --after;
  return address <= after->first + after->second ? after : allocations.end();
}

void* Memory::Allocate(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > total_ - used_) return nullptr;
  const std::size_t size = RoundUp(bytes);
  // One page more that stays out of reach: what runs over the end dies there.
  if (next_ + size + kPage > kArenaBytes) Die("the double's addresses are used up");
  void* const at = reinterpret_cast<void*>(store_ + next_);
  if (::mprotect(at, size, PROT_READ | PROT_WRITE) != 0) Die("no memory for the device's");
  std::memset(at, kPoison, size);
  const std::uintptr_t address = arena_ + next_;
  next_ += size + kPage;
  used_ += bytes;
  device_.emplace(address, bytes);
  return reinterpret_cast<void*>(address);
}

void* Memory::AllocatePinned(std::size_t bytes) {
  void* const at = std::aligned_alloc(kPage, RoundUp(bytes));
  if (at == nullptr) return nullptr;
  std::memset(at, kPoison, bytes);
  const std::lock_guard lock(mutex_);
  pinned_.emplace(reinterpret_cast<std::uintptr_t>(at), bytes);
  return at;
}

void Memory::Free(void* address) {
  const std::lock_guard lock(mutex_);
  const auto key = reinterpret_cast<std::uintptr_t>(address);
  const auto found = device_.find(key);
  if (found == device_.end()) Die("cudaFree of " + Hex(key) + ", which is no device allocation");
  // A fresh mapping in its place: the bytes go back to the system, and nobody reaches them again.
  void* const at = reinterpret_cast<void*>(store_ + (key - arena_));
  if (::mmap(at, RoundUp(found->second), PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    Die("device memory cannot be given back");
  }
  used_ -= found->second;
  device_.erase(found);
}

void Memory::FreePinned(void* address) {
  const std::lock_guard lock(mutex_);
  const auto key = reinterpret_cast<std::uintptr_t>(address);
  if (pinned_.erase(key) == 0) {
    Die("cudaFreeHost of " + Hex(key) + ", which is no pinned allocation");
  }
  std::free(address);
}

Place Memory::PlaceOf(const void* address) {
  const std::lock_guard lock(mutex_);
  const auto key = reinterpret_cast<std::uintptr_t>(address);
  if (InArena(key)) return Place::kDevice;
  const auto found = Find(pinned_, key);
  return found != pinned_.end() && key < found->first + found->second ? Place::kPinned
                                                                      : Place::kPageable;
}

std::byte* Memory::Reach(const void* address, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto key = reinterpret_cast<std::uintptr_t>(address);
  const bool device = InArena(key);
  Allocations& allocations = device ? device_ : pinned_;
  const auto found = Find(allocations, key);
  const bool known = found != allocations.end();
  if (!device && (!known || key == found->first + found->second)) {
    return reinterpret_cast<std::byte*>(key);
  }
  if (!known) Die("use of device memory at " + Hex(key) + " that was freed or never allocated");
  if (bytes > found->first + found->second - key) {
    Die(std::to_string(bytes) + " bytes at " + Hex(key) + " run beyond an allocation of " +
        std::to_string(found->second) + " bytes at " + Hex(found->first));
  }
  return reinterpret_cast<std::byte*>(device ? store_ + (key - arena_) : key);
}

std::uint64_t Memory::Translate(std::uint64_t argument) {
  if (!InArena(argument)) return argument;
  return reinterpret_cast<std::uint64_t>(Reach(reinterpret_cast<const void*>(argument), 0));
}

std::size_t Memory::free_bytes() {
  const std::lock_guard lock(mutex_);
  return total_ - used_;
}

}  // namespace muster::gpu_double
