// Device and pinned memory of the CUDA double. TEST CODE.
//
// A device address lies in a range that is reserved but can never be touched: a host that follows
// such a pointer dies of it, as on a real machine. What is "in" the memory lies elsewhere, at a
// fixed distance. No address is used twice, so a use after free is always seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace muster::gpu_double {

enum class Place { kPageable, kPinned, kDevice };

// Thread-safe.
class Memory {
 public:
  // The one of this process; it is never destroyed, for streams outlive main().
  static Memory& Get();

  // Filled with 0xcb. Null when fewer bytes are free.
  [[nodiscard]] void* Allocate(std::size_t bytes);
  [[nodiscard]] void* AllocatePinned(std::size_t bytes);
  // Dies when the pointer is not the start of a living allocation of its kind.
  void Free(void* address);
  void FreePinned(void* address);

  [[nodiscard]] Place PlaceOf(const void* address);
  // Where the host finds the bytes: device memory elsewhere, all other memory where it is. Dies
  // when they are not within one allocation.
  [[nodiscard]] std::byte* Reach(const void* address, std::size_t bytes);
  // A kernel's argument: an address in the reserved range becomes the host's, else it stays.
  [[nodiscard]] std::uint64_t Translate(std::uint64_t argument);

  [[nodiscard]] std::size_t total() const { return total_; }
  [[nodiscard]] std::size_t free_bytes();

 private:
  Memory();
  using Allocations = std::map<std::uintptr_t, std::size_t>;
  [[nodiscard]] bool InArena(std::uintptr_t address) const;
  // The allocation that holds `address`, its end included, or end().
  [[nodiscard]] static Allocations::iterator Find(Allocations& allocations, std::uintptr_t address);

  std::uintptr_t arena_ = 0;  // addresses that the program under test sees
  std::uintptr_t store_ = 0;  // what they stand for
  std::size_t total_ = 0;

  std::mutex mutex_;
  std::size_t used_ = 0;
  std::size_t next_ = 0;  // offset of the next allocation
  Allocations device_;
  Allocations pinned_;
};

}  // namespace muster::gpu_double
