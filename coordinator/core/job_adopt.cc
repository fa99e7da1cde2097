// What the store knew nothing of, because it was lost: generations whose workers train on, and
// checkpoints of which the directory alone tells.
#include <fmt/format.h>

#include <algorithm>

#include "coordinator/core/durable_state.h"
#include "coordinator/core/job.h"
#include "protocol/mutants.h"
#include "protocol/prng.h"

namespace muster::coordinator {

void Job::StartAdopting(Instant now) {
  adopting_ = true;
  adopt_until_ = now + config_.autonomy + timing().lease;
  if (Planted(Mutant::kCoordinatorTimerFirst)) adopt_until_ = now + config_.autonomy / 2;
  round_.reset();  // nothing was decided in it
  RecountAll();
  quorum_since_.reset();
}

void Job::Adopt(const Hello& hello, Instant now) {
  adoption_[hello.member] = *hello.attachment;
  adoption_dead_.erase(hello.member);
  Publish(
      EventKind::kAdopted, now,
      fmt::format("worker {} reports generation {}; this coordinator's store knew nothing of it",
                  hello.member.worker.value(), hello.attachment->record.generation.value()),
      hello.member);
}

// What a member says of its generation before that is adopted, and says only once.
void Job::NoteWhileAdopting(Worker& worker, const Message& message) {
  const auto it = adoption_.find(worker.member);
  if (it == adoption_.end()) return;
  Attachment& attachment = it->second;
  const auto of_it = [&](const auto* said) {
    return said != nullptr && said->generation == attachment.record.generation;
  };
  if (of_it(std::get_if<Finished>(&message))) worker.finished = true;
  // After these the generation cannot go on as it is.
  if (of_it(std::get_if<Formed>(&message)) || of_it(std::get_if<FormFailed>(&message)) ||
      of_it(std::get_if<OperationFailed>(&message)) || of_it(std::get_if<Stopped>(&message))) {
    attachment.stopped = true;
  }
  // Steps that it has committed since it reported: forced adoption must not call them void.
  const auto* beat = std::get_if<Heartbeat>(&message);
  if (attachment.started && of_it(beat)) {
    attachment.committed = std::max(attachment.committed, beat->committed);
  }
}

// The generation whose state the members of a record that never started still hold. One of them may
// have told it; otherwise the record itself says who had which rank, and the other ranks are lost.
std::optional<GenerationRecord> Job::StartedBefore(const GenerationRecord& record) const {
  for (const auto& [member, attachment] : adoption_) {
    if (record.previous.value() > 0 && attachment.record.generation == record.previous) {
      return attachment.record;
    }
  }
  if (record.restore.source != RestoreSource::kLive) return std::nullopt;
  GenerationRecord before;
  before.generation = record.restore.base;
  before.lineage = record.lineage;
  for (std::int32_t r = 0; r < record.restore.base_world_size; ++r) {
    const auto holder = std::ranges::find(record.members, Rank(r), &MemberEntry::previous_rank);
    MemberEntry entry;
    if (holder != record.members.end()) {
      entry = *holder;
    } else {
      entry.member.worker = WorkerId(fmt::format("lost-rank-{}", r));
    }
    entry.rank = Rank(r);
    entry.previous_rank = Rank(-1);
    before.members.push_back(std::move(entry));
  }
  return before;
}

// Takes over the greatest generation that any worker named, once all its members are here.
void Job::TryAdopt(Instant now) {
  const auto greatest = std::ranges::max_element(
      adoption_, {}, [](const auto& entry) { return entry.second.record.generation; });
  if (greatest == adoption_.end()) {
    adopting_ = adopting_ && now < adopt_until_;
    return;
  }
  const GenerationRecord running = greatest->second.record;
  const bool any = Planted(Mutant::kAdoptOnAnyReport);
  const bool all = any || std::ranges::all_of(running.members, [&](const MemberEntry& entry) {
                     return adoption_.contains(entry.member);
                   });
  if (!all && now < adopt_until_) return;
  adopting_ = false;
  bool has_started = false;
  // Some were interrupted, or are no more.
  bool broken = !all || record_.highest > running.generation || !adoption_dead_.empty();
  const Roster roster = RosterOf(running);
  for (const auto& [member, attachment] : adoption_) {
    if (!roster.contains(member)) continue;
    const bool in_it = attachment.record.generation == running.generation;
    has_started = has_started || (in_it && attachment.started);
    broken = broken || !in_it || !attachment.started || attachment.stopped ||
             attachment.aborted_for > running.generation;
    committed_ = std::max(committed_, attachment.committed);
  }
  found_.clear();  // of what was voided meanwhile nobody there can tell
  record_.lineage = running.lineage;
  SetLatest(running, has_started);
  SetStarted(has_started ? running : StartedBefore(running), now);
  checkpoints_.Adopt(record_, running, effects_);
  // The way back that its record tells of voids what it voided before the store was lost.
  if (running.restore.source != RestoreSource::kLive && running.previous.value() > 0) {
    AddRollback(record_, running.generation, running.restore.step);
  }
  if (!has_started) committed_ = running.restore.step;  // it has committed nothing above that
  std::set<Member> left_out;
  for (const auto& [member, rank] : members_) {
    // Silent for too long, proven dead, or left out by the record that is taken over.
    const bool here = (any || adoption_.contains(member)) && !adoption_dead_.contains(member);
    if (!here || !roster.contains(member)) left_out.insert(member);
  }
  for (const Member& member : left_out) {
    AddGone(member);
    Dismiss(member, false, now);
  }
  for (const auto& [member, attachment] : adoption_) {
    // An earlier record went on without it; what it holds is of the past.
    if (!roster.contains(member)) Dismiss(member, false, now);
  }
  AwaitMembers(now);
  if (!all) ForceOut(running, now);
  adoption_.clear();
  adoption_dead_.clear();
  AskDrained(now);  // who turns out to be a member may have been drained meanwhile
  Persist();
  Publish(EventKind::kAdopted, now,
          fmt::format("adopted generation {} with {} workers at step {}",
                      running.generation.value(), running.world_size(), committed_.value()));
  if (broken) BeginRound(Cause::kCoordinatorRestart, true, now);
}

// The missing members may have gone on in a generation that nobody here has heard of. What they did
// there, and the step that may be open, is void; a fresh lineage keeps their connections and files
// apart from those of the job. It is recorded like a generation that was decided and never started.
void Job::ForceOut(const GenerationRecord& running, Instant now) {
  GenerationRecord forced = running;
  forced.generation = NextGeneration(record_);
  forced.lineage = FreshLineage();
  forced.previous = record_.started ? record_.started->generation : Generation();
  forced.decision = {forced.previous, committed_.Next(), Outcome::kVoid, {}};
  forced.restore.step = committed_;
  record_.lineage = forced.lineage;
  SetLatest(forced, false);
  RecountAll();
  if (!Planted(Mutant::kForceWithoutRollback)) {
    AddRollback(record_, forced.generation, committed_);
  }
  Publish(
      EventKind::kRolledBack, now,
      fmt::format("adopted without all members: every step above {} is void", committed_.value()));
}

// A store that knows no generation of this job may be a new one. What lies in the checkpoint
// directory is then all that is left of the job, unless workers report that are in a generation.
void Job::NoteFound(const Hello& hello, Instant now) {
  // Numbers above all that name a directory: none is ever used again.
  RaiseHighest(record_, hello.found->highest);
  const bool first = found_.empty();
  for (const FoundCheckpoint& one : hello.found->checkpoints) {
    found_.insert_or_assign({one.key.generation, one.key.step}, one);
    if (found_.size() > kMaxFound) found_.erase(found_.begin());
  }
  if (!first || found_.empty()) return;
  const CheckpointKey& newest = found_.rbegin()->second.key;
  Publish(EventKind::kAdopted, now,
          fmt::format("worker {} found the checkpoint {} of this job, of which this coordinator's "
                      "store knows nothing",
                      hello.member.worker.value(), CheckpointDirectory(newest)),
          hello.member);
}

// With the first decision, so that until then a generation that still lives can be adopted instead.
void Job::TakeUpFound(Instant now) {
  if (found_.empty() || adopting_) return;
  std::vector<FoundCheckpoint> found;
  for (const auto& [order, one] : found_) found.push_back(one);
  found_.clear();
  checkpoints_.TakeUp(record_, found, effects_);
  const CheckpointKey& newest = found.back().key;
  Publish(EventKind::kAdopted, now,
          fmt::format("the job goes on from step {}: {} was found in the checkpoint directory, and "
                      "the index did not know it",
                      newest.step.value(), CheckpointDirectory(newest)));
}

void Job::ForceAdopt(Instant now) {
  if (adopting_) adopt_until_ = now;
  if (round_) {
    round_->autonomy_until = now;
    round_->forced = true;
    round_->stale = true;
  }
  Evaluate(now);
}

}  // namespace muster::coordinator
