#include "worker/client/state_transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "checkpoint/reshard.h"
#include "protocol/check.h"
#include "worker/client/state_load.h"
#include "worker/core/transfer_plan.h"

namespace muster::worker {

namespace {

using Incoming = std::vector<std::span<std::byte>>;
using Outgoing = std::vector<std::span<const std::byte>>;

std::size_t BytesOf(const TensorSpec& spec, const std::vector<Box>& boxes) {
  std::int64_t bytes = 0;
  for (const Box& box : boxes) bytes += box.count() * SizeOf(spec.dtype);
  return static_cast<std::size_t>(bytes);
}

// The one of a rank's boxes that `part` lies in.
const BoxBytes& HolderOf(const std::vector<BoxBytes>& held, const Box& part) {
  const auto holder = std::ranges::find_if(
      held, [&](const BoxBytes& one) { return Intersect(one.box, part) == part; });
  MUSTER_CHECK(holder != held.end(), "a transfer is of boxes that both sides have");
  return *holder;
}

// Where the bytes of a transfer lie among the rank's own, when they lie there in one piece.
std::optional<std::span<std::byte>> OnePiece(const std::vector<BoxBytes>& held,
                                             const std::vector<Box>& boxes, std::size_t element) {
  if (boxes.size() != 1) return std::nullopt;
  const BoxBytes& holder = HolderOf(held, boxes[0]);
  const checkpoint::RunCursor cursor(checkpoint::RowMajor(holder.box),
                                     checkpoint::RowMajor(boxes[0]), boxes[0]);
  const checkpoint::Run& run = cursor.run();
  if (!cursor.valid() || run.count != boxes[0].count() || run.from_step != 1) return std::nullopt;
  return holder.bytes.subspan(static_cast<std::size_t>(run.from) * element,
                              static_cast<std::size_t>(run.count) * element);
}

// Copies between the rank's own boxes and the bytes of a transfer, box after box.
void Pack(const std::vector<BoxBytes>& held, const std::vector<Box>& boxes, std::int64_t element,
          std::span<std::byte> packed, bool unpack) {
  for (const Box& box : boxes) {
    const BoxBytes& holder = HolderOf(held, box);
    const auto bytes = packed.first(static_cast<std::size_t>(box.count() * element));
    if (unpack) {
      checkpoint::CopyBox(box, bytes, holder.box, holder.bytes, box, element);
    } else {
      checkpoint::CopyBox(holder.box, holder.bytes, box, bytes, box, element);
    }
    packed = packed.subspan(bytes.size());
  }
}

// Does every member keep its rank in a world of the same size? Then no shard moves.
bool SameCut(const GenerationRecord& record) {
  if (record.restore.source != RestoreSource::kLive) return false;
  return record.restore.base_world_size == record.world_size() &&
         std::ranges::all_of(record.members, [](const MemberEntry& member) {
           return member.previous_rank == member.rank;
         });
}

// The bytes of a tensor as the communicator can take them.
Result<HostView> ViewFor(const StateTable& table, const TensorSlot& slot,
                         std::span<std::byte> bytes, const Communicator& communicator) {
  return HostView::Of(communicator.takes_device_memory() ? nullptr : table.DeviceOf(slot), bytes);
}

// The same of a cut. Bytes on a device that have to be packed are copied to the host in any case:
// all at once, for most of them move.
Result<HostView> ViewOfCut(const StateTable& table, const TensorSlot& slot,
                           const std::vector<BoxBytes>& cut, std::span<std::byte> bytes,
                           const std::vector<Transfer>& transfers,
                           const Communicator& communicator) {
  DeviceState* device = table.DeviceOf(slot);
  const auto element = static_cast<std::size_t>(SizeOf(slot.spec.dtype));
  const bool straight =
      communicator.takes_device_memory() && std::ranges::all_of(transfers, [&](const Transfer& t) {
        return OnePiece(cut, t.boxes, element).has_value();
      });
  return HostView::Of(straight ? nullptr : device, bytes);
}

Status MoveShard(const StateTable& table, TensorSlot& slot, Communicator& communicator,
                 const GenerationRecord& record, std::int64_t* bytes_received) {
  const Rank rank = communicator.rank();
  Result<TransferPlan> plan = PlanTransfers(slot.spec, record, rank);
  if (!plan.ok()) return plan.status();
  const auto world_size = static_cast<std::size_t>(communicator.world_size());
  const std::int64_t element = SizeOf(slot.spec.dtype);
  const Result<HostView> held_view =
      ViewOfCut(table, slot, slot.Held(), slot.held.span(), plan->outgoing, communicator);
  if (!held_view.ok()) return held_view.status();
  const Result<HostView> next_view =
      ViewOfCut(table, slot, slot.Next(), slot.next.span(), plan->incoming, communicator);
  if (!next_view.ok()) return next_view.status();
  if (!plan->outgoing.empty()) MUSTER_RETURN_IF_ERROR(held_view->Fetch());
  const std::vector<BoxBytes> held = slot.Split(slot.boxes, held_view->span());
  const std::vector<BoxBytes> next = slot.Split(slot.next_boxes, next_view->span());
  Outgoing outgoing(world_size);
  Incoming incoming(world_size);
  std::deque<AlignedBytes> packed;  // of those transfers that do not lie in one piece
  for (const Transfer& transfer : plan->outgoing) {
    auto bytes = OnePiece(held, transfer.boxes, static_cast<std::size_t>(element));
    if (!bytes) {
      bytes = packed.emplace_back(BytesOf(slot.spec, transfer.boxes)).span();
      Pack(held, transfer.boxes, element, *bytes, /*unpack=*/false);
    }
    outgoing[static_cast<std::size_t>(transfer.peer.value())] = *bytes;
  }
  std::vector<const Transfer*> scattered;
  for (const Transfer& transfer : plan->incoming) {
    const std::size_t size = BytesOf(slot.spec, transfer.boxes);
    if (transfer.peer != rank) *bytes_received += static_cast<std::int64_t>(size);
    auto bytes = OnePiece(next, transfer.boxes, static_cast<std::size_t>(element));
    if (!bytes) {
      bytes = packed.emplace_back(size).span();
      scattered.push_back(&transfer);
    }
    incoming[static_cast<std::size_t>(transfer.peer.value())] = *bytes;
  }
  MUSTER_RETURN_IF_ERROR(communicator.Exchange(outgoing, incoming));
  for (const Transfer* transfer : scattered) {
    Pack(next, transfer->boxes, element, incoming[static_cast<std::size_t>(transfer->peer.value())],
         /*unpack=*/true);
  }
  return next_view->Store();
}

// One holder gives a replicated tensor to those who do not have it; holders' memory is not touched.
Status SpreadReplica(const StateTable& table, TensorSlot& slot, Communicator& communicator,
                     const GenerationRecord& record, Rank root, std::int64_t* bytes) {
  const auto world_size = static_cast<std::size_t>(communicator.world_size());
  const bool gives = communicator.rank() == root;
  const bool takes = std::ranges::any_of(record.members, [&](const MemberEntry& member) {
    return member.rank == communicator.rank() && member.previous_rank.value() < 0;
  });
  const Result<HostView> view =
      ViewFor(table, slot, gives || takes ? slot.memory : std::span<std::byte>(), communicator);
  if (!view.ok()) return view.status();
  if (gives) MUSTER_RETURN_IF_ERROR(view->Fetch());
  Outgoing outgoing(world_size);
  Incoming incoming(world_size);
  for (const MemberEntry& member : record.members) {
    if (member.previous_rank.value() >= 0) continue;
    if (gives) outgoing[static_cast<std::size_t>(member.rank.value())] = view->span();
  }
  if (takes) {
    incoming[static_cast<std::size_t>(root.value())] = view->span();
    *bytes += static_cast<std::int64_t>(slot.memory.size());
  }
  MUSTER_RETURN_IF_ERROR(communicator.Exchange(outgoing, incoming));
  return takes ? view->Store() : Status();
}

Status RestoreLive(StateTable& table, Communicator& communicator, const GenerationRecord& record,
                   std::int64_t* bytes) {
  const Holders holders = HoldersOf(record);
  if (holders.first.value() < 0) {
    return Internal(fmt::format("generation {} restores from live memory, but no member holds it",
                                record.generation.value()));
  }
  const bool same_cut = SameCut(record);
  for (TensorSlot* slot : table.Stored()) {
    if (slot->kind == TensorKind::kSharded) {
      if (!same_cut) MUSTER_RETURN_IF_ERROR(MoveShard(table, *slot, communicator, record, bytes));
    } else if (slot->kind == TensorKind::kReplicated && !holders.all) {
      MUSTER_RETURN_IF_ERROR(
          SpreadReplica(table, *slot, communicator, record, holders.first, bytes));
    }
  }
  return {};
}

Status FillShard(const StateTable& table, TensorSlot& slot) {
  DeviceState* device = table.DeviceOf(slot);
  const auto same = [&](std::byte byte) { return byte == slot.fill.front(); };
  if (device != nullptr && !slot.fill.empty() && std::ranges::all_of(slot.fill, same)) {
    device->Fill(slot.next.span(), static_cast<std::uint8_t>(slot.fill.front()));
    return device->Wait();
  }
  const Result<HostView> view = HostView::Of(device, slot.next.span());
  if (!view.ok()) return view.status();
  const std::span<std::byte> target = view->span();
  if (slot.fill.empty()) {
    for (const BoxBytes& part : slot.Split(slot.next_boxes, target)) {
      if (part.box.empty()) continue;
      checkpoint::CopyBox(Box::Whole(slot.spec.shape), slot.initial, part.box, part.bytes, part.box,
                          SizeOf(slot.spec.dtype));
    }
  } else {
    for (std::size_t at = 0; at < target.size(); at += slot.fill.size()) {
      std::memcpy(target.data() + at, slot.fill.data(), slot.fill.size());
    }
  }
  return view->Store();
}

Status RestoreInitial(StateTable& table, Communicator& communicator, std::int64_t* bytes) {
  // Rank 0's values count, and each rank's own for its shards.
  const bool needed = communicator.rank() == Rank(0) || table.HasShards();
  if (table.trained() && needed) {
    return FailedPrecondition(
        "the job has to start over, but this process has trained already and its initial values "
        "are gone: start it again");
  }
  for (TensorSlot* slot : table.Stored()) {
    if (slot->kind == TensorKind::kSharded) {
      MUSTER_RETURN_IF_ERROR(FillShard(table, *slot));
      continue;
    }
    if (slot->kind != TensorKind::kReplicated) continue;
    const Result<HostView> view = ViewFor(table, *slot, slot->memory, communicator);
    if (!view.ok()) return view.status();
    const bool gives = communicator.rank() == Rank(0);
    if (gives) MUSTER_RETURN_IF_ERROR(view->Fetch());
    MUSTER_RETURN_IF_ERROR(communicator.Broadcast(view->span(), Rank(0)));
    if (gives) continue;
    MUSTER_RETURN_IF_ERROR(view->Store());
    *bytes += static_cast<std::int64_t>(slot->memory.size());
  }
  return {};
}

// This rank's part of a derived tensor, into its place.
Status PlaceOwnPart(const StateTable& table, const TensorSlot& slot, const HostView& view,
                    std::size_t before) {
  const std::span<const std::byte> own = slot.from->held.span();
  if (own.empty()) return {};
  const std::span<std::byte> place = view.span().subspan(before, own.size());
  // A view that is the tensor itself lies where that lies.
  DeviceState* to = view.span().data() == slot.memory.data() ? table.DeviceOf(slot) : nullptr;
  DeviceState* from = table.DeviceOf(*slot.from);
  if (from == nullptr && to == nullptr) {
    std::memcpy(place.data(), own.data(), own.size());
    return {};
  }
  if (to == nullptr) return from->Fetch(place, own);
  if (from == nullptr) return to->Store(place, own);
  to->Copy(place.data(), own.data(), own.size());
  return to->Wait();
}

}  // namespace

RestoreReport RestoreState(StateTable& table, Communicator& communicator,
                           const GenerationRecord& record, checkpoint::FileSystem& fs,
                           const std::string& checkpoint_root) {
  RestoreReport report;
  // What is on the device must not change any more, and nobody must be reading what is overwritten.
  if (table.device() != nullptr) report.status = table.device()->Settle();
  if (!report.status.ok()) return report;
  report.status =
      table.BeginCut(record.generation, communicator.rank(), record.world_size(), SameCut(record));
  if (!report.status.ok()) return report;
  switch (record.restore.source) {
    case RestoreSource::kInitial:
      report.status = RestoreInitial(table, communicator, &report.bytes);
      break;
    case RestoreSource::kLive:
      report.status = RestoreLive(table, communicator, record, &report.bytes);
      break;
    case RestoreSource::kCheckpoint: {
      LoadOutcome loaded = LoadState(table, record.restore, fs, checkpoint_root,
                                     communicator.rank() == Rank(0), &report.bytes);
      report.status = std::move(loaded.status);
      report.bad_checkpoint = loaded.bad_checkpoint;
      report.contradicts = loaded.contradicts;
      report.reading = loaded.reading;
      break;
    }
  }
  return report;
}

Status GatherDerived(StateTable& table, Communicator& communicator) {
  const std::int32_t world_size = communicator.world_size();
  bool settled = table.device() == nullptr;
  for (const auto& slot : table.slots()) {
    if (slot->kind != TensorKind::kDerived) continue;
    if (!settled) MUSTER_RETURN_IF_ERROR(table.device()->Settle());
    settled = true;
    std::vector<std::int64_t> counts;
    std::size_t before = 0;
    for (std::int32_t rank = 0; rank < world_size; ++rank) {
      counts.push_back(static_cast<std::int64_t>(
          BytesOf(slot->spec, BoxesOf(slot->from->spec, rank, world_size))));
      if (rank < communicator.rank().value()) before += static_cast<std::size_t>(counts.back());
    }
    const Result<HostView> view = ViewFor(table, *slot, slot->memory, communicator);
    if (!view.ok()) return view.status();
    MUSTER_RETURN_IF_ERROR(PlaceOwnPart(table, *slot, *view, before));
    MUSTER_RETURN_IF_ERROR(communicator.AllGather(view->span(), counts));
    MUSTER_RETURN_IF_ERROR(view->Store());
  }
  return {};
}

Status ProveCommunicator(Communicator& communicator) {
  const std::int64_t size = communicator.world_size();
  const std::int64_t own = communicator.rank().value() + 1;
  std::int64_t sums[2] = {1, own};
  MUSTER_RETURN_IF_ERROR(communicator.AllReduce(std::as_writable_bytes(std::span(sums)),
                                                ElementType::kInt64, ReduceOp::kSum));
  if (sums[0] != size || sums[1] != size * (size + 1) / 2) {
    return Internal(fmt::format("the new communicator adds up wrong: {} of {} ranks, sum {}",
                                sums[0], size, sums[1]));
  }
  if (!communicator.takes_device_memory()) return {};
  // Those of devices connect each pair when it first has something to say: here, where a pair that
  // cannot is an attempt that failed, and not in the middle of a step.
  const auto ranks = static_cast<std::size_t>(size);
  std::vector<std::int64_t> received(ranks, 0);
  const Outgoing outgoing(ranks, std::as_bytes(std::span(&own, 1)));
  Incoming incoming;
  for (std::int64_t& value : received) {
    incoming.push_back(std::as_writable_bytes(std::span(&value, 1)));
  }
  MUSTER_RETURN_IF_ERROR(communicator.Exchange(outgoing, incoming));
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    if (received[peer] != static_cast<std::int64_t>(peer) + 1) {
      return Internal(fmt::format("the new communicator confuses ranks: {} came from rank {}",
                                  received[peer] - 1, peer));
    }
  }
  return {};
}

}  // namespace muster::worker
