// The reproducible sum of one rank's leaves on a device: what PartialSums (reduction_tree.h) is on
// the host, bit for bit. A leaf can come in parts, as a backward pass makes them, so that what has
// come of the last leaf can be sent before the rest is there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "protocol/box.h"
#include "protocol/status.h"
#include "worker/collective/device.h"
#include "worker/collective/device_math.h"
#include "worker/collective/leaf_stack.h"

namespace muster {

// T is float or double. Threads: confined to one.
// All adding is put on streams and runs in their order: use one stream, or let each follow the
// other with fences; the same for reading values(), and for adding after Clear().
template <class T>
class DevicePartialSums {
 public:
  // For the leaves in `range` of [0, leaves), vectors of `elements` values each.
  // REQUIRES: 0 <= range.lo <= range.hi <= leaves, elements >= 0.
  DevicePartialSums(std::shared_ptr<const DeviceMath> math, std::int64_t leaves, Range range,
                    std::int64_t elements);

  // Adds all values of the next leaf; they may change once `stream` is past it.
  // kFailedPrecondition when it is not `leaf`'s turn (leaves come in order, each once),
  // kInvalidArgument when the size is wrong, kResourceExhausted when the device has no memory for
  // another sum; nothing has been added then.
  [[nodiscard]] Status Add(DeviceStream& stream, std::int64_t leaf, DeviceSpan<const T> values);
  // The same for some values of the next leaf, which begin at element `offset`. The parts of a leaf
  // come in any order, and the leaf is done when they cover all elements. kInvalidArgument also
  // when an element came before.
  [[nodiscard]] Status AddPart(DeviceStream& stream, std::int64_t leaf, std::int64_t offset,
                               DeviceSpan<const T> part);
  // Starts over: for a step that comes again, whatever has been added. Keeps the memory.
  void Clear();

  // The leaf whose turn it is, unless complete.
  [[nodiscard]] std::int64_t next() const { return stack_.next(); }
  [[nodiscard]] bool complete() const { return stack_.complete(); }
  // Have these elements of all leaves been added? Then the sums below have their last values there.
  // REQUIRES: 0 <= range.lo <= range.hi <= elements()
  [[nodiscard]] bool complete(Range elements) const;
  [[nodiscard]] std::int64_t leaves() const { return stack_.leaves(); }
  [[nodiscard]] Range range() const { return stack_.range(); }
  [[nodiscard]] std::int64_t elements() const { return elements_; }

  // The sums that come of it in the end: one for each node of CoverByNodes.
  [[nodiscard]] std::size_t size() const { return cover_.size(); }
  // REQUIRES: index < size()
  [[nodiscard]] Range node(std::size_t index) const { return cover_[index]; }
  // REQUIRES: index < size(), complete(elements) for those that are looked at
  [[nodiscard]] DeviceSpan<const T> values(std::size_t index) const;

 private:
  // The part [offset, offset + count) of a buffer.
  [[nodiscard]] DeviceSpan<T> Part(std::size_t index, std::int64_t offset, std::size_t count) const;
  // Has any element of [offset, end) of the next leaf come? kInvalidArgument then.
  [[nodiscard]] Status CheckNew(std::int64_t leaf, std::int64_t offset, std::int64_t end) const;
  [[nodiscard]] Status PutFold(DeviceStream& stream, std::int64_t offset, DeviceSpan<const T> part);

  std::shared_ptr<const DeviceMath> math_;
  std::int64_t elements_;
  LeafStack stack_;
  std::vector<Range> cover_;
  // Those of the sums that are held, and then some to be used again.
  std::vector<DeviceMemory> buffers_;
  // What has come of the next leaf: the ends by the begins; neighbours are one.
  std::map<std::int64_t, std::int64_t> came_;
};

}  // namespace muster
