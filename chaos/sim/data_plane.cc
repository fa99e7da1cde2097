#include "chaos/sim/data_plane.h"

#include <algorithm>

#include "coordinator/core/durable_state.h"

namespace muster::sim {

void DataPlane::Complete(const Operation& operation, const Reaches& reaches,
                         std::vector<Result>* results) {
  for (const Rank rank : operation.inside) {
    const Call& call = operation.calls.at(rank);
    const bool all = std::ranges::all_of(operation.calls, [&](const auto& entry) {
      return entry.first == rank || reaches(entry.second.process, call.process);
    });
    if (all) results->push_back({call.process, call.serial, Ended::kDone, Rank(-1)});
  }
}

std::vector<DataPlane::Result> DataPlane::Enter(const OpKey& key, const RecordPointer& record,
                                                const Member& me, int process, std::int64_t serial,
                                                Contribution contribution, const Reaches& reaches) {
  Operation& operation = operations_[key];
  operation.record = record;
  const MemberEntry* mine = coordinator::Find(*record, me);
  MUSTER_CHECK(mine != nullptr, "a member enters an operation");
  const Rank rank = mine->rank;
  operation.calls[rank] = {process, serial};
  operation.contributions[rank] = std::move(contribution);
  operation.inside.insert(rank);
  std::vector<Result> results;
  for (const MemberEntry& entry : record->members) {
    const auto it = gave_up_.find(entry.member);
    if (it == gave_up_.end() || it->second < key.generation) continue;
    results.push_back({process, serial, Ended::kFailed, entry.rank});
    break;
  }
  operation.complete = operation.calls.size() == record->members.size();
  if (operation.complete) Complete(operation, reaches, &results);
  return results;
}

void DataPlane::Return(const OpKey& key, Rank rank) {
  const auto it = operations_.find(key);
  if (it == operations_.end()) return;
  it->second.inside.erase(rank);
  if (it->second.complete && it->second.inside.empty()) operations_.erase(it);
}

std::vector<DataPlane::Result> DataPlane::GiveUp(const Member& me, Generation last) {
  std::vector<Result> results;
  Generation& gave_up = gave_up_[me];
  gave_up = std::max(gave_up, last);
  for (auto it = operations_.begin(); it != operations_.end();) {
    Operation& operation = it->second;
    const MemberEntry* entry = coordinator::Find(*operation.record, me);
    if (entry == nullptr || it->first.generation > last) {
      ++it;
      continue;
    }
    operation.inside.erase(entry->rank);
    for (const Rank rank : operation.inside) {
      const Call& call = operation.calls.at(rank);
      results.push_back({call.process, call.serial, Ended::kFailed, entry->rank});
    }
    // Nobody is in it any more, and nobody who comes later can complete it but by an error.
    it = operation.inside.empty() ? operations_.erase(it) : std::next(it);
  }
  return results;
}

std::vector<DataPlane::Result> DataPlane::Reconsider(const Reaches& reaches) const {
  std::vector<Result> results;
  for (const auto& [key, operation] : operations_) {
    if (operation.complete) Complete(operation, reaches, &results);
  }
  return results;
}

const std::map<Rank, Contribution>& DataPlane::Contributions(const OpKey& key) const {
  const auto it = operations_.find(key);
  MUSTER_CHECK(it != operations_.end() && it->second.complete, "a result needs all contributions");
  return it->second.contributions;
}

Rank DataPlane::WaitsFor(const OpKey& key, Rank rank, const Reaches& reaches) const {
  const auto it = operations_.find(key);
  if (it == operations_.end()) return Rank(-1);
  const Operation& operation = it->second;
  const auto mine = operation.calls.find(rank);
  for (const MemberEntry& entry : operation.record->members) {
    if (entry.rank == rank) continue;
    const auto peer = operation.calls.find(entry.rank);
    if (peer == operation.calls.end()) return entry.rank;
    if (mine != operation.calls.end() && !reaches(peer->second.process, mine->second.process)) {
      return entry.rank;
    }
  }
  return Rank(-1);
}

}  // namespace muster::sim
