// Forming a generation, bringing its state into place, and saving it.
#include <algorithm>
#include <set>
#include <utility>

#include "chaos/sim/trace.h"
#include "chaos/sim/world.h"
#include "coordinator/core/durable_state.h"
#include "protocol/mutants.h"
#include "worker/core/transfer_plan.h"

namespace muster::sim {

void World::Form(Process& p) {
  p.at = At::kForming;
  p.record = std::make_shared<const GenerationRecord>(*p.session->assigned());
  p.operations = 0;
  p.group = 0;
  Tell(p, worker::FormingBegun{});
  if (options_.backend == Backend::kNccl && p.record->world_size() > 1) return MeetGroup(p);
  Enter(p, OpKind::kConnect, Step(), {});
}

// Is what the training thread forms still what it is to form?
bool World::FormsStill(const Process& p) {
  const GenerationRecord* assigned = p.session->assigned();
  return !p.session->ended() && assigned != nullptr &&
         assigned->generation == p.record->generation && assigned->lineage == p.record->lineage;
}

// Over NCCL: with those who have the same id, and not before this one has it.
void World::MeetGroup(Process& p) {
  if (p.session->mints_group_id()) {
    const std::string minted = MintId(p);
    group_ids_.OnMinted(*p.record, MemberOf(p), minted, verdict_);
    Tell(p, worker::IdMinted{p.record->generation, minted});
  }
  const std::string* id = p.session->group_id();
  p.awaits_group = id == nullptr;
  if (p.awaits_group) return;
  p.group = group_ids_.OnUsed(*p.record, MemberOf(p), *id, verdict_);
  Enter(p, OpKind::kConnect, Step(), {});
}

std::string World::MintId(const Process& p) {
  ++result_.group_ids;
  const auto generation = static_cast<std::uint64_t>(p.record->generation.value());
  const std::uint64_t drawn =
      exhaustive_ ? Mix64(static_cast<std::uint64_t>(p.pid) ^ Mix64(generation)) : ids_.Next();
  return ToHex(drawn);
}

// Every member is there. What each holds is read as it is now, in the cut of the last generation.
void World::Connected(Process& p) {
  Contribution contribution;
  contribution.held = p.held;
  const GenerationRecord& record = *p.record;
  if (record.restore.source == RestoreSource::kCheckpoint) return RestoreFromFiles(p);
  const Rank rank = EntryOf(p).rank;
  const MemberEntry& mine = record.members[static_cast<std::size_t>(rank.value())];
  if (record.restore.source == RestoreSource::kInitial) {
    // Its initial values are gone once it has trained.
    if (p.trained && (options_.sharded || rank == Rank(0))) {
      return FormBroke(p, Code::kFailedPrecondition, "initial values are gone", Rank(-1), false);
    }
    contribution.held = Piece{0, kElements, 0, Step()};
  } else if (mine.previous_rank.value() < 0 && !options_.sharded) {
    // Received in place: until all of it is there, its memory holds anything.
    p.held = Piece{0, kElements, Mix64(0xbadU), Step(-1)};
  }
  Enter(p, OpKind::kExchange, Step(), std::move(contribution));
}

void World::Exchanged(Process& p, const OpKey& key) {
  const GenerationRecord& record = *p.record;
  const Rank rank = EntryOf(p).rank;
  const auto& contributions = data_.Contributions(key);
  std::vector<Piece> pieces;
  const auto take = [&](Rank from, std::int64_t lo, std::int64_t hi) {
    const Piece& held = contributions.at(from).held;
    pieces.push_back({std::max(lo, held.lo), std::min(hi, held.hi), held.state, held.step});
  };
  const TensorSpec tensor = spec_.tensors.front();
  if (record.restore.source == RestoreSource::kInitial) {
    take(options_.sharded ? rank : Rank(0), 0, kElements);
  } else if (options_.sharded) {
    auto plan = worker::PlanTransfers(tensor, record, rank);
    if (!plan.ok()) return verdict_.Violate("S5", plan.status().message());
    for (const worker::Transfer& transfer : plan->incoming) {
      for (const Box& box : transfer.boxes) {
        take(transfer.peer, box.ranges[0].lo, box.ranges[0].hi);
      }
    }
  } else {
    take(worker::HoldersOf(record).first, 0, kElements);
  }
  TakeState(p, pieces, Delay());
}

void World::RestoreFromFiles(Process& p) {
  const Restore& restore = p.record->restore;
  if (!options_.sharded) p.held = Piece{0, kElements, Mix64(0xbadU), Step(-1)};
  std::vector<Piece> pieces;
  bool bad = !disk_.manifests.contains(restore.checkpoint);
  for (std::int32_t rank = 0;; ++rank) {
    const auto it = disk_.shards.find({restore.checkpoint, rank});
    if (it == disk_.shards.end()) {
      bad = bad || rank == 0;
      break;
    }
    bad = bad || it->second.damaged;
    pieces.push_back(it->second.piece);
  }
  // The manifest names the files: one that is not there is damage like any other.
  std::int64_t there = 0;
  for (const Piece& piece : pieces) there += piece.hi - piece.lo;
  bad = bad || there != kElements;
  if (bad) return FormBroke(p, Code::kDataLoss, "a block does not verify", Rank(-1), true);
  TakeState(p, pieces, Duration::Millis(2) + Delay());
}

// Takes its own part of the pieces; it counts once the generation has started.
void World::TakeState(Process& p, const std::vector<Piece>& pieces, Duration takes) {
  const GenerationRecord& record = *p.record;
  const Rank rank = EntryOf(p).rank;
  const Box box = BoxOf(spec_.tensors.front(), rank.value(), record.world_size());
  const Range mine = box.ranges[0];
  std::vector<Piece> parts;
  for (const Piece& piece : pieces) {
    const Piece part{std::max(piece.lo, mine.lo), std::min(piece.hi, mine.hi), piece.state,
                     piece.step};
    if (part.lo < part.hi) parts.push_back(part);
  }
  // What is formed on top of a record that another one has replaced counts for nothing.
  const JobRecord& newest = chain_.record();
  const bool counts = newest.latest && newest.latest->generation == record.generation &&
                      newest.lineage == record.lineage;
  if (counts) {
    RestoredState::OnRestored(p.session->member(), record.lineage, record.restore.step, mine.lo,
                              mine.hi, parts, chain_, verdict_);
  }
  const std::uint64_t state = parts.empty() ? p.held.state : parts.front().state;
  p.next_cut = Piece{mine.lo, mine.hi, state, record.restore.step};
  p.next_cut_of = record.generation;
  if (record.restore.source != RestoreSource::kInitial) p.trained = true;
  Later(p.index, takes, Continue{Thread::kRestored, record.generation});
}

void World::Restored(Process& p, Generation generation) {
  if (p.at != At::kForming || !p.record || p.record->generation != generation) return;
  p.at = At::kBoundary;
  const auto* assigned = p.session->assigned();
  if (assigned != nullptr && assigned->generation == generation) {
    Tell(p, worker::FormedHere{generation, 1, 1, 0});
  }
  Point(p.index);
  if (p.alive) BeginStep(p);
}

void World::FormBroke(Process& p, Code code, const std::string& reason, Rank peer,
                      bool bad_checkpoint) {
  Schedule(data_.GiveUp(MemberOf(p), p.record->generation));
  FormFailed failed{p.record->generation, code, reason, peer, {}};
  if (bad_checkpoint) failed.bad_checkpoint = p.record->restore.checkpoint;
  failed.reading = bad_checkpoint;
  p.at = At::kBoundary;
  Tell(p, worker::FormBroke{failed});
  if (p.alive) Later(p.index, Duration(), Continue{Thread::kPump, {}});
}

// The old cut is kept until the generation has started.
void World::AdoptCut(Process& p) {
  const GenerationRecord* started = p.session->started_record();
  if (!p.next_cut || started == nullptr || started->generation != p.next_cut_of) return;
  p.held = *std::exchange(p.next_cut, std::nullopt);
}

// --- Checkpoints ---------------------------------------------------------------------------------

void World::Snapshot(Process& p) {
  const CheckpointKey key = *p.session->snapshot_due();
  const GenerationRecord* record = p.session->started_record();
  if (record == nullptr) return Tell(p, worker::SnapshotTaken{});
  const Rank rank = p.session->RankIn(*record);
  const auto boxes = StoredBoxesOf(spec_.tensors.front(), rank.value(), record->world_size());
  const Range stored = boxes.empty() ? Range() : boxes.front().ranges[0];
  FileDone file{FileWork::kShard, key, record->lineage, rank, record->world_size()};
  file.piece = {stored.lo, stored.hi, p.held.state, p.held.step};
  Tell(p, worker::SnapshotTaken{});
  Later(p.index, Duration::Millis(5) + Delay(20), file);
}

void World::HandleSaver(Process& p, const worker::Effects& effects) {
  for (const WriteManifest& manifest : effects.manifests) {
    FileDone done{FileWork::kManifest, manifest.record.key, {}, {}, 0};
    done.record = manifest.record;
    Later(p.index, Duration::Millis(1) + Delay(), done);
  }
  for (const RemoveCheckpoint& removal : effects.removals) {
    FileDone done{FileWork::kRemoval, removal.key, {}, {}, 0};
    Later(p.index, Duration::Millis(1) + Delay(), done);
  }
  for (const SweepCheckpoints& sweep : effects.sweeps) {
    FileDone done{FileWork::kSweep, {}, {}, {}, 0};
    done.sweep = sweep;
    Later(p.index, Duration::Millis(1) + Delay(), done);
  }
}

// By an operator, who lets them all go in the end.
bool World::Pinned(const CheckpointKey& key) const {
  const std::uint64_t drawn =
      Mix64(options_.seed ^
            Mix64(static_cast<std::uint64_t>(key.step.value() * 1000 + key.generation.value())));
  return options_.pins && drawn % 4 == 0 && now_ < peace_;
}

void World::Remove(Process& p, const CheckpointKey& key) {
  const bool pinned = Pinned(key);
  if (!pinned) {
    disk_.Remove(key);
    safe_checkpoints_.OnLess(stored_checkpoints_, chain_, disk_, verdict_);
  }
  Tell(p, worker::Report{CheckpointRemoved{key, pinned}});
}

// As checkpoint/sweep.h does it.
void World::Sweep(const SweepCheckpoints& order) {
  std::set<CheckpointKey> leftovers;
  for (const auto& [file, shard] : disk_.shards) {
    const CheckpointKey& key = file.first;
    const bool stale =
        std::pair(key.generation, key.step) < std::pair(order.generation, order.step);
    const bool known = std::ranges::find(order.known, key) != order.known.end();
    if (stale && !known && !disk_.manifests.contains(key)) leftovers.insert(key);
  }
  for (const CheckpointKey& key : leftovers) {
    SafeCheckpoints::OnSwept(key, stored_checkpoints_, verdict_);
    disk_.Remove(key);
  }
}

// As checkpoint/discover.h does it.
std::optional<Found> World::Discover() const {
  if (disk_.shards.empty()) return std::nullopt;
  Found found;
  for (const auto& [file, shard] : disk_.shards) {
    found.highest = std::max(found.highest, file.first.generation);
  }
  for (const auto& [key, record] : disk_.manifests) {
    found.checkpoints.push_back({key, record.lineage, record.world_size, 7, record.bytes});
  }
  std::ranges::sort(found.checkpoints, {}, [](const FoundCheckpoint& one) {
    return std::pair(one.key.generation, one.key.step);
  });
  const std::size_t more = found.checkpoints.size() - std::min(found.checkpoints.size(), kMaxFound);
  found.checkpoints.erase(found.checkpoints.begin(),
                          found.checkpoints.begin() + static_cast<std::ptrdiff_t>(more));
  return found;
}

// With an empty store and nobody left who is in a generation, the job goes on from the newest
// checkpoint that any member has found.
void World::CheckStartedOver(const JobRecord& record) {
  if (record.started || record.latest->restore.source != RestoreSource::kInitial ||
      record.latest->previous != Generation() || !record.rollbacks.empty()) {
    return;
  }
  for (const Process& p : processes_) {
    if (!p.session || !p.found ||
        coordinator::Find(*record.latest, p.session->member()) == nullptr) {
      continue;
    }
    for (const FoundCheckpoint& one : p.found->checkpoints) {
      const auto manifest = disk_.manifests.find(one.key);
      if (manifest == disk_.manifests.end()) continue;
      safe_checkpoints_.OnStartedOver(manifest->second, disk_, verdict_);
    }
  }
}

void World::On(Process& p, const FileDone& done) {
  if (done.what == FileWork::kManifest) {
    const bool full = p.disk_full > 0;
    if (!full) disk_.manifests[done.key] = done.record;
    ManifestWritten written{done.key, 7, full ? Code::kResourceExhausted : Code::kOk,
                            full ? "no space" : ""};
    Tell(p, worker::Report{written});
  } else if (done.what == FileWork::kRemoval) {
    Remove(p, done.key);
  } else if (done.what == FileWork::kSweep) {
    Sweep(done.sweep);
  } else if (p.disk_full > 0) {
    Tell(p, worker::Report{ShardFailed{done.key, done.rank, Code::kResourceExhausted, "no space"}});
  } else {
    Piece piece = done.piece;
    if (Planted(Mutant::kSnapshotLate)) piece.state = p.held.state;
    disk_.shards[{done.key, done.rank.value()}] = ShardFile{piece, done.lineage, false};
    ShardWritten written;
    written.key = done.key;
    written.lineage = done.lineage;
    written.world_size = done.world_size;
    written.file = {"shard", 256, 1, done.rank};
    Tell(p, worker::Report{written});
  }
  Point(p.index);
}

}  // namespace muster::sim
