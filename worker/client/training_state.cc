#include "worker/client/training_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "protocol/check.h"
#include "protocol/limits.h"
#include "worker/client/state_table.h"

namespace muster {

namespace {

using worker::TensorKind;
using worker::TensorSlot;

// Checks what all kinds have in common. `memory` is the size of what the user gave for the whole
// tensor; negative: nothing.
Status CheckTensor(const TensorSpec& spec, std::int64_t memory) {
  if (spec.name.empty()) return InvalidArgument("a tensor needs a name");
  if (spec.name.size() > kMaxNameBytes) {
    return InvalidArgument(fmt::format("tensor name '{}…' is longer than {} bytes",
                                       spec.name.substr(0, 20), kMaxNameBytes));
  }
  if (spec.shape.size() > kMaxDimensions) {
    return InvalidArgument(fmt::format("tensor '{}' has {} dimensions; at most {} are possible",
                                       spec.name, spec.shape.size(), kMaxDimensions));
  }
  const Result<std::int64_t> count = CountElements(spec.shape);
  if (!count.ok()) {
    return InvalidArgument(fmt::format("tensor '{}': {}", spec.name, count.status().message()));
  }
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(*count, SizeOf(spec.dtype), &bytes)) {
    return InvalidArgument(fmt::format("tensor '{}' has more than 2^63 - 1 bytes", spec.name));
  }
  if (memory >= 0 && memory != bytes) {
    return InvalidArgument(
        fmt::format("tensor '{}' of {} elements {} needs {} bytes of memory, but {} were given",
                    spec.name, *count, DTypeName(spec.dtype), bytes, memory));
  }
  return {};
}

Status CheckCut(const TensorSpec& spec) {
  if (spec.cut_dimension == kFlat) return {};
  if (spec.cut_dimension >= 0 && spec.cut_dimension < static_cast<int>(spec.shape.size()))
    return {};
  return InvalidArgument(fmt::format("tensor '{}' cannot be cut along dimension {}: it has {}",
                                     spec.name, spec.cut_dimension, spec.shape.size()));
}

// Is the memory where the caller says it is? Storage of Muster's own is `null`.
Status CheckWhere(const worker::StateTable& table, const std::string& name, MemoryKind where,
                  const void* memory) {
  if (table.device() == nullptr) {
    if (where == MemoryKind::kHost) return {};
    return FailedPrecondition(fmt::format(
        "tensor '{}' lies on a device, and none is in use: call UseDevice() first", name));
  }
  if (memory == nullptr) return {};
  const Device& device = table.device()->device();
  if (device.IsDeviceMemory(memory) == (where == MemoryKind::kDevice)) return {};
  return InvalidArgument(
      where == MemoryKind::kHost
          ? fmt::format("tensor '{}' lies in device memory: give it as a DeviceSpan", name)
          : fmt::format("tensor '{}' is given as a DeviceSpan, but does not lie in device memory",
                        name));
}

}  // namespace

TrainingState::TrainingState() : table_(std::make_shared<worker::StateTable>()) {}
TrainingState::~TrainingState() = default;
TrainingState::TrainingState(const TrainingState&) = default;
TrainingState& TrainingState::operator=(const TrainingState&) = default;

Status TrainingState::status() const { return table_->status(); }

void TrainingState::UseDevice(std::shared_ptr<Device> device, DeviceStream& stream) {
  MUSTER_CHECK(device != nullptr, "a device is given");
  Result<std::unique_ptr<worker::DeviceState>> made =
      worker::DeviceState::Make(std::move(device), stream);
  if (!made.ok()) return table_->Fail(made.status());
  table_->UseDevice(std::move(*made));
}

void TrainingState::AddReplicated(const std::string& name, DType dtype, const Shape& shape,
                                  std::span<std::byte> memory) {
  AddReplicatedIn(MemoryKind::kHost, name, dtype, shape, memory);
}

void TrainingState::AddReplicated(const std::string& name, DType dtype, const Shape& shape,
                                  DeviceSpan<std::byte> memory) {
  AddReplicatedIn(MemoryKind::kDevice, name, dtype, shape, {memory.data(), memory.size()});
}

void TrainingState::AddReplicatedIn(MemoryKind where, const std::string& name, DType dtype,
                                    const Shape& shape, std::span<std::byte> memory) {
  auto slot = std::make_shared<TensorSlot>();
  slot->spec = {name, dtype, shape, -1};
  slot->where = where;
  slot->memory = memory;
  Status status = CheckTensor(slot->spec, static_cast<std::int64_t>(memory.size()));
  if (status.ok()) status = CheckWhere(*table_, name, where, memory.data());
  if (!status.ok()) return table_->Fail(std::move(status));
  table_->Add(std::move(slot));
}

ShardedTensor TrainingState::AddSharded(const std::string& name, DType dtype, const Shape& shape,
                                        Cut cut, Fill fill, MemoryKind where) {
  auto slot = std::make_shared<TensorSlot>();
  slot->kind = TensorKind::kSharded;
  slot->where = where;
  slot->spec = {name, dtype, shape, cut.dimension};
  if (cut.dimension != kFlat) slot->boxes = {Box{std::vector<Range>(shape.size())}};
  Result<std::vector<std::byte>> element = worker::EncodeElement(dtype, fill.value);
  Status status = CheckTensor(slot->spec, -1);
  if (status.ok()) status = CheckCut(slot->spec);
  if (status.ok()) status = element.status();
  if (status.ok()) status = CheckWhere(*table_, name, where, nullptr);
  if (!status.ok()) {
    table_->Fail(std::move(status));
    return {};
  }
  slot->fill = std::move(*element);
  table_->Add(slot);
  return ShardedTensor(std::move(slot));
}

ShardedTensor TrainingState::AddSharded(const std::string& name, DType dtype, const Shape& shape,
                                        Cut cut, std::span<const std::byte> initial,
                                        MemoryKind where) {
  auto slot = std::make_shared<TensorSlot>();
  slot->kind = TensorKind::kSharded;
  slot->where = where;
  slot->spec = {name, dtype, shape, cut.dimension};
  if (cut.dimension != kFlat) slot->boxes = {Box{std::vector<Range>(shape.size())}};
  slot->initial = initial;
  Status status = CheckTensor(slot->spec, static_cast<std::int64_t>(initial.size()));
  if (status.ok()) status = CheckCut(slot->spec);
  if (status.ok()) status = CheckWhere(*table_, name, where, nullptr);
  if (status.ok()) status = CheckWhere(*table_, name, MemoryKind::kHost, initial.data());
  if (!status.ok()) {
    table_->Fail(std::move(status));
    return {};
  }
  table_->Add(slot);
  return ShardedTensor(std::move(slot));
}

void TrainingState::AddAlias(const std::string& name, const std::string& of) {
  const auto& slots = table_->slots();
  const auto target = std::ranges::find_if(slots, [&](const auto& slot) {
    return slot->spec.name == of && slot->kind != TensorKind::kDerived &&
           slot->kind != TensorKind::kAlias;
  });
  if (target == slots.end()) {
    return table_->Fail(InvalidArgument(
        fmt::format("tensor '{}' is another name of '{}', which was not added before", name, of)));
  }
  auto slot = std::make_shared<TensorSlot>();
  slot->kind = TensorKind::kAlias;
  slot->spec = (*target)->spec;
  slot->spec.name = name;
  slot->spec.alias_of = of;
  Status status = CheckTensor(slot->spec, -1);
  if (!status.ok()) return table_->Fail(std::move(status));
  table_->Add(std::move(slot));
}

void TrainingState::AddDerived(const std::string& name, const ShardedTensor& from,
                               std::span<std::byte> memory) {
  AddDerivedIn(MemoryKind::kHost, name, from, memory);
}

void TrainingState::AddDerived(const std::string& name, const ShardedTensor& from,
                               DeviceSpan<std::byte> memory) {
  AddDerivedIn(MemoryKind::kDevice, name, from, {memory.data(), memory.size()});
}

void TrainingState::AddDerivedIn(MemoryKind where, const std::string& name,
                                 const ShardedTensor& from, std::span<std::byte> memory) {
  if (!from.slot_) {
    return table_->Fail(InvalidArgument(fmt::format(
        "tensor '{}' is derived from one that was not registered: see the first error", name)));
  }
  auto slot = std::make_shared<TensorSlot>();
  slot->kind = TensorKind::kDerived;
  slot->spec = from.slot_->spec;
  slot->spec.name = name;
  slot->spec.cut_dimension = -1;
  slot->where = where;
  slot->memory = memory;
  slot->from = from.slot_;
  if (from.slot_->spec.cut_dimension != 0 && from.slot_->spec.cut_dimension != kFlat) {
    return table_->Fail(
        Unimplemented(fmt::format("tensor '{}' is derived from '{}', which is cut along dimension "
                                  "{}: only what is cut flat or along dimension 0 can be gathered",
                                  name, from.name(), from.slot_->spec.cut_dimension)));
  }
  Status status = CheckTensor(slot->spec, static_cast<std::int64_t>(memory.size()));
  if (status.ok()) status = CheckWhere(*table_, name, where, memory.data());
  if (!status.ok()) return table_->Fail(std::move(status));
  table_->Add(std::move(slot));
}

const std::string& ShardedTensor::name() const {
  static const std::string kNone;
  return slot_ ? slot_->spec.name : kNone;
}

Box ShardedTensor::box() const {
  if (!slot_) return Box{std::vector<Range>(1)};
  MUSTER_CHECK(slot_->spec.cut_dimension != kFlat, "boxes() and elements() are for flat cuts");
  return slot_->boxes.front();
}

std::vector<Box> ShardedTensor::boxes() const { return slot_ ? slot_->boxes : std::vector<Box>(); }

Range ShardedTensor::elements() const {
  if (!slot_ || slot_->boxes.empty()) return {};
  std::int64_t first = 0;
  for (std::size_t d = 0; d < slot_->spec.shape.size(); ++d) {
    first = first * slot_->spec.shape[d] + slot_->boxes.front().ranges[d].lo;
  }
  return {first, first + std::ssize(slot_->held.span()) / SizeOf(slot_->spec.dtype)};
}

std::span<std::byte> ShardedTensor::bytes() const {
  if (!slot_ || slot_->where != MemoryKind::kHost) return {};
  return slot_->held.span();
}

DeviceSpan<std::byte> ShardedTensor::device_bytes() const {
  if (!slot_ || slot_->where != MemoryKind::kDevice) return {};
  return {slot_->held.span().data(), slot_->held.span().size()};
}

bool ShardedTensor::Holds(DType dtype) const { return slot_ && slot_->spec.dtype == dtype; }

}  // namespace muster
