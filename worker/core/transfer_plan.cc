#include "worker/core/transfer_plan.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "protocol/check.h"

namespace muster::worker {
namespace {

// What the one list of boxes has of the other.
std::vector<Box> CommonBoxes(const std::vector<Box>& held, const std::vector<Box>& wanted) {
  std::vector<Box> common;
  for (const Box& from : held) {
    for (const Box& to : wanted) {
      if (std::optional<Box> part = Intersect(from, to)) common.push_back(*std::move(part));
    }
  }
  return common;
}

std::int64_t CountOf(const std::vector<Box>& boxes) {
  std::int64_t count = 0;
  for (const Box& box : boxes) count += box.count();
  return count;
}

}  // namespace

Result<TransferPlan> PlanTransfers(const TensorSpec& tensor, const GenerationRecord& record,
                                   Rank rank) {
  MUSTER_CHECK(tensor.sharded(), "only sharded tensors are cut anew");
  MUSTER_CHECK(record.restore.source == RestoreSource::kLive, "only live state is transferred");
  const std::int32_t size = record.world_size();
  const std::int32_t base_size = record.restore.base_world_size;
  MUSTER_CHECK(rank.value() >= 0 && rank.value() < size, "a rank outside of the generation");
  const std::vector<Box> wanted = BoxesOf(tensor, rank.value(), size);
  const Rank mine = record.members[static_cast<std::size_t>(rank.value())].previous_rank;
  const std::vector<Box> held =
      mine.value() < 0 ? std::vector<Box>() : BoxesOf(tensor, mine.value(), base_size);
  TransferPlan plan;
  std::int64_t covered = 0;
  for (const MemberEntry& member : record.members) {
    std::vector<Box> out = CommonBoxes(held, BoxesOf(tensor, member.rank.value(), size));
    if (!out.empty()) plan.outgoing.push_back({member.rank, std::move(out)});
    if (member.previous_rank.value() < 0) continue;
    std::vector<Box> in =
        CommonBoxes(BoxesOf(tensor, member.previous_rank.value(), base_size), wanted);
    if (in.empty()) continue;
    covered += CountOf(in);
    plan.incoming.push_back({member.rank, std::move(in)});
  }
  // Boxes of different previous ranks are disjoint, so their sizes tell whether anything is
  // missing.
  if (covered != CountOf(wanted)) {
    return DataLoss(fmt::format(
        "generation {}: no live member holds all of the part of rank {} of tensor '{}' ({} of {} "
        "elements found)",
        record.generation.value(), rank.value(), tensor.name, covered, CountOf(wanted)));
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
