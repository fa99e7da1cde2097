#include "chaos/sim/data_plane.h"

#include <algorithm>

namespace muster::sim {

void DataPlane::Enter(const GenerationRecord& record, const Member& me, const std::string& name,
                      Callback done) {
  joined_[me].insert(record.generation);
  Operation& operation = operations_[{record.generation, name}];
  operation.record = record;
  operation.inside.push_back({me, std::move(done)});
  const std::uint64_t life = lives_[me];
  for (const MemberEntry& entry : record.members) {
    if (!aborted_[entry.member].contains(record.generation)) continue;
    // A peer has given this generation up: an error soon, or nothing at all until the interrupt.
    if (prng_.Chance(1, 2)) {
      events_.After(delay_,
                    [this, me, key = Key{record.generation, name}, life, rank = entry.rank] {
                      const auto it = operations_.find(key);
                      if (it == operations_.end() || lives_[me] != life) return;
                      auto& inside = it->second.inside;
                      const auto mine = std::ranges::find(inside, me, &Waiting::member);
                      if (mine == inside.end()) return;
                      Callback callback = std::move(mine->done);
                      inside.erase(mine);
                      callback(Ended::kFailed, rank);
                    });
    }
    return;
  }
  if (operation.inside.size() < record.members.size()) return;
  std::vector<Waiting> all = std::move(operation.inside);
  operations_.erase({record.generation, name});
  for (Waiting& waiting : all) {
    const std::uint64_t its_life = lives_[waiting.member];
    const Duration after = Duration::Nanos(
        static_cast<std::int64_t>(prng_.Below(static_cast<std::uint64_t>(delay_.nanos()) + 1)));
    auto shared = std::make_shared<Waiting>(std::move(waiting));
    events_.After(after, [this, shared, its_life, generation = record.generation] {
      if (lives_[shared->member] != its_life) return;
      const bool gone = aborted_[shared->member].contains(generation);
      if (gone) return;  // the abort has answered for it
      pending_.erase(shared->member);
      shared->done(Ended::kDone, Rank(-1));
    });
    pending_[shared->member] = shared;
  }
}

void DataPlane::FailPeers(const Member& me) {
  for (auto& [key, operation] : operations_) {
    const auto entry = std::ranges::find(operation.record.members, me, &MemberEntry::member);
    if (entry == operation.record.members.end()) continue;
    for (const Waiting& waiting : operation.inside) {
      if (waiting.member == me || !prng_.Chance(2, 3)) continue;  // the others hang
      const std::uint64_t life = lives_[waiting.member];
      events_.After(delay_, [this, key, life, who = waiting.member, rank = entry->rank] {
        const auto it = operations_.find(key);
        if (it == operations_.end() || lives_[who] != life) return;
        auto& inside = it->second.inside;
        const auto mine = std::ranges::find(inside, who, &Waiting::member);
        if (mine == inside.end()) return;
        Callback callback = std::move(mine->done);
        inside.erase(mine);
        callback(Ended::kFailed, rank);
      });
    }
  }
}

void DataPlane::Leave(const Member& me, bool call) {
  std::vector<Callback> callbacks;
  for (auto& [key, operation] : operations_) {
    auto& inside = operation.inside;
    const auto mine = std::ranges::find(inside, me, &Waiting::member);
    if (mine == inside.end()) continue;
    callbacks.push_back(std::move(mine->done));
    inside.erase(mine);
  }
  if (const auto it = pending_.find(me); it != pending_.end()) {
    callbacks.push_back(std::move(it->second->done));
    pending_.erase(it);
  }
  for (const Generation generation : joined_[me]) aborted_[me].insert(generation);
  joined_[me].clear();
  FailPeers(me);
  if (!call) return;
  for (Callback& callback : callbacks) callback(Ended::kAborted, Rank(-1));
}

void DataPlane::Abort(const Member& me) { Leave(me, true); }

void DataPlane::Kill(const Member& me) {
  ++lives_[me];
  Leave(me, false);
}

}  // namespace muster::sim
