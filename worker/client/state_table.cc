#include "worker/client/state_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

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
    try {
      slot->next = AlignedBytes(static_cast<std::size_t>(bytes));
    } catch (const std::bad_alloc&) {
      DropCut();
      return ResourceExhausted(
          fmt::format("no memory for {} bytes of tensor '{}'", bytes, slot->spec.name));
    }
  }
  cutting_ = generation;
  return {};
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

std::uint64_t StateTable::Digest() const {
  std::vector<std::uint64_t> digests;
  for (const auto& slot : slots_) {
    if (slot->kind == TensorKind::kSharded) continue;
    digests.push_back(checkpoint::DigestOf(slot->memory));
  }
  return checkpoint::DigestOf(std::as_bytes(std::span(digests)));
}

}  // namespace muster::worker
