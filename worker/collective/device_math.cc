#include "worker/collective/device_math.h"

#include <array>
#include <cstring>

#include "protocol/check.h"
#include "worker/collective/block_sums.h"
#include "worker/collective/device_kernels.h"

namespace muster {
namespace {

// Each argument has 8 bytes, as all kernels want them.
template <class... Arguments>
void Launch(DeviceStream& stream, Kernel kernel, std::int64_t work, Arguments... arguments) {
  static_assert(((sizeof(Arguments) == 8) && ...));
  if (work == 0) return;
  const device_kernels::Shape shape = device_kernels::ShapeFor(work);
  const std::array<void*, sizeof...(arguments)> pointers = {&arguments...};
  stream.Launch(kernel, shape.blocks, shape.threads, pointers);
}

template <class T>
void Add(DeviceStream& stream, Kernel kernel, DeviceSpan<T> into, DeviceSpan<const T> from) {
  MUSTER_CHECK(into.size() == from.size(), "vectors that are added have one size");
  const auto size = static_cast<std::int64_t>(into.size());
  Launch(stream, kernel, size, into.data(), from.data(), size);
}

std::size_t BlocksOf(std::size_t values) { return (values + kSumBlock - 1) / kSumBlock; }

}  // namespace

Result<std::shared_ptr<const DeviceMath>> DeviceMath::Make(std::shared_ptr<Device> device) {
  std::shared_ptr<DeviceMath> math(new DeviceMath(device));
  const std::pair<Kernel*, const char*> kernels[] = {
      {&math->add_f32_, device_kernels::kAddF32},
      {&math->add_f64_, device_kernels::kAddF64},
      {&math->mean_f32_, device_kernels::kMeanF32},
      {&math->block_squares_f32_, device_kernels::kBlockSquaresF32}};
  for (const auto& [kernel, name] : kernels) {
    Result<Kernel> found = device->Find(device_kernels::image(), name);
    MUSTER_RETURN_IF_ERROR(found.status());
    *kernel = *found;
  }
  return std::shared_ptr<const DeviceMath>(std::move(math));
}

void DeviceMath::AddInto(DeviceStream& stream, DeviceSpan<float> into,
                         DeviceSpan<const float> from) const {
  Add(stream, add_f32_, into, from);
}

void DeviceMath::AddInto(DeviceStream& stream, DeviceSpan<double> into,
                         DeviceSpan<const double> from) const {
  Add(stream, add_f64_, into, from);
}

void DeviceMath::Mean(DeviceStream& stream, DeviceSpan<float> values, double scale) const {
  const auto size = static_cast<std::int64_t>(values.size());
  Launch(stream, mean_f32_, size, values.data(), size, scale);
}

void DeviceMath::BlockSquares(DeviceStream& stream, DeviceSpan<const float> values,
                              DeviceSpan<double> sums) const {
  MUSTER_CHECK(sums.size() == BlocksOf(values.size()), "each block has one sum");
  const auto size = static_cast<std::int64_t>(values.size());
  const auto work = static_cast<std::int64_t>(sums.size() * kSumLanes);
  Launch(stream, block_squares_f32_, work, values.data(), size, sums.data());
}

Status DeviceNorm::Begin(DeviceStream& stream, DeviceSpan<const float> values) {
  const std::size_t blocks = BlocksOf(values.size());
  const std::size_t bytes = blocks * sizeof(double);
  if (bytes > on_host_.size()) {
    Result<DeviceMemory> on_device = math_->device()->Allocate(bytes);
    MUSTER_RETURN_IF_ERROR(on_device.status());
    Result<DeviceMemory> on_host = math_->device()->AllocatePinned(bytes);
    MUSTER_RETURN_IF_ERROR(on_host.status());
    on_device_ = std::move(*on_device);
    on_host_ = std::move(*on_host);
  }
  blocks_ = blocks;
  if (blocks == 0) return {};
  math_->BlockSquares(stream, values, on_device_.as<double>().subspan(0, blocks));
  stream.Copy(on_host_.data(), on_device_.data(), bytes);
  return {};
}

double DeviceNorm::Squared() const {
  BlockSums sums;
  for (std::size_t block = 0; block < blocks_; ++block) {
    double sum = 0;
    std::memcpy(&sum, on_host_.data() + block * sizeof sum, sizeof sum);
    sums.Add(sum);
  }
  return sums.Total();
}

}  // namespace muster
