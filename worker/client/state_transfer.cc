#include "worker/client/state_transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "checkpoint/match.h"
#include "checkpoint/reader.h"
#include "checkpoint/reshard.h"
#include "checkpoint/tie_check.h"
#include "protocol/check.h"
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

Status MoveShard(TensorSlot& slot, Communicator& communicator, const GenerationRecord& record,
                 std::int64_t* bytes_received) {
  const Rank rank = communicator.rank();
  Result<TransferPlan> plan = PlanTransfers(slot.spec, record, rank);
  if (!plan.ok()) return plan.status();
  const auto world_size = static_cast<std::size_t>(communicator.world_size());
  const std::int64_t element = SizeOf(slot.spec.dtype);
  const std::vector<BoxBytes> held = slot.Held();
  const std::vector<BoxBytes> next = slot.Next();
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
  return {};
}

// One holder gives a replicated tensor to those who do not have it; holders' memory is not touched.
Status SpreadReplica(TensorSlot& slot, Communicator& communicator, const GenerationRecord& record,
                     Rank root, std::int64_t* bytes) {
  const auto world_size = static_cast<std::size_t>(communicator.world_size());
  Outgoing outgoing(world_size);
  Incoming incoming(world_size);
  for (const MemberEntry& member : record.members) {
    if (member.previous_rank.value() >= 0) continue;
    if (communicator.rank() == root) {
      outgoing[static_cast<std::size_t>(member.rank.value())] = slot.memory;
    } else if (communicator.rank() == member.rank) {
      incoming[static_cast<std::size_t>(root.value())] = slot.memory;
      *bytes += static_cast<std::int64_t>(slot.memory.size());
    }
  }
  return communicator.Exchange(outgoing, incoming);
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
      if (!same_cut) MUSTER_RETURN_IF_ERROR(MoveShard(*slot, communicator, record, bytes));
    } else if (slot->kind == TensorKind::kReplicated && !holders.all) {
      MUSTER_RETURN_IF_ERROR(SpreadReplica(*slot, communicator, record, holders.first, bytes));
    }
  }
  return {};
}

void FillShard(TensorSlot& slot) {
  const std::span<std::byte> target = slot.next.span();
  if (slot.fill.empty()) {
    for (const BoxBytes& part : slot.Next()) {
      if (part.box.empty()) continue;
      checkpoint::CopyBox(Box::Whole(slot.spec.shape), slot.initial, part.box, part.bytes, part.box,
                          SizeOf(slot.spec.dtype));
    }
    return;
  }
  for (std::size_t at = 0; at < target.size(); at += slot.fill.size()) {
    std::memcpy(target.data() + at, slot.fill.data(), slot.fill.size());
  }
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
      FillShard(*slot);
      continue;
    }
    if (slot->kind != TensorKind::kReplicated) continue;
    MUSTER_RETURN_IF_ERROR(communicator.Broadcast(slot->memory, Rank(0)));
    if (communicator.rank() != Rank(0)) *bytes += static_cast<std::int64_t>(slot->memory.size());
  }
  return {};
}

// What of the stored tensors goes where. `pairs` are by name, in the order of the table.
std::vector<checkpoint::WantedBox> WantedBoxes(
    StateTable& table, const std::vector<checkpoint::TensorMatch::Pair>& pairs) {
  const std::vector<TensorSlot*> slots = table.Stored();
  std::vector<checkpoint::WantedBox> wanted;
  for (const checkpoint::TensorMatch::Pair& pair : pairs) {
    const TensorSlot& slot = *slots[pair.wanted];
    if (slot.kind == TensorKind::kReplicated) {
      wanted.push_back({pair.stored, Box::Whole(slot.spec.shape), slot.memory});
    } else if (slot.kind == TensorKind::kSharded) {
      for (BoxBytes& part : slot.Next()) {
        wanted.push_back({pair.stored, std::move(part.box), part.bytes});
      }
    }
  }
  return wanted;
}

Status RestoreCheckpoint(StateTable& table, const Restore& restore, checkpoint::FileSystem& fs,
                         const std::string& root, bool first_rank, RestoreReport* report) {
  Result<checkpoint::Manifest> manifest =
      checkpoint::ReadManifest(fs, root, restore.directory, restore.manifest_digest);
  if (!manifest.ok()) return manifest.status();
  if (manifest->record.key != restore.checkpoint) {
    return DataLoss(fmt::format("{}/{} is not the checkpoint of step {}", root, restore.directory,
                                restore.checkpoint.step.value()));
  }
  checkpoint::IoPool pool;
  checkpoint::ReadOptions options;
  options.pool = &pool;
  const checkpoint::TensorMatch match =
      checkpoint::MatchTensors(manifest->record.tensors, table.Specs());
  Status same = checkpoint::CheckStrictMatch(match);
  // One that looks is enough: it tells the others.
  if (same.ok() && first_rank) {
    same = checkpoint::CheckTies(fs, root, manifest->record, match.tied_now, options);
  }
  if (same.code() == Code::kFailedPrecondition) {
    report->contradicts = true;
    return InvalidArgument(fmt::format(
        "{}/{} is a checkpoint of another model: {}. Start the job with the model that wrote it, "
        "or under another name with another checkpoint directory",
        root, restore.directory, same.message()));
  }
  MUSTER_RETURN_IF_ERROR(same);
  Result<checkpoint::LoadReport> loaded =
      checkpoint::LoadBoxes(fs, root, manifest->record, WantedBoxes(table, match.pairs), options);
  if (!loaded.ok()) return loaded.status();
  report->bytes += loaded->bytes_read;
  return {};
}

}  // namespace

RestoreReport RestoreState(StateTable& table, Communicator& communicator,
                           const GenerationRecord& record, checkpoint::FileSystem& fs,
                           const std::string& checkpoint_root) {
  RestoreReport report;
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
    case RestoreSource::kCheckpoint:
      report.status = RestoreCheckpoint(table, record.restore, fs, checkpoint_root,
                                        communicator.rank() == Rank(0), &report);
      report.bad_checkpoint =
          report.status.code() == Code::kDataLoss || report.status.code() == Code::kNotFound;
      break;
  }
  return report;
}

Status GatherDerived(StateTable& table, Communicator& communicator) {
  const std::int32_t world_size = communicator.world_size();
  for (const auto& slot : table.slots()) {
    if (slot->kind != TensorKind::kDerived) continue;
    std::vector<std::int64_t> counts;
    std::size_t before = 0;
    for (std::int32_t rank = 0; rank < world_size; ++rank) {
      counts.push_back(static_cast<std::int64_t>(
          BytesOf(slot->spec, BoxesOf(slot->from->spec, rank, world_size))));
      if (rank < communicator.rank().value()) before += static_cast<std::size_t>(counts.back());
    }
    const std::span<const std::byte> own = slot->from->held.span();
    if (!own.empty()) std::memcpy(slot->memory.data() + before, own.data(), own.size());
    MUSTER_RETURN_IF_ERROR(communicator.AllGather(slot->memory, counts));
  }
  return {};
}

Status ProveCommunicator(Communicator& communicator) {
  const std::int64_t size = communicator.world_size();
  std::int64_t sums[2] = {1, communicator.rank().value() + 1};
  MUSTER_RETURN_IF_ERROR(communicator.AllReduce(std::as_writable_bytes(std::span(sums)),
                                                ElementType::kInt64, ReduceOp::kSum));
  if (sums[0] == size && sums[1] == size * (size + 1) / 2) return {};
  return Internal(fmt::format("the new communicator adds up wrong: {} of {} ranks, sum {}", sums[0],
                              size, sums[1]));
}

}  // namespace muster::worker
