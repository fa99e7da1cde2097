// The gradient of a step on its way from this rank's micro-batches to the mean over all ranks'.
// Where it lies, and how it gets about, is the implementation's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "protocol/box.h"
#include "protocol/status.h"
#include "worker/collective/communicator.h"
#include "worker/collective/device.h"
#include "worker/collective/flight_ring.h"

namespace muster::worker {

// One step after the other: Open, then Add in any parts, then Reduce, then Mean. A step can be
// given up at any point; the next Open starts over. Threads: the training thread.
class GradientSum {
 public:
  virtual ~GradientSum() = default;
  GradientSum() = default;
  GradientSum(const GradientSum&) = delete;
  GradientSum& operator=(const GradientSum&) = delete;

  // A step of `leaves` micro-batches over `communicator`, of which rank r adds ranges[r]. Buffers
  // of the step before are free: its communicator was aborted, or its work is done.
  virtual Status Open(std::shared_ptr<Communicator> communicator, std::int64_t leaves,
                      std::span<const Range> ranges) = 0;
  // The whole gradient of the next micro-batch, in the host's memory.
  virtual Status Add(std::int64_t leaf, std::span<const float> gradient) = 0;
  // Some of its elements, which begin at `first`, in the device's memory; free again for what is
  // put on `stream` afterwards. What has come of all ranks' last micro-batches may be on its way
  // before the rest is there. The micro-batch is done when all its elements have come.
  // kInvalidArgument and kFailedPrecondition: the call was wrong; any other error is one of the
  // device or of the communicator.
  virtual Status AddPart(std::int64_t leaf, std::int64_t first, DeviceSpan<const float> part,
                         DeviceStream& stream) = 0;
  // The sum over all ranks, on every rank. A collective; blocks. kInterrupted and the errors of the
  // communicator.
  virtual Status Reduce() = 0;
  // Scales the sum, and returns the Euclidean norm of that; not finite when a value is not.
  virtual Result<double> Mean(double scale) = 0;

  // Afterwards, and until the next Open: the mean; the one that it does not lie in is empty. Work
  // on the device's goes on the stream that the parts came on, or behind it.
  [[nodiscard]] virtual std::span<float> host() = 0;
  [[nodiscard]] virtual DeviceSpan<float> device() = 0;
  // XXH3 of the mean.
  virtual Result<std::uint64_t> Digest() = 0;
};

// For AddPart.
[[nodiscard]] Status NotOnDevice(std::int64_t leaf, const std::string& device);

// In the host's memory, over any communicator.
[[nodiscard]] std::unique_ptr<GradientSum> MakeHostGradientSum(std::int64_t elements);
// In the memory of `device`, over a DeviceCommunicator; each tile that is put on its way is written
// down in `ring`, which must outlive the result.
[[nodiscard]] Result<std::unique_ptr<GradientSum>> MakeDeviceGradientSum(
    std::shared_ptr<Device> device, std::int64_t elements, FlightRing& ring);
// The same over any communicator, through the host.
[[nodiscard]] Result<std::unique_ptr<GradientSum>> MakeStagedGradientSum(
    std::shared_ptr<Device> device, std::int64_t elements);

}  // namespace muster::worker
