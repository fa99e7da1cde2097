// Waiting for a device without waiting in its driver.
#pragma once

#include <atomic>
#include <functional>

#include "protocol/status.h"
#include "protocol/time.h"
#include "worker/collective/device.h"

namespace muster {

// Waits for `fence` as DeviceStream::Wait describes: eagerly at first, then with pauses. `also` is
// asked once a millisecond and ends the wait with its error; may be empty.
[[nodiscard]] Status PollUntilPassed(Fence& fence, Duration limit,
                                     const std::atomic<bool>* interrupted,
                                     const std::function<Status()>& also);

}  // namespace muster
