#include "coordinator/core/durable_state.h"

#include <algorithm>

#include "protocol/mutants.h"

namespace muster::coordinator {

namespace {
// Reached only by attempt after attempt without a start; then the oldest say the least.
constexpr std::size_t kMaxRollbacks = 64;
}  // namespace

Generation NextGeneration(JobRecord& record) {
  record.highest = record.highest.Next();
  return record.highest;
}

void RaiseHighest(JobRecord& record, Generation seen) {
  if (Planted(Mutant::kLowNumber)) return;
  if (Planted(Mutant::kReuseNumber)) seen = Generation(seen.value() - 1);
  record.highest = std::max(record.highest, seen);
}

void AddRollback(JobRecord& record, Generation generation, Step step) {
  const std::int64_t open = Planted(Mutant::kRollbackOfKnownAndOpen) ? 1 : 0;
  Note(generation.value(), record.committed.value() + open);
  std::erase_if(record.rollbacks, [&](const Rollback& old) { return old.step >= step; });
  record.rollbacks.push_back({generation, step});
  if (record.rollbacks.size() > kMaxRollbacks) record.rollbacks.erase(record.rollbacks.begin());
}

void DropMootRollbacks(JobRecord& record, Generation writer) {
  std::erase_if(record.rollbacks, [&](const Rollback& old) { return old.generation <= writer; });
}

bool IsVoid(const JobRecord& record, const CheckpointKey& key) {
  return std::ranges::any_of(record.rollbacks, [&](const Rollback& rollback) {
    if (Planted(Mutant::kRollbackOfKnownSteps) || Planted(Mutant::kRollbackOfKnownAndOpen)) {
      if (key.step.value() > Noted(rollback.generation.value())) return false;
    }
    return rollback.generation > key.generation && key.step > rollback.step;
  });
}

const MemberEntry* Find(const GenerationRecord& record, const Member& member) {
  const auto it = std::ranges::find(record.members, member, &MemberEntry::member);
  return it == record.members.end() ? nullptr : &*it;
}

bool IsGone(const JobRecord& record, const Member& member) {
  return std::ranges::find(record.gone, member) != record.gone.end();
}

}  // namespace muster::coordinator
