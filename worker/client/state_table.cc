#include "worker/client/state_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "checkpoint/digest.h"

namespace muster::worker {

namespace {
constexpr std::align_val_t kAlignment{64};

// Along a dimension: one box, also when it is empty, so that its place is known.
std::vector<Box> PartOf(const TensorSpec& spec, Rank rank, std::int32_t world_size) {
  if (spec.cut_dimension == kFlat) return BoxesOf(spec, rank.value(), world_size);
  return {BoxOf(spec, rank.value(), world_size)};
}

}  // namespace

AlignedBytes::AlignedBytes(std::size_t size)
    : bytes_(size == 0 ? nullptr : static_cast<std::byte*>(::operator new(size, kAlignment))),
      size_(size) {}

AlignedBytes& AlignedBytes::operator=(AlignedBytes&& other) noexcept {
  bytes_ = std::move(other.bytes_);
  size_ = std::exchange(other.size_, 0);
  device_memory_ = std::move(other.device_memory_);
  return *this;
}

void AlignedBytes::Free::operator()(std::byte* bytes) const {
  ::operator delete(bytes, kAlignment);
}

std::vector<BoxBytes> TensorSlot::Split(const std::vector<Box>& of,
                                        std::span<std::byte> bytes) const {
  std::vector<BoxBytes> split;
  for (const Box& box : of) {
    const auto size = static_cast<std::size_t>(box.count() * SizeOf(spec.dtype));
    split.push_back({box, bytes.first(size)});
    bytes = bytes.subspan(size);
  }
  return split;
}

void StateTable::Fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

void StateTable::Add(std::shared_ptr<TensorSlot> slot) {
  if (sealed_) {
    return Fail(FailedPrecondition(fmt::format(
        "tensor '{}' was added after Worker::Join(): add all tensors before it", slot->spec.name)));
  }
  const auto same = [&](const auto& other) { return other->spec.name == slot->spec.name; };
  if (std::ranges::any_of(slots_, same)) {
    return Fail(InvalidArgument(
        fmt::format("tensor '{}' is added twice: each name once, please", slot->spec.name)));
  }
  slots_.push_back(std::move(slot));
}

std::vector<TensorSpec> StateTable::Specs() const {
  std::vector<TensorSpec> specs;
  for (const TensorSlot* slot : Stored()) specs.push_back(slot->spec);
  return specs;
}

std::vector<TensorSlot*> StateTable::Stored() const {
  std::vector<TensorSlot*> stored;
  for (const auto& slot : slots_) {
    if (slot->kind != TensorKind::kDerived) stored.push_back(slot.get());
  }
  return stored;
}

bool StateTable::HasShards() const {
  return std::ranges::any_of(slots_,
                             [](const auto& slot) { return slot->kind == TensorKind::kSharded; });
}

std::int64_t StateTable::GradientElements() const {
  std::int64_t elements = 0;
  for (const auto& slot : slots_) {
    if (slot->kind == TensorKind::kSharded || slot->spec.dtype != DType::kFloat32) continue;
    elements += static_cast<std::int64_t>(slot->memory.size() / sizeof(float));
  }
  return elements;
}

Status StateTable::BeginCut(Generation generation, Rank rank, std::int32_t world_size,
                            bool same_cut) {
  DropCut();
  for (const auto& slot : slots_) {
    if (slot->kind != TensorKind::kSharded) continue;
    slot->next_boxes = PartOf(slot->spec, rank, world_size);
    slot->keeps = same_cut;
    if (same_cut) continue;
    std::int64_t bytes = 0;
    for (const Box& box : slot->next_boxes) bytes += box.count() * SizeOf(slot->spec.dtype);
    Result<AlignedBytes> next = Allocate(*slot, static_cast<std::size_t>(bytes));
    if (!next.ok()) {
      DropCut();
      return next.status();
    }
    slot->next = std::move(*next);
  }
  cutting_ = generation;
  return {};
}

Result<AlignedBytes> StateTable::Allocate(const TensorSlot& slot, std::size_t bytes) const {
  if (DeviceState* device = DeviceOf(slot); device != nullptr) {
    Result<DeviceMemory> memory = device->device().Allocate(bytes);
    if (memory.ok()) return AlignedBytes(std::move(*memory));
    return Status(memory.status().code(),
                  fmt::format("tensor '{}': {}", slot.spec.name, memory.status().message()));
  }
  try {
    return AlignedBytes(bytes);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted(
        fmt::format("no memory for {} bytes of tensor '{}'", bytes, slot.spec.name));
  }
}

void StateTable::AdoptCut(Generation generation) {
  if (cutting_ != generation) return;
  cutting_.reset();
  for (const auto& slot : slots_) {
    if (slot->kind != TensorKind::kSharded) continue;
    slot->boxes = std::move(slot->next_boxes);
    if (!slot->keeps) slot->held = std::move(slot->next);
    slot->next = AlignedBytes();
  }
}

void StateTable::DropCut() {
  cutting_.reset();
  for (const auto& slot : slots_) slot->next = AlignedBytes();
}

void StateTable::UseDevice(std::unique_ptr<DeviceState> device) {
  if (sealed_ || device_ != nullptr) {
    return Fail(FailedPrecondition(
        "UseDevice() is called once, before the first tensor on it and before Worker::Join()"));
  }
  device_ = std::move(device);
}

checkpoint::BufferMemory StateTable::SnapshotMemory() const {
  for (const TensorSlot* slot : Stored()) {
    if (DeviceOf(*slot) != nullptr) return device_->PinnedMemory();
  }
  return nullptr;
}

Result<std::uint64_t> StateTable::Digest() const {
  if (device_ != nullptr) MUSTER_RETURN_IF_ERROR(device_->Settle());
  std::vector<std::uint64_t> digests;
  for (const auto& slot : slots_) {
    if (slot->kind == TensorKind::kSharded) continue;
    const Result<HostView> view = HostView::Of(DeviceOf(*slot), slot->memory);
    if (!view.ok()) return view.status();
    MUSTER_RETURN_IF_ERROR(view->Fetch());
    digests.push_back(checkpoint::DigestOf(view->span()));
  }
  return checkpoint::DigestOf(std::as_bytes(std::span(digests)));
}

}  // namespace muster::worker
