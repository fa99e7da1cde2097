// A communicator of devices: beyond what every communicator does, operations can be put on its
// stream one after another, to run while the host goes on, and be waited for together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "protocol/status.h"
#include "worker/collective/communicator.h"
#include "worker/collective/device.h"

namespace muster {

class DeviceCommunicator : public Communicator {
 public:
  // Meets the other members. Blocks until all have come, an error, or Abort(). REQUIRES: called
  // once, before anything else.
  virtual Status Connect() = 0;

  // Where the operations run. What else is put there runs in order with them.
  [[nodiscard]] virtual DeviceStream& stream() = 0;
  // As Exchange and AllGather, on device memory alone, without waiting for the operation itself;
  // buffers are in use until Complete().
  virtual Status PutExchange(std::span<const std::span<const std::byte>> outgoing,
                             std::span<const std::span<std::byte>> incoming) = 0;
  virtual Status PutAllGather(std::span<std::byte> buffer,
                              std::span<const std::int64_t> counts) = 0;
  // Blocks until all that was put on the stream has run, or an error.
  virtual Status Complete() = 0;
};

}  // namespace muster
