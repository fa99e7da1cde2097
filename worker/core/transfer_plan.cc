#include "worker/core/transfer_plan.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "protocol/check.h"

namespace muster::worker {

Result<TransferPlan> PlanTransfers(const TensorSpec& tensor, const GenerationRecord& record,
                                   Rank rank) {
  MUSTER_CHECK(tensor.sharded(), "only sharded tensors are cut anew");
  MUSTER_CHECK(record.restore.source == RestoreSource::kLive, "only live state is transferred");
  const std::int32_t size = record.world_size();
  const std::int32_t base_size = record.restore.base_world_size;
  MUSTER_CHECK(rank.value() >= 0 && rank.value() < size, "a rank outside of the generation");
  const Box wanted = BoxOf(tensor, rank.value(), size);
  const Rank mine = record.members[static_cast<std::size_t>(rank.value())].previous_rank;
  TransferPlan plan;
  std::int64_t covered = 0;
  for (const MemberEntry& member : record.members) {
    if (mine.value() >= 0) {
      std::optional<Box> out = Intersect(BoxOf(tensor, mine.value(), base_size),
                                         BoxOf(tensor, member.rank.value(), size));
      if (out) plan.outgoing.push_back({member.rank, std::move(*out)});
    }
    if (member.previous_rank.value() < 0) continue;
    std::optional<Box> in =
        Intersect(BoxOf(tensor, member.previous_rank.value(), base_size), wanted);
    if (!in) continue;
    covered += in->count();
    plan.incoming.push_back({member.rank, std::move(*in)});
  }
  // Boxes of different previous ranks are disjoint, so their sizes tell whether anything is
  // missing.
  if (covered != wanted.count()) {
    return DataLoss(fmt::format(
        "generation {}: no live member holds all of {} of tensor '{}' ({} of {} elements found)",
        record.generation.value(), wanted.ToString(), tensor.name, covered, wanted.count()));
  }
  return plan;
}

Holders HoldersOf(const GenerationRecord& record) {
  Holders holders;
  for (const MemberEntry& member : record.members) {
    if (member.previous_rank.value() < 0) {
      holders.all = false;
    } else if (holders.first.value() < 0) {
      holders.first = member.rank;
    }
  }
  return holders;
}

}  // namespace muster::worker
