#include "worker/collective/fence_poll.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>

namespace muster {
namespace {

// Asked so often without a pause, and then with one.
constexpr int kEagerPolls = 2000;
constexpr auto kPause = std::chrono::microseconds(50);
constexpr auto kAlsoEvery = std::chrono::milliseconds(1);

}  // namespace

Status PollUntilPassed(Fence& fence, Duration limit, const std::atomic<bool>* interrupted,
                       const std::function<Status()>& also) {
  const auto begun = std::chrono::steady_clock::now();
  const auto end = begun + std::chrono::nanoseconds(limit.nanos());
  auto asked = begun;
  for (int polls = 0;; ++polls) {
    const Result<bool> passed = fence.Passed();
    // In this order: see DeviceStream::Wait.
    if (interrupted != nullptr && interrupted->load(std::memory_order_acquire)) {
      return Interrupted("the communicator was aborted");
    }
    if (!passed.ok()) return passed.status();
    if (*passed) return {};
    if (polls < kEagerPolls) continue;
    const auto now = std::chrono::steady_clock::now();
    if (now >= end) {
      return DeadlineExceeded(fmt::format("no end after {:.1f} s", limit.ToSeconds()));
    }
    if (also && now - asked >= kAlsoEvery) {
      asked = now;
      MUSTER_RETURN_IF_ERROR(also());
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace muster
