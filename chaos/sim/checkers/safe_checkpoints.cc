#include "chaos/sim/checkers/safe_checkpoints.h"

#include <fmt/format.h>

#include <algorithm>

namespace muster::sim {

void Disk::Remove(const CheckpointKey& key) {
  std::erase_if(shards, [&](const auto& entry) { return entry.first.first == key; });
  manifests.erase(key);
}

std::string Unloadable(const CheckpointRecord& record, const Disk& disk, std::int64_t elements,
                       std::uint64_t* state) {
  std::int64_t next = 0;
  // An entry that was taken over from a worker's word names no files: the manifest does.
  const bool adopted = record.world_size == 0;
  for (std::int32_t rank = 0; adopted || rank < record.world_size; ++rank) {
    const auto it = disk.shards.find({record.key, rank});
    if (it == disk.shards.end() && adopted && rank > 0) break;
    if (it == disk.shards.end()) return fmt::format("the file of rank {} is not there", rank);
    const ShardFile& file = it->second;
    if (file.damaged) return fmt::format("the file of rank {} does not verify", rank);
    if (file.piece.step != record.key.step || (!adopted && file.lineage != record.lineage)) {
      return fmt::format("the file of rank {} is of step {}", rank, file.piece.step.value());
    }
    if (file.piece.lo != next) return fmt::format("elements from {} on are not there once", next);
    next = file.piece.hi;
    if (rank > 0 && file.piece.state != *state) return "its files hold different states";
    *state = file.piece.state;
  }
  return next == elements ? "" : fmt::format("elements from {} on are not there", next);
}

void SafeCheckpoints::OnAnnounced(const CheckpointEntry& entry, const Chain& chain,
                                  const Disk& disk, Verdict& verdict) {
  announced_ = true;
  std::uint64_t state = 0;
  const CheckpointKey& key = entry.record.key;
  const std::string name =
      fmt::format("checkpoint of step {}, generation {}", key.step.value(), key.generation.value());
  std::string bad = Unloadable(entry.record, disk, elements_, &state);
  if (!disk.manifests.contains(key)) bad = "its manifest is not there";
  if (!bad.empty() && !damage_) return verdict.Violate("S5", name + " is announced, but " + bad);
  if (chain.Voided(chain.record().lineage, key.generation, key.step)) {
    return verdict.Violate("S5", name + " is announced, but a rollback made it void");
  }
  const auto expected = chain.StateAt(chain.record().lineage, key.step);
  if (bad.empty() && expected && *expected != state) {
    verdict.Violate("S5", name + " is announced, but holds another state than the chain");
  }
}

void SafeCheckpoints::OnRetired(const CheckpointEntry& retired,
                                const std::vector<CheckpointEntry>& entries, const JobSpec& spec,
                                const Chain& chain, Verdict& verdict) const {
  const auto good = [&](const CheckpointEntry& one) {
    return !chain.Voided(chain.record().lineage, one.record.key.generation, one.record.key.step) &&
           !struck_.contains(one.record.key) && one.strikes < kCheckpointStrikes;
  };
  if (!good(retired)) return;
  const CheckpointKey& key = retired.record.key;
  const std::int64_t every = spec.checkpoint_keep_every;
  if (every > 0 && key.step > Step() && key.step.value() % every == 0) {
    verdict.Violate("S5", fmt::format("the checkpoint of step {} is deleted, and each {}th is kept",
                                      key.step.value(), every));
  }
  const auto left = std::ranges::count_if(entries, [&](const CheckpointEntry& entry) {
    return entry.record.key != key && entry.state == CheckpointState::kAnnounced && !entry.pinned &&
           good(entry);
  });
  const std::int64_t keep = spec.checkpoint_keep;
  if (left >= keep) return;
  verdict.Violate("S5", fmt::format("the checkpoint of step {} is deleted, and {} good ones are "
                                    "left where {} were to be kept",
                                    key.step.value(), left, keep));
}

void SafeCheckpoints::OnComplete(const CheckpointRecord& record, const Chain& chain,
                                 const Disk& disk, Verdict& verdict) const {
  const CheckpointKey& key = record.key;
  const std::string name = fmt::format("the checkpoint of step {}, generation {} is recorded, but ",
                                       key.step.value(), key.generation.value());
  if (chain.Voided(chain.record().lineage, key.generation, key.step)) {
    return verdict.Violate("S5", name + "a rollback made it void");
  }
  std::uint64_t state = 0;
  const std::string bad = Unloadable(record, disk, elements_, &state);
  if (!bad.empty() && !damage_) verdict.Violate("S5", name + bad);
}

void SafeCheckpoints::OnSwept(const CheckpointKey& key, const std::vector<CheckpointEntry>& entries,
                              Verdict& verdict) {
  const auto entry = std::ranges::find_if(
      entries, [&](const CheckpointEntry& one) { return one.record.key == key; });
  if (entry == entries.end() || entry->state == CheckpointState::kVoid ||
      entry->state == CheckpointState::kDeleting) {
    return;
  }
  verdict.Violate("S5", fmt::format("the files of the checkpoint of step {}, generation {} are "
                                    "swept as leftovers, but the index has it",
                                    key.step.value(), key.generation.value()));
}

void SafeCheckpoints::OnStartedOver(const CheckpointRecord& found, const Disk& disk,
                                    Verdict& verdict) const {
  std::uint64_t state = 0;
  const bool there = disk.manifests.contains(found.key) && !struck_.contains(found.key) &&
                     Unloadable(found, disk, elements_, &state).empty();
  if (!there) return;
  verdict.Violate("S5", fmt::format("the job starts over, although the checkpoint of step {}, "
                                    "generation {} was found",
                                    found.key.step.value(), found.key.generation.value()));
}

void SafeCheckpoints::OnRecord(const JobRecord& record, const std::vector<CheckpointEntry>& entries,
                               const Chain& chain, Verdict& verdict) {
  if (!record.latest || record.latest->generation == judged_) return;
  judged_ = record.latest->generation;
  if (record.latest->restore.source != RestoreSource::kCheckpoint) return;
  const CheckpointKey& key = record.latest->restore.checkpoint;
  if (chain.Voided(record.lineage, key.generation, key.step)) {
    verdict.Violate("S5", fmt::format("generation {} restores from the checkpoint of step {}, "
                                      "which a rollback made void",
                                      record.latest->generation.value(), key.step.value()));
  }
  const auto quarantined = [](const CheckpointEntry& entry) {
    return entry.strikes >= kCheckpointStrikes;
  };
  const auto it = std::ranges::find_if(
      entries, [&](const CheckpointEntry& entry) { return entry.record.key == key; });
  const bool better = std::ranges::any_of(entries, [&](const CheckpointEntry& entry) {
    return entry.state == CheckpointState::kAnnounced && !quarantined(entry) &&
           !struck_.contains(entry.record.key);
  });
  if (it != entries.end() && quarantined(*it) && better) {
    verdict.Violate("S5", fmt::format("generation {} restores from the checkpoint of step {}, "
                                      "which is in quarantine, and there is another",
                                      record.latest->generation.value(), key.step.value()));
  }
  if (!struck_.contains(key)) return;
  verdict.Violate("S5", fmt::format("generation {} restores from the checkpoint of step {}, which "
                                    "was struck out",
                                    record.latest->generation.value(), key.step.value()));
}

void SafeCheckpoints::OnLess(const std::vector<CheckpointEntry>& entries, const Chain& chain,
                             const Disk& disk, Verdict& verdict) const {
  if (!announced_ || damage_) return;
  const bool one = std::ranges::any_of(entries, [&](const CheckpointEntry& entry) {
    std::uint64_t state = 0;
    return entry.state == CheckpointState::kAnnounced &&
           !chain.Voided(chain.record().lineage, entry.record.key.generation,
                         entry.record.key.step) &&
           disk.manifests.contains(entry.record.key) &&
           Unloadable(entry.record, disk, elements_, &state).empty();
  });
  if (!one) verdict.Violate("S5", "no announced checkpoint is left that loads");
}

}  // namespace muster::sim
