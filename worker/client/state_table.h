// What TrainingState holds: the registered tensors and the storage of the sharded ones.
//
// A sharded tensor has two cuts while a generation forms: the one it is held in, which stays the
// source for everybody until the generation has started, and the one that is being filled.
//
// Threads: the training thread alone, once sealed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "protocol/box.h"
#include "protocol/ids.h"
#include "protocol/status.h"
#include "worker/client/aligned_bytes.h"
#include "worker/client/device_state.h"
#include "worker/client/training_state.h"

namespace muster::worker {

enum class TensorKind { kReplicated, kSharded, kDerived, kAlias };

// A box of a rank's part of a tensor, and its bytes, row-major.
struct BoxBytes {
  Box box;
  std::span<std::byte> bytes;
};

struct TensorSlot {
  TensorKind kind = TensorKind::kReplicated;
  TensorSpec spec;  // of a derived tensor: that of its source, not cut; of an alias: of the other
  // Where `memory`, `held` and `next` lie. The host must not follow them on a device: HostView.
  MemoryKind where = MemoryKind::kHost;
  std::span<std::byte> memory;         // the user's; of replicated and derived tensors
  std::vector<std::byte> fill;         // sharded: one element
  std::span<const std::byte> initial;  // sharded: the whole tensor; empty: `fill` counts
  std::shared_ptr<TensorSlot> from;    // derived

  // Sharded: the held cut, as boxes whose bytes lie one behind the other in `held`. One, which may
  // be empty, when it is cut along a dimension.
  std::vector<Box> boxes;
  AlignedBytes held;
  std::vector<Box> next_boxes;  // the cut of the generation being formed
  AlignedBytes next;
  bool keeps = false;  // `next` is `held` itself: the cut does not change

  // Where the cut being formed is to be written, or `held` when it does not change.
  [[nodiscard]] std::span<std::byte> Target() const { return keeps ? held.span() : next.span(); }
  // The boxes of the two cuts with their bytes.
  [[nodiscard]] std::vector<BoxBytes> Held() const { return Split(boxes, held.span()); }
  [[nodiscard]] std::vector<BoxBytes> Next() const { return Split(next_boxes, next.span()); }
  // Boxes whose bytes lie one behind the other in `bytes`, each with its own.
  [[nodiscard]] std::vector<BoxBytes> Split(const std::vector<Box>& of,
                                            std::span<std::byte> bytes) const;
};

class StateTable {
 public:
  void Add(std::shared_ptr<TensorSlot> slot);
  void Fail(Status status);
  [[nodiscard]] const Status& status() const { return status_; }
  // Tensors may lie on this device from now on; see TrainingState::UseDevice.
  void UseDevice(std::unique_ptr<DeviceState> device);
  // Null: no device is used.
  [[nodiscard]] DeviceState* device() const { return device_.get(); }
  // The device when the tensor lies on it; null otherwise.
  [[nodiscard]] DeviceState* DeviceOf(const TensorSlot& slot) const {
    return slot.where == MemoryKind::kDevice ? device_.get() : nullptr;
  }
  // What snapshots of this state need: pinned memory when a stored tensor lies on a device.
  [[nodiscard]] checkpoint::BufferMemory SnapshotMemory() const;
  // Nothing can be added any more.
  void Seal() { sealed_ = true; }

  // All tensors in the order of registration.
  [[nodiscard]] const std::vector<std::shared_ptr<TensorSlot>>& slots() const { return slots_; }
  // What the job's spec lists, in its order: all but derived ones. Aliases have no bytes.
  [[nodiscard]] std::vector<TensorSpec> Specs() const;
  [[nodiscard]] std::vector<TensorSlot*> Stored() const;
  [[nodiscard]] bool HasShards() const;
  // float32 elements of replicated and derived tensors.
  [[nodiscard]] std::int64_t GradientElements() const;

  // Prepares the cut of `generation` for `rank` of `world_size`, storage not initialized; with
  // `same_cut` the held storage goes on. kResourceExhausted when there is no memory.
  Status BeginCut(Generation generation, Rank rank, std::int32_t world_size, bool same_cut);
  // The cut of `generation` is complete: it becomes the held one. Without effect for any other.
  void AdoptCut(Generation generation);
  // Forgets a cut that did not become one.
  void DropCut();

  // The registered memory does not hold the initial values any more: training has begun.
  void MarkTrained() { trained_ = true; }
  [[nodiscard]] bool trained() const { return trained_; }

  // XXH3 over replicated and derived tensors, in the order of registration; the same wherever they
  // lie. Errors are those of the device; without one there are none.
  [[nodiscard]] Result<std::uint64_t> Digest() const;

 private:
  [[nodiscard]] Result<AlignedBytes> Allocate(const TensorSlot& slot, std::size_t bytes) const;

  std::unique_ptr<DeviceState> device_;
  std::vector<std::shared_ptr<TensorSlot>> slots_;
  std::optional<Generation> cutting_;
  Status status_;
  bool sealed_ = false;
  bool trained_ = false;
};

// One element of `dtype` with the value nearest to `value`; an error when it does not fit.
[[nodiscard]] Result<std::vector<std::byte>> EncodeElement(DType dtype, double value);

}  // namespace muster::worker
