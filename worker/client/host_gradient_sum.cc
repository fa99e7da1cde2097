// Gradients that are added up in the host's memory, where they come from there or from a device.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "checkpoint/digest.h"
#include "worker/client/gradient_sum.h"
#include "worker/collective/reduction_tree.h"

namespace muster::worker {
namespace {

// How long a device may take for a copy.
constexpr Duration kCopyLimit = Duration::Seconds(600);

class HostGradientSum : public GradientSum {
 public:
  explicit HostGradientSum(std::int64_t elements)
      : elements_(elements), mean_(static_cast<std::size_t>(elements)) {}

  Status Open(std::shared_ptr<Communicator> communicator, std::int64_t leaves,
              std::span<const Range> ranges) override {
    communicator_ = std::move(communicator);
    ranges_.assign(ranges.begin(), ranges.end());
    const Range own = ranges_[static_cast<std::size_t>(communicator_->rank().value())];
    if (sums_ && sums_->leaves() == leaves && sums_->range() == own) {
      sums_->Clear();
    } else {
      sums_.emplace(leaves, own, elements_);
    }
    return {};
  }
  Status Add(std::int64_t leaf, std::span<const float> gradient) override {
    return sums_->Add(leaf, gradient);
  }
  Status AddPart(std::int64_t, std::int64_t, DeviceSpan<const float>, DeviceStream&) override {
    return FailedPrecondition(
        "this worker has no device: set WorkerOptions::device to add gradients that lie on one");
  }
  Status Reduce() override {
    return ReduceTree<float>(*communicator_, ranges_, *sums_, std::span<float>(mean_));
  }
  Result<double> Mean(double scale) override {
    for (float& value : mean_) value = static_cast<float>(static_cast<double>(value) * scale);
    return std::sqrt(NormSquared(mean_));
  }
  [[nodiscard]] std::span<float> host() override { return mean_; }
  [[nodiscard]] DeviceSpan<float> device() override { return {}; }
  Result<std::uint64_t> Digest() override {
    return checkpoint::DigestOf(std::as_bytes(std::span(mean_)));
  }

 protected:
  const std::int64_t elements_;
  std::shared_ptr<Communicator> communicator_;
  std::vector<Range> ranges_;
  std::optional<PartialSums<float>> sums_;
  std::vector<float> mean_;
};

// Parts come from a device, are put together in pinned memory, and the mean goes back.
class StagedGradientSum final : public HostGradientSum {
 public:
  StagedGradientSum(std::shared_ptr<Device> device, std::unique_ptr<DeviceStream> stream,
                    DeviceMemory leaf, DeviceMemory result, std::int64_t elements)
      : HostGradientSum(elements),
        device_(std::move(device)),
        stream_(std::move(stream)),
        leaf_(std::move(leaf)),
        result_(std::move(result)) {}

  Status Open(std::shared_ptr<Communicator> communicator, std::int64_t leaves,
              std::span<const Range> ranges) override {
    missing_ = elements_;
    came_.clear();
    return HostGradientSum::Open(std::move(communicator), leaves, ranges);
  }
  Status Add(std::int64_t, std::span<const float>) override {
    return FailedPrecondition(
        "the gradients of this worker lie on its device (WorkerOptions::device): add device "
        "memory");
  }
  Status AddPart(std::int64_t leaf, std::int64_t first, DeviceSpan<const float> part,
                 DeviceStream& stream) override {
    const auto size = static_cast<std::int64_t>(part.size());
    if (first < 0 || first > elements_ || size > elements_ - first) {
      return InvalidArgument(
          fmt::format("elements [{}, {}) of a gradient of {}", first, first + size, elements_));
    }
    if (size > 0 && !device_->IsDeviceMemory(part.data())) {
      return NotOnDevice(leaf, device_->name());
    }
    const Range range{first, first + size};
    if (std::ranges::any_of(came_,
                            [&](const Range& r) { return range.lo < r.hi && r.lo < range.hi; })) {
      return InvalidArgument(
          fmt::format("micro-batch {} has the part [{}, {}), of which some came "
                      "before",
                      leaf, range.lo, range.hi));
    }
    if (size > 0) came_.push_back(range);
    const std::shared_ptr<Fence> before = stream.Record();
    stream_->After(*before);
    stream_->Copy(leaf_.data() + static_cast<std::size_t>(first) * sizeof(float), part.data(),
                  part.size_bytes());
    const std::shared_ptr<Fence> after = stream_->Record();
    stream.After(*after);
    missing_ -= size;
    if (missing_ > 0) return {};
    missing_ = elements_;
    came_.clear();
    MUSTER_RETURN_IF_ERROR(stream_->Wait(kCopyLimit, nullptr));
    return sums_->Add(
        leaf, {reinterpret_cast<const float*>(leaf_.data()), static_cast<std::size_t>(elements_)});
  }
  Result<double> Mean(double scale) override {
    Result<double> norm = HostGradientSum::Mean(scale);
    if (!norm.ok()) return norm;
    // By way of pinned memory, which is free by now: from any other, the driver could wait.
    std::memcpy(leaf_.data(), mean_.data(), leaf_.size());
    stream_->Copy(result_.data(), leaf_.data(), leaf_.size());
    MUSTER_RETURN_IF_ERROR(stream_->Wait(kCopyLimit, nullptr));
    return norm;
  }
  [[nodiscard]] std::span<float> host() override { return {}; }
  [[nodiscard]] DeviceSpan<float> device() override { return result_.as<float>(); }

 private:
  const std::shared_ptr<Device> device_;
  const std::unique_ptr<DeviceStream> stream_;
  const DeviceMemory leaf_;
  const DeviceMemory result_;
  std::int64_t missing_ = 0;
  std::vector<Range> came_;  // of the leaf whose turn it is
};

}  // namespace

Status NotOnDevice(std::int64_t leaf, const std::string& device) {
  return InvalidArgument(fmt::format(
      "the gradient of micro-batch {} does not lie in the memory of {} (WorkerOptions::device)",
      leaf, device));
}

std::unique_ptr<GradientSum> MakeHostGradientSum(std::int64_t elements) {
  return std::make_unique<HostGradientSum>(elements);
}

Result<std::unique_ptr<GradientSum>> MakeStagedGradientSum(std::shared_ptr<Device> device,
                                                           std::int64_t elements) {
  const std::size_t bytes = static_cast<std::size_t>(elements) * sizeof(float);
  Result<std::unique_ptr<DeviceStream>> stream = device->MakeStream();
  if (!stream.ok()) return stream.status();
  Result<DeviceMemory> leaf = device->AllocatePinned(bytes);
  if (!leaf.ok()) return leaf.status();
  Result<DeviceMemory> result = device->Allocate(bytes);
  if (!result.ok()) return result.status();
  return std::unique_ptr<GradientSum>(std::make_unique<StagedGradientSum>(
      std::move(device), std::move(*stream), std::move(*leaf), std::move(*result), elements));
}

}  // namespace muster::worker
