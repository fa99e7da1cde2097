// The state of a training run: which tensors there are, and whether each rank holds all of one or a
// part. Muster saves it, restores it and moves it between workers; the user's loop reads and writes
// it between `Commit()` and the next `BeginStep()`.
//
//   TrainingState state;
//   state.AddReplicated("model", std::span<float>(parameters));
//   ShardedTensor m = state.AddSharded("adam.m", DType::kFloat32, {n}, Cut::Even(0), Fill(0));
//
// Every worker of a job registers the same tensors in the same order; Join() refuses a difference.
// Tensors may lie in the memory of a GPU. Muster is told the stream on which the loop changes them,
// and nothing of what it reads or writes has to be waited for by the loop:
//
//   state.UseDevice(device, stream);  // OpenDevice(); MakeStream(), or Adopt() of a cudaStream_t
//   state.AddReplicated("model", DeviceSpan<float>(parameters, n));
//   state.AddSharded("adam.m", DType::kFloat32, {n}, Cut::Even(0), Fill(0), MemoryKind::kDevice);
//
// Mistakes (a name used twice, a negative extent, …) do not throw: the first one is kept in
// status(), and Worker::Join() returns it.
// Threads: one, the training thread. Copies share the same tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "protocol/box.h"
#include "protocol/status.h"
#include "worker/collective/device.h"

namespace muster {

namespace worker {
class StateTable;
struct TensorSlot;
}  // namespace worker

// The dtype of a C++ element type. bf16, f16 and f8 have none: name their DType and give bytes.
template <class T>
[[nodiscard]] consteval DType DTypeOf() {
  static_assert(std::is_arithmetic_v<T>, "give the DType and bytes for any other element type");
  if constexpr (std::is_same_v<T, bool>) {
    return DType::kBool;
  } else if constexpr (std::is_floating_point_v<T>) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "float or double");
    return sizeof(T) == 4 ? DType::kFloat32 : DType::kFloat64;
  } else if constexpr (std::is_signed_v<T>) {
    return sizeof(T) == 1   ? DType::kI8
           : sizeof(T) == 2 ? DType::kI16
           : sizeof(T) == 4 ? DType::kI32
                            : DType::kI64;
  } else {
    return sizeof(T) == 1   ? DType::kU8
           : sizeof(T) == 2 ? DType::kU16
           : sizeof(T) == 4 ? DType::kU32
                            : DType::kU64;
  }
}

// How a sharded tensor is cut over the ranks.
struct Cut {
  // Evenly along `dimension`: the first (extent mod world size) ranks hold one more.
  [[nodiscard]] static Cut Even(int dimension) { return Cut{dimension}; }
  // Evenly by its elements in row-major order, whatever its shape, as ZeRO and FSDP do it: the
  // first (elements mod world size) ranks hold one more. There is no padding, neither here nor
  // stored.
  [[nodiscard]] static Cut Flat() { return Cut{kFlat}; }
  int dimension = 0;  // or kFlat
};

// What a sharded tensor holds at step 0, in every element; converted to its dtype.
struct Fill {
  explicit Fill(double initial) : value(initial) {}
  double value;
};

// Where the bytes of a tensor lie: in the host's memory, or in that of the device in use.
enum class MemoryKind { kHost, kDevice };

// A tensor of which each rank holds a part. Muster owns the storage and cuts it anew in
// BeginStep() whenever the membership changes, so ask for data() and box() in every step; what they
// returned earlier is invalid after BeginStep(). Cheap to copy.
class ShardedTensor {
 public:
  // Of a registration that failed: an empty box, no data.
  ShardedTensor() = default;

  [[nodiscard]] const std::string& name() const;
  // This rank's part, in the coordinates of the whole tensor. Empty before the first BeginStep().
  // REQUIRES: cut along a dimension.
  [[nodiscard]] Box box() const;
  // The same for any cut, as boxes whose elements lie one behind the other in bytes().
  [[nodiscard]] std::vector<Box> boxes() const;
  // The same of a tensor that is cut flat: which of its elements in row-major order.
  [[nodiscard]] Range elements() const;
  // The part's elements, each box row-major. Empty when they lie on a device.
  [[nodiscard]] std::span<std::byte> bytes() const;
  // The same as elements of type T; empty when T is not the tensor's dtype.
  template <class T>
  [[nodiscard]] std::span<T> data() const {
    if (!Holds(DTypeOf<T>())) return {};
    const std::span<std::byte> raw = bytes();
    return {reinterpret_cast<T*>(raw.data()), raw.size() / sizeof(T)};
  }
  // The same of a tensor that lies on a device; empty when it lies on the host. Work on them goes
  // on the stream that was given to UseDevice().
  [[nodiscard]] DeviceSpan<std::byte> device_bytes() const;
  template <class T>
  [[nodiscard]] DeviceSpan<T> device_data() const {
    if (!Holds(DTypeOf<T>())) return {};
    const DeviceSpan<std::byte> raw = device_bytes();
    return {reinterpret_cast<T*>(raw.data()), raw.size() / sizeof(T)};
  }

 private:
  friend class TrainingState;
  explicit ShardedTensor(std::shared_ptr<worker::TensorSlot> slot) : slot_(std::move(slot)) {}
  [[nodiscard]] bool Holds(DType dtype) const;
  std::shared_ptr<worker::TensorSlot> slot_;
};

class TrainingState {
 public:
  TrainingState();
  ~TrainingState();
  TrainingState(const TrainingState&);
  TrainingState& operator=(const TrainingState&);

  // Tensors may lie on `device` from now on; called once, before the first of them is added.
  //
  // `stream` is the one on which the loop changes the state, and reads what Muster brings there.
  // Work on other streams that touches the state must be ordered before and after it by the loop.
  // Whatever was put on it before BeginStep() is seen by Muster. A snapshot is taken behind it
  // while the training thread goes on, and what is put on the stream after BeginStep() returned
  // waits there until the snapshot has been copied, so that it may overwrite the state at once.
  // What BeginStep() brings (a restored state, derived tensors) is there when it returns.
  // `stream` must outlive the worker, and is used in BeginStep() alone. WorkerOptions::device is
  // the same device, or none: gradients then lie in the host's memory. While a generation forms
  // whose cut differs, a sharded tensor on the device needs room there for the old part and the new
  // one.
  void UseDevice(std::shared_ptr<Device> device, DeviceStream& stream);

  // A tensor that every rank holds whole and updates in the same way. The memory stays the user's
  // and must outlive the worker. At step 0 the values of rank 0 count. Returns `elements`, so that
  // it can be kept under another name.
  template <class T>
  std::span<T> AddReplicated(const std::string& name, std::span<T> elements) {
    AddReplicated(name, DTypeOf<T>(), {static_cast<std::int64_t>(elements.size())},
                  std::as_writable_bytes(elements));
    return elements;
  }
  template <class T>
  std::span<T> AddReplicated(const std::string& name, std::vector<T>& elements) {
    return AddReplicated(name, std::span<T>(elements));
  }
  // The same for any dtype and shape; `memory` holds CountElements(shape) * SizeOf(dtype) bytes.
  void AddReplicated(const std::string& name, DType dtype, const Shape& shape,
                     std::span<std::byte> memory);
  // The same in the memory of the device in use; it stays the user's too.
  template <class T>
  DeviceSpan<T> AddReplicated(const std::string& name, DeviceSpan<T> elements) {
    AddReplicated(name, DTypeOf<T>(), {static_cast<std::int64_t>(elements.size())},
                  AsBytes(elements));
    return elements;
  }
  void AddReplicated(const std::string& name, DType dtype, const Shape& shape,
                     DeviceSpan<std::byte> memory);

  // A tensor of which each rank holds a part; see ShardedTensor. Needs a checkpoint directory
  // (WorkerOptions), because a part dies with the worker that held it. `where` says whose memory
  // Muster takes for it.
  ShardedTensor AddSharded(const std::string& name, DType dtype, const Shape& shape, Cut cut,
                           Fill fill, MemoryKind where = MemoryKind::kHost);
  // The same with initial values: `initial`, in the host's memory, holds the whole tensor, and each
  // rank takes its part of it at step 0. It is read in BeginStep() alone; the values of each worker
  // must be the same. The memory stays the user's and must outlive the worker.
  ShardedTensor AddSharded(const std::string& name, DType dtype, const Shape& shape, Cut cut,
                           std::span<const std::byte> initial,
                           MemoryKind where = MemoryKind::kHost);

  // Another name of a tensor that was added before (tied weights): it is stored once, and whoever
  // reads the checkpoint finds it under both names.
  void AddAlias(const std::string& name, const std::string& of);

  // A full copy, in the user's memory, of a tensor that is cut along dimension 0 or flat: never
  // saved, but gathered from all ranks by BeginStep(), before it returns. What a forward pass needs
  // of weights whose owners update them. `memory` may be the very `initial` of the tensor.
  void AddDerived(const std::string& name, const ShardedTensor& from, std::span<std::byte> memory);
  template <class T>
  std::span<T> AddDerived(const std::string& name, const ShardedTensor& from,
                          std::span<T> elements) {
    AddDerived(name, from, std::as_writable_bytes(elements));
    return elements;
  }
  // The same in the memory of the device in use, wherever `from` lies.
  void AddDerived(const std::string& name, const ShardedTensor& from, DeviceSpan<std::byte> memory);
  template <class T>
  DeviceSpan<T> AddDerived(const std::string& name, const ShardedTensor& from,
                           DeviceSpan<T> elements) {
    AddDerived(name, from, AsBytes(elements));
    return elements;
  }

  // The first mistake made in registering, or ok.
  [[nodiscard]] Status status() const;

 private:
  friend class Worker;
  template <class T>
  [[nodiscard]] static DeviceSpan<std::byte> AsBytes(DeviceSpan<T> elements) {
    return {reinterpret_cast<std::byte*>(elements.data()), elements.size_bytes()};
  }
  void AddReplicatedIn(MemoryKind where, const std::string& name, DType dtype, const Shape& shape,
                       std::span<std::byte> memory);
  void AddDerivedIn(MemoryKind where, const std::string& name, const ShardedTensor& from,
                    std::span<std::byte> memory);
  std::shared_ptr<worker::StateTable> table_;
};

}  // namespace muster
