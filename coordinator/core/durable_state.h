// Pure helpers on the durable record of a job: numbering, rollbacks, what is void.
#pragma once

#include "protocol/records.h"

namespace muster::coordinator {

// A checkpoint with kCheckpointStrikes failed starts is in quarantine; one with this number of them
// has bad bytes, and is struck out.
inline constexpr int kDamagedStrikes = 1000;

// Takes the next generation number; it is above every number used or heard of.
Generation NextGeneration(JobRecord& record);
// Notes that a member or a worker knows of `seen`: no later number may be at or below it.
void RaiseHighest(JobRecord& record, Generation seen);
// "Generation g goes back to step r": every step above r of all earlier generations is void, known
// or not. Rollbacks that the new one implies are dropped.
void AddRollback(JobRecord& record, Generation generation, Step step);
// Drops the rollbacks that void nothing which can still come: only `writer` and later generations
// report saves any more, and what was reported before is marked where it is kept.
void DropMootRollbacks(JobRecord& record, Generation writer);
// Did a rollback go below this checkpoint after it was taken?
[[nodiscard]] bool IsVoid(const JobRecord& record, const CheckpointKey& key);
// The member of this record, or nullptr.
[[nodiscard]] const MemberEntry* Find(const GenerationRecord& record, const Member& member);
// Is the member in `record.gone`?
[[nodiscard]] bool IsGone(const JobRecord& record, const Member& member);

}  // namespace muster::coordinator
