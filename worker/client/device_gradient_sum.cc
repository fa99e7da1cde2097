// Gradients that never leave the devices: added up where they are made, exchanged between devices,
// and summed there in the order of the tree.
#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <vector>

#include "checkpoint/digest.h"
#include "protocol/check.h"
#include "worker/client/gradient_sum.h"
#include "worker/collective/device_communicator.h"
#include "worker/collective/device_math.h"
#include "worker/collective/device_partial_sums.h"
#include "worker/collective/tree_plan.h"

namespace muster::worker {
namespace {

// So many elements go on their way together, once they are there.
constexpr std::int64_t kTileElements = std::int64_t{1} << 20U;

std::span<std::byte> Bytes(DeviceSpan<float> values) {
  return {reinterpret_cast<std::byte*>(values.data()), values.size_bytes()};
}
std::span<const std::byte> Bytes(DeviceSpan<const float> values) {
  return {reinterpret_cast<const std::byte*>(values.data()), values.size_bytes()};
}

DeviceSpan<float> Slice(DeviceSpan<float> values, Range range) {
  return values.subspan(static_cast<std::size_t>(range.lo), static_cast<std::size_t>(range.size()));
}
DeviceSpan<const float> Slice(DeviceSpan<const float> values, Range range) {
  return values.subspan(static_cast<std::size_t>(range.lo), static_cast<std::size_t>(range.size()));
}

// Memory that grows to what is asked for. What it held is lost then.
Status Reserve(Device& device, std::int64_t elements, DeviceMemory* memory) {
  const std::size_t bytes = static_cast<std::size_t>(elements) * sizeof(float);
  if (memory->size() >= bytes) return {};
  Result<DeviceMemory> got = device.Allocate(bytes);
  if (!got.ok()) return got.status();
  *memory = std::move(*got);
  return {};
}

class DeviceGradientSum final : public GradientSum {
 public:
  DeviceGradientSum(std::shared_ptr<Device> device, std::shared_ptr<const DeviceMath> math,
                    std::unique_ptr<DeviceStream> stream, DeviceMemory mean, std::int64_t elements,
                    FlightRing& ring)
      : device_(std::move(device)),
        math_(std::move(math)),
        elements_(elements),
        stream_(std::move(stream)),
        mean_(std::move(mean)),
        norm_(math_),
        ring_(ring) {}

  Status Open(std::shared_ptr<Communicator> communicator, std::int64_t leaves,
              std::span<const Range> ranges) override;
  Status Add(std::int64_t, std::span<const float>) override {
    return FailedPrecondition(
        "the gradients of this worker lie on its device (WorkerOptions::device): add device "
        "memory");
  }
  Status AddPart(std::int64_t leaf, std::int64_t first, DeviceSpan<const float> part,
                 DeviceStream& stream) override;
  Status Reduce() override;
  Result<double> Mean(double scale) override;
  [[nodiscard]] std::span<float> host() override { return {}; }
  [[nodiscard]] DeviceSpan<float> device() override { return mean_.as<float>(); }
  Result<std::uint64_t> Digest() override;

 private:
  // Puts those tiles on their way whose elements have come of all this rank's leaves. They go from
  // the last to the first on every rank, for all ranks have to begin them in one order, and a
  // backward pass makes the last first.
  Status PutReadyTiles();
  Status PutTile(Range tile);
  // What goes to each rank of its slice of the tile: the values of all nodes that are held here.
  Status Pack(Range tile, std::vector<std::span<const std::byte>>* outgoing);
  [[nodiscard]] Range SliceOf(Range tile, std::int64_t rank) const {
    const Range cut = EvenCut(tile.size(), rank, communicator_->world_size());
    return {tile.lo + cut.lo, tile.lo + cut.hi};
  }

  const std::shared_ptr<Device> device_;
  const std::shared_ptr<const DeviceMath> math_;
  const std::int64_t elements_;
  const std::unique_ptr<DeviceStream> stream_;  // where leaves are added
  const DeviceMemory mean_;
  DeviceNorm norm_;
  FlightRing& ring_;
  std::vector<FlightRing::Ticket> tickets_;  // of the tiles that are on their way

  std::shared_ptr<DeviceCommunicator> communicator_;
  std::optional<DevicePartialSums<float>> sums_;
  TreePlan plan_;
  std::int64_t untouched_ = 0;  // elements below this are not on their way yet
  // Of the tile under way; used again by the next, which comes after it on the same stream.
  DeviceMemory packed_;
  DeviceMemory received_;
  std::vector<std::byte> digested_;  // stays: a copy to it may go on when its wait is interrupted
};

Status DeviceGradientSum::Open(std::shared_ptr<Communicator> communicator, std::int64_t leaves,
                               std::span<const Range> ranges) {
  communicator_ = std::dynamic_pointer_cast<DeviceCommunicator>(std::move(communicator));
  MUSTER_CHECK(communicator_ != nullptr, "gradients on devices need a communicator of devices");
  const std::int64_t rank = communicator_->rank().value();
  const Range own = ranges[static_cast<std::size_t>(rank)];
  Result<TreePlan> plan = TreePlan::Of(leaves, ranges, rank, own);
  if (!plan.ok()) return plan.status();
  plan_ = std::move(*plan);
  if (sums_ && sums_->leaves() == leaves && sums_->range() == own) {
    sums_->Clear();
  } else {
    sums_.emplace(math_, leaves, own, elements_);
  }
  const std::int64_t tile = std::min(kTileElements, elements_);
  const std::int64_t held = plan_.nodes_of[static_cast<std::size_t>(rank)];
  if (held > 1) MUSTER_RETURN_IF_ERROR(Reserve(*device_, held * tile, &packed_));
  const std::int64_t slice = EvenCut(tile, 0, communicator_->world_size()).size();
  MUSTER_RETURN_IF_ERROR(Reserve(*device_, plan_.slots * slice, &received_));
  untouched_ = elements_;
  tickets_.clear();
  return stream_->status();
}

Status DeviceGradientSum::AddPart(std::int64_t leaf, std::int64_t first,
                                  DeviceSpan<const float> part, DeviceStream& stream) {
  if (!part.empty() && !device_->IsDeviceMemory(part.data())) {
    return NotOnDevice(leaf, device_->name());
  }
  const std::shared_ptr<Fence> made = stream.Record();
  stream_->After(*made);
  MUSTER_RETURN_IF_ERROR(sums_->AddPart(*stream_, leaf, first, part));
  const std::shared_ptr<Fence> added = stream_->Record();
  stream.After(*added);
  Status status = PutReadyTiles();
  // The call was right, whatever the device or the communicator say of theirs.
  if (status.code() == Code::kInvalidArgument || status.code() == Code::kFailedPrecondition) {
    return Internal(status.message());
  }
  return status;
}

Status DeviceGradientSum::PutReadyTiles() {
  const auto next = [this] {
    // Cut from the front, so that the ragged tile is the last one.
    const std::int64_t lo = (untouched_ - 1) / kTileElements * kTileElements;
    return Range{lo, untouched_};
  };
  if (untouched_ == 0 || !sums_->complete(next())) return {};
  const std::shared_ptr<Fence> added = stream_->Record();
  communicator_->stream().After(*added);
  while (untouched_ > 0 && sums_->complete(next())) {
    const Range tile = next();
    tickets_.push_back(ring_.Begin(FlightKind::kReduceTile,
                                   tile.size() * static_cast<std::int64_t>(sizeof(float))));
    MUSTER_RETURN_IF_ERROR(PutTile(tile));
    untouched_ = tile.lo;
  }
  return stream_->status();
}

Status DeviceGradientSum::Pack(Range tile, std::vector<std::span<const std::byte>>* outgoing) {
  const auto held = static_cast<std::size_t>(
      plan_.nodes_of[static_cast<std::size_t>(communicator_->rank().value())]);
  DeviceStream& stream = communicator_->stream();
  std::size_t at = 0;
  for (std::int64_t peer = 0; peer < communicator_->world_size(); ++peer) {
    const Range wanted = SliceOf(tile, peer);
    if (held == 1) {
      outgoing->push_back(Bytes(Slice(sums_->values(0), wanted)));
      continue;
    }
    const auto size = static_cast<std::size_t>(wanted.size());
    const DeviceSpan<float> message = packed_.as<float>().subspan(at, held * size);
    for (std::size_t node = 0; node < held; ++node) {
      stream.Copy(message.data() + node * size, Slice(sums_->values(node), wanted).data(),
                  size * sizeof(float));
    }
    outgoing->push_back(Bytes(message));
    at += held * size;
  }
  return stream.status();
}

Status DeviceGradientSum::PutTile(Range tile) {
  DeviceStream& stream = communicator_->stream();
  const Range own = SliceOf(tile, communicator_->rank().value());
  const auto own_size = static_cast<std::size_t>(own.size());
  std::vector<std::span<const std::byte>> outgoing;
  std::vector<std::span<std::byte>> incoming;
  std::vector<std::int64_t> counts;
  MUSTER_RETURN_IF_ERROR(Pack(tile, &outgoing));
  const DeviceSpan<float> received = received_.as<float>();
  std::size_t at = 0;
  for (std::int64_t peer = 0; peer < communicator_->world_size(); ++peer) {
    const auto nodes = static_cast<std::size_t>(plan_.nodes_of[static_cast<std::size_t>(peer)]);
    incoming.push_back(Bytes(received.subspan(at, nodes * own_size)));
    at += nodes * own_size;
    counts.push_back(SliceOf(tile, peer).size() * static_cast<std::int64_t>(sizeof(float)));
  }
  MUSTER_RETURN_IF_ERROR(communicator_->PutExchange(outgoing, incoming));
  // Slots are numbered rank by rank, node by node: just as they lie in `received_`.
  const auto slot = [&](std::size_t index) { return received.subspan(index * own_size, own_size); };
  for (const auto& [into, from] : plan_.additions) {
    math_->AddInto(stream, slot(into), slot(from));
  }
  const DeviceSpan<float> result = Slice(mean_.as<float>(), tile);
  stream.Copy(Slice(mean_.as<float>(), own).data(), slot(0).data(), own_size * sizeof(float));
  return communicator_->PutAllGather(Bytes(result), counts);
}

Status DeviceGradientSum::Reduce() {
  if (!sums_->complete()) return FailedPrecondition("not all micro-batches have been added");
  MUSTER_RETURN_IF_ERROR(PutReadyTiles());
  Status status = communicator_->Complete();
  for (const FlightRing::Ticket ticket : tickets_) ring_.Done(ticket, status.ok());
  return status;
}

Result<double> DeviceGradientSum::Mean(double scale) {
  DeviceStream& stream = communicator_->stream();
  math_->Mean(stream, mean_.as<float>(), scale);
  MUSTER_RETURN_IF_ERROR(norm_.Begin(stream, mean_.as<float>()));
  MUSTER_RETURN_IF_ERROR(communicator_->Complete());
  return std::sqrt(norm_.Squared());
}

Result<std::uint64_t> DeviceGradientSum::Digest() {
  digested_.resize(mean_.size());
  communicator_->stream().Copy(digested_.data(), mean_.data(), digested_.size());
  MUSTER_RETURN_IF_ERROR(communicator_->Complete());
  return checkpoint::DigestOf(digested_);
}

}  // namespace

Result<std::unique_ptr<GradientSum>> MakeDeviceGradientSum(std::shared_ptr<Device> device,
                                                           std::int64_t elements,
                                                           FlightRing& ring) {
  Result<std::shared_ptr<const DeviceMath>> math = DeviceMath::Make(device);
  if (!math.ok()) return math.status();
  Result<std::unique_ptr<DeviceStream>> stream = device->MakeStream();
  if (!stream.ok()) return stream.status();
  Result<DeviceMemory> mean = device->Allocate(static_cast<std::size_t>(elements) * sizeof(float));
  if (!mean.ok()) return mean.status();
  return std::unique_ptr<GradientSum>(std::make_unique<DeviceGradientSum>(
      std::move(device), std::move(*math), std::move(*stream), std::move(*mean), elements, ring));
}

}  // namespace muster::worker
