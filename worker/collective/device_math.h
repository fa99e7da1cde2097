// What a training step computes on a device: sums, the mean, and the norm, with the same bits as on
// the host (which bits a NaN has aside). By Muster's own kernels, through device.h alone.
#pragma once

#include <cstdint>
#include <memory>

#include "protocol/status.h"
#include "worker/collective/device.h"

namespace muster {

// The kernels of one device. All that they are put to runs in the order of the stream; errors of
// putting it there are the stream's. Threads: any; a stream by one at a time.
class DeviceMath {
 public:
  // Finds the kernels. kUnimplemented when there is none for this device.
  [[nodiscard]] static Result<std::shared_ptr<const DeviceMath>> Make(
      std::shared_ptr<Device> device);

  [[nodiscard]] const std::shared_ptr<Device>& device() const { return device_; }

  // into[i] += from[i]. REQUIRES: equal sizes, no overlap.
  void AddInto(DeviceStream& stream, DeviceSpan<float> into, DeviceSpan<const float> from) const;
  void AddInto(DeviceStream& stream, DeviceSpan<double> into, DeviceSpan<const double> from) const;
  // Each value times `scale`, in double precision and then rounded: a sum becomes a mean.
  void Mean(DeviceStream& stream, DeviceSpan<float> values, double scale) const;
  // The sum of the squares of each block of kSumBlock values (block_sums.h).
  // REQUIRES: as many `sums` as there are blocks, the last one perhaps ragged.
  void BlockSquares(DeviceStream& stream, DeviceSpan<const float> values,
                    DeviceSpan<double> sums) const;

 private:
  explicit DeviceMath(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  std::shared_ptr<Device> device_;
  Kernel add_f32_;
  Kernel add_f64_;
  Kernel mean_f32_;
  Kernel block_squares_f32_;
};

// The sum of the squares of a vector on a device, bit for bit that of NormSquared
// (reduction_tree.h). Blocks are summed on the device, and their sums, one double for 16 KiB of
// values, are added up on the host. Threads: confined to one.
//
// It says also whether all values are finite, without another look at them: a NaN or an infinity
// makes it NaN or infinite, and squares of finite floats cannot overflow a double.
class DeviceNorm {
 public:
  explicit DeviceNorm(std::shared_ptr<const DeviceMath> math) : math_(std::move(math)) {}

  // Puts the work on `stream`. `values` may change once the stream is past it. Allocates when the
  // vector is longer than any before, and fails only then.
  [[nodiscard]] Status Begin(DeviceStream& stream, DeviceSpan<const float> values);
  // REQUIRES: after Begin(), the stream has been waited for.
  [[nodiscard]] double Squared() const;

 private:
  std::shared_ptr<const DeviceMath> math_;
  std::size_t blocks_ = 0;
  DeviceMemory on_device_;
  DeviceMemory on_host_;
};

}  // namespace muster
