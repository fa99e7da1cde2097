#include "worker/client/snapshot.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

#include "checkpoint/layout.h"
#include "checkpoint/reshard.h"
#include "protocol/check.h"

namespace muster::worker {
namespace {

// What one thread copies before it looks for more.
constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20U;

// A part of a tensor on its way from the training state into the snapshot.
struct Copy {
  BoxBytes from;
  const checkpoint::StoredTensor* stored = nullptr;
  Box part;
  bool on_device = false;
};

// The bytes of the state that hold the stored part.
BoxBytes SourceOf(const TensorSlot& slot, const Box& stored) {
  if (slot.kind != TensorKind::kSharded) return {Box::Whole(slot.spec.shape), slot.memory};
  for (const BoxBytes& held : slot.Held()) {
    if (held.box == stored) return held;
  }
  MUSTER_CHECK(false, "a rank stores the boxes of a sharded tensor that it holds");
}

// Cuts the stored box along its first dimension that can be cut, into parts of about kPieceBytes.
void AppendCopies(const TensorSlot& slot, const checkpoint::StoredTensor& stored,
                  std::vector<Copy>* copies) {
  const BoxBytes from = SourceOf(slot, stored.box);
  // One piece of work for the device, which divides it itself.
  if (slot.where == MemoryKind::kDevice) {
    copies->push_back({from, &stored, stored.box, /*on_device=*/true});
    return;
  }
  const auto& ranges = stored.box.ranges;
  const auto cut = std::find_if(ranges.begin(), ranges.end(),
                                [](const Range& range) { return range.size() > 1; });
  if (cut == ranges.end() || stored.end - stored.begin <= kPieceBytes) {
    copies->push_back({from, &stored, stored.box, /*on_device=*/false});
    return;
  }
  const std::int64_t slice_bytes = (stored.end - stored.begin) / cut->size();
  const std::int64_t slices = std::max<std::int64_t>(1, kPieceBytes / slice_bytes);
  for (std::int64_t lo = cut->lo; lo < cut->hi; lo += slices) {
    Copy copy{from, &stored, stored.box, /*on_device=*/false};
    copy.part.ranges[static_cast<std::size_t>(cut - ranges.begin())] = {
        lo, std::min(cut->hi, lo + slices)};
    copies->push_back(std::move(copy));
  }
}

// Groups of about kPieceBytes: where each ends. Many small tensors are one piece of work.
std::vector<std::size_t> GroupEnds(const std::vector<Copy>& copies) {
  std::vector<std::size_t> ends;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    bytes += copies[i].part.count() * SizeOf(copies[i].stored->spec.dtype);
    if (bytes < kPieceBytes && i + 1 < copies.size()) continue;
    ends.push_back(i + 1);
    bytes = 0;
  }
  return ends;
}

void Perform(const Copy& copy, checkpoint::AlignedBuffer* data) {
  const auto begin = static_cast<std::size_t>(copy.stored->begin);
  const auto count = static_cast<std::size_t>(copy.stored->end) - begin;
  checkpoint::CopyBox(copy.from.box, copy.from.bytes, copy.stored->box,
                      data->span().subspan(begin, count), copy.part,
                      SizeOf(copy.stored->spec.dtype));
}

// Puts the copies of what lies on the device on its way, and takes them off the list. Those to
// ordinary memory have been made when this returns.
Result<std::shared_ptr<Fence>> CopyFromDevice(DeviceState& device, std::vector<Copy>* copies,
                                              checkpoint::AlignedBuffer* data) {
  device.BeginCopies();
  const auto on_host = std::stable_partition(copies->begin(), copies->end(),
                                             [](const Copy& copy) { return copy.on_device; });
  for (auto copy = copies->begin(); copy != on_host; ++copy) {
    const auto element = static_cast<std::size_t>(SizeOf(copy->stored->spec.dtype));
    std::byte* const target = data->span().data() + copy->stored->begin;
    for (checkpoint::RunCursor cursor(checkpoint::RowMajor(copy->from.box),
                                      checkpoint::RowMajor(copy->stored->box), copy->part);
         cursor.valid(); cursor.Advance()) {
      const checkpoint::Run& run = cursor.run();
      MUSTER_CHECK(run.count == 1 || (run.from_step == 1 && run.to_step == 1),
                   "what a rank stores is made of whole rows");
      const auto bytes = static_cast<std::size_t>(run.count) * element;
      std::byte* const to = target + static_cast<std::size_t>(run.to) * element;
      const std::span<const std::byte> from =
          copy->from.bytes.subspan(static_cast<std::size_t>(run.from) * element, bytes);
      if (data->has_memory()) {
        device.Copy(to, from.data(), bytes);
      } else {
        MUSTER_RETURN_IF_ERROR(device.Fetch({to, bytes}, from));
      }
    }
  }
  copies->erase(copies->begin(), on_host);
  return device.EndCopies();
}

}  // namespace

Status MakeRoom(std::int64_t bytes, const checkpoint::BufferMemory& pinned,
                checkpoint::AlignedBuffer* data) {
  const bool had_ordinary = data->capacity() > 0 && !data->has_memory();
  if (pinned == nullptr || had_ordinary) return data->Resize(bytes);
  if (!data->has_memory()) *data = checkpoint::AlignedBuffer(pinned);
  const Status got = data->Resize(bytes);
  if (got.code() != Code::kResourceExhausted) return got;
  *data = checkpoint::AlignedBuffer();
  MUSTER_RETURN_IF_ERROR(data->Resize(bytes));
  std::fprintf(stderr,
               "muster: checkpoints go through ordinary memory, and stop training for longer: %s\n",
               got.message().c_str());
  return {};
}

Status TakeSnapshot(const StateTable& table, const checkpoint::ShardPlan& plan,
                    checkpoint::IoPool& pool, checkpoint::AlignedBuffer* data,
                    std::shared_ptr<Fence>* ready) {
  const Result<std::vector<checkpoint::StoredTensor>> layout =
      checkpoint::LayoutOf(plan.tensors, plan.rank, plan.world_size, plan.listed);
  if (!layout.ok()) return layout.status();
  const checkpoint::BufferMemory pinned = table.SnapshotMemory();
  const bool on_device = pinned != nullptr;
  MUSTER_RETURN_IF_ERROR(MakeRoom(layout->empty() ? 0 : layout->back().end, pinned, data));
  const std::vector<TensorSlot*> slots = table.Stored();
  MUSTER_CHECK(slots.size() == plan.tensors.size(), "the plan's tensors are those of the table");
  std::vector<Copy> copies;
  for (const checkpoint::StoredTensor& stored : *layout) {
    if (stored.begin < stored.end) AppendCopies(*slots[stored.index], stored, &copies);
  }
  std::shared_ptr<Fence> fence;
  if (on_device) {
    Result<std::shared_ptr<Fence>> put = CopyFromDevice(*table.device(), &copies, data);
    if (!put.ok()) return put.status();
    fence = std::move(*put);
  }
  const std::vector<std::size_t> ends = GroupEnds(copies);
  MUSTER_RETURN_IF_ERROR(pool.ForEach(std::ssize(ends), [&](std::int64_t group) {
    const auto index = static_cast<std::size_t>(group);
    for (std::size_t i = index == 0 ? 0 : ends[index - 1]; i < ends[index]; ++i) {
      Perform(copies[i], data);
    }
    return Status();
  }));
  if (ready != nullptr) {
    *ready = std::move(fence);
  } else if (fence != nullptr) {
    return table.device()->Wait();
  }
  return {};
}

}  // namespace muster::worker
