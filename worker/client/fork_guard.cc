#include "worker/client/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>

namespace muster::worker {

namespace {

constexpr std::size_t kMaxGuarded = 64;

// Slots hold fd + 1, so that zero is a free one. Plain atomics: the child runs between fork() and
// whatever comes next, where no lock may be taken.
std::array<std::atomic<int>, kMaxGuarded> guarded{};

void CloseAll() {
  for (std::atomic<int>& slot : guarded) {
    if (const int held = slot.exchange(0); held != 0) ::close(held - 1);
  }
}

}  // namespace

void CloseInChildren(int fd) {
  if (fd < 0) return;
  static const int registered = ::pthread_atfork(nullptr, nullptr, &CloseAll);
  (void)registered;
  for (std::atomic<int>& slot : guarded) {
    int free = 0;
    if (slot.compare_exchange_strong(free, fd + 1)) return;
  }
}

void ForgetInChildren(int fd) {
  if (fd < 0) return;
  for (std::atomic<int>& slot : guarded) {
    int held = fd + 1;
    if (slot.compare_exchange_strong(held, 0)) return;
  }
}

}  // namespace muster::worker
