// Counts over all workers, kept as each of them changes.
#include <algorithm>
#include <utility>

#include "coordinator/core/job.h"

namespace muster::coordinator {

namespace {

// What a worker counts for.
constexpr std::uint32_t kHere = 1U << 0U;
constexpr std::uint32_t kGrower = 1U << 1U;
constexpr std::uint32_t kLeaving = 1U << 2U;
constexpr std::uint32_t kStopped = 1U << 3U;
constexpr std::uint32_t kFinished = 1U << 4U;
constexpr std::uint32_t kFinishCalled = 1U << 5U;
constexpr std::uint32_t kSound = 1U << 6U;
constexpr std::uint32_t kSoundLatest = 1U << 7U;
constexpr std::uint32_t kUnseen = 1U << 8U;
constexpr std::uint32_t kUsable = 1U << 9U;
constexpr std::uint32_t kOwing = 1U << 10U;
constexpr std::uint32_t kDroppable = 1U << 11U;
// These change a decision without being counted.
constexpr std::uint32_t kConnected = 1U << 12U;
constexpr std::uint32_t kSticky = 1U << 13U;
constexpr std::uint32_t kDead = 1U << 14U;

}  // namespace

Job::Roster Job::RosterOf(const GenerationRecord& record) {
  Roster roster;
  roster.reserve(record.members.size());
  for (const MemberEntry& entry : record.members) roster.emplace(entry.member, entry.rank);
  return roster;
}

std::uint32_t Job::CountsFor(const Worker& worker) const {
  const Member& member = worker.member;
  const bool suspect = worker.suspicion.has_value();
  const bool in_started = IsMember(member);
  const bool in_latest = latest_members_.contains(member);
  const bool survivor = in_started && !Gone(member);
  const bool answered = round_ && round_->ready.contains(member);
  const bool asking = round_ && !round_->assigned;
  const bool live = worker.connected && !suspect;
  const bool able = worker.able && !worker.drained;
  const bool willing = live && able && !worker.leaving;
  const bool counts = survivor || (round_ && round_->assigned && in_latest);
  std::uint32_t what = 0;
  const auto add = [&what](bool holds, std::uint32_t bit) { what |= holds ? bit : 0U; };
  add(worker.connected, kConnected);
  add(suspect && worker.suspicion->sticky, kSticky);
  add(suspect && worker.suspicion->dead, kDead);
  add(worker.connected && able, kHere);
  add(willing && !in_started && !worker.cooling, kGrower);
  add(in_started && worker.leaving, kLeaving);
  add(in_started && worker.stopped, kStopped);
  add(in_started && worker.finished, kFinished);
  add(in_started && worker.finish_called, kFinishCalled);
  add(in_started && !suspect, kSound);
  add(in_latest && !suspect, kSoundLatest);
  add(survivor && !suspect && !worker.connected, kUnseen);
  add(willing && answered, kUsable);
  add(live && asking && !answered, kOwing);
  add((suspect || worker.leaving) && !counts, kDroppable);
  return what;
}

void Job::Count(Tally& tally, std::uint32_t what, std::int32_t by) {
  const auto add = [&](std::uint32_t bit, std::int32_t& count) {
    if ((what & bit) != 0) count += by;
  };
  add(kHere, tally.here);
  add(kGrower, tally.growers);
  add(kLeaving, tally.leaving);
  add(kStopped, tally.stopped);
  add(kFinished, tally.finished);
  add(kFinishCalled, tally.finish_called);
  add(kSound, tally.sound);
  add(kSoundLatest, tally.sound_latest);
  add(kUnseen, tally.unseen);
  add(kUsable, tally.usable);
}

void Job::Recount(Worker& worker) {
  const std::uint32_t what = CountsFor(worker);
  if (what == worker.counted && ((what & kOwing) == 0 || worker.asked == worker.counted_asked)) {
    return;
  }
  // What a member is, or was, may change a decision; that of others shows in the counts alone.
  if (round_ && IsMember(worker.member)) round_->stale = true;
  Count(tally_, worker.counted, -1);
  Count(tally_, what, 1);
  if ((worker.counted & kOwing) != 0) tally_.owing.erase({worker.counted_asked, worker.member});
  if ((what & kOwing) != 0) tally_.owing.emplace(worker.asked, worker.member);
  if ((worker.counted & kDroppable) != 0) tally_.droppable.erase(worker.member);
  if ((what & kDroppable) != 0) tally_.droppable.insert(worker.member);
  worker.counted = what;
  worker.counted_asked = worker.asked;
}

void Job::SetLatest(GenerationRecord record, bool started) {
  latest_members_ = RosterOf(record);
  record_.latest = std::move(record);
  record_.latest_started = started;
}

void Job::RecountAll() {
  gone_ = {record_.gone.begin(), record_.gone.end()};
  tally_ = Tally();
  for (auto& [member, worker] : workers_) {
    worker.counted = 0;
    Recount(worker);
  }
  if (round_) round_->stale = true;
}

bool Job::CountsAreExact() const {
  if (record_.end) return true;  // nothing is decided any more
  Tally walked;
  bool exact = gone_ == std::set<Member>(record_.gone.begin(), record_.gone.end()) &&
               members_ == (record_.started ? RosterOf(*record_.started) : Roster()) &&
               latest_members_ == (record_.latest ? RosterOf(*record_.latest) : Roster());
  for (const auto& [member, worker] : workers_) {
    const std::uint32_t what = CountsFor(worker);
    exact = exact && what == worker.counted;
    Count(walked, what, 1);
    if ((what & kOwing) != 0) walked.owing.emplace(worker.asked, member);
    if ((what & kDroppable) != 0) walked.droppable.insert(member);
  }
  if (round_ && round_->assigned) {
    const auto formed = std::ranges::count_if(
        round_->formed, [&](const auto& entry) { return latest_members_.contains(entry.first); });
    exact = exact && formed == round_->members_formed;
  }
  return exact && walked == tally_;
}

void Job::AddGone(const Member& member) {
  record_.gone.push_back(member);
  gone_.insert(member);
  if (const auto it = workers_.find(member); it != workers_.end()) Recount(it->second);
}

// Takes a worker out of all that is kept of workers.
void Job::Forget(const Member& member) {
  const auto it = workers_.find(member);
  if (it == workers_.end()) return;
  Worker& worker = it->second;
  if (round_ && IsMember(member)) round_->stale = true;
  if (round_) round_->ready.erase(member);
  if (BySession(worker.session) == &worker) by_session_.erase(worker.session);
  Count(tally_, worker.counted, -1);
  tally_.owing.erase({worker.counted_asked, member});
  tally_.droppable.erase(member);
  if (const auto node = by_node_.find(worker.node); node != by_node_.end()) {
    node->second.erase(member);
    if (node->second.empty()) by_node_.erase(node);
  }
  workers_.erase(it);
}

}  // namespace muster::coordinator
