#include "coordinator/core/cooldown.h"

#include <algorithm>

#include "protocol/limits.h"

namespace muster::coordinator {

namespace {
constexpr int kMostDoublings = 32;
}  // namespace

Duration CooldownAfter(int failures, const CooldownRules& rules) {
  if (failures < rules.failures) return {};
  Duration wait = rules.first;
  for (int i = rules.failures; i < failures && i < rules.failures + kMostDoublings; ++i) {
    if (wait > rules.longest / 2) return rules.longest;
    wait = wait * 2;
  }
  return std::min(wait, rules.longest);
}

bool HeldAgainstSlot(Cause cause, bool died) {
  switch (cause) {
    case Cause::kProcessDied:
    case Cause::kLeaseExpired:
    case Cause::kNoProgress:
    case Cause::kFormingFailed: return true;
    // One that gave up its incarnation by itself was not lost.
    case Cause::kConnectionLost: return !died;
    // A bad link has two ends, and which of them went was a choice.
    case Cause::kOperationFailed:
    case Cause::kFirstFormation:
    case Cause::kGrowth:
    case Cause::kLeave:
    case Cause::kCoordinatorRestart: return false;
  }
  return false;
}

std::optional<CooldownTable::Cooling> CooldownTable::NoteFailure(const Slot& slot, std::int64_t pid,
                                                                 bool died,
                                                                 const CooldownRules& rules,
                                                                 Instant now) {
  Forget(now);
  if (!slots_.contains(slot)) MakeRoom();
  Entry& entry = slots_[slot];
  if (entry.failures < rules.failures + kMostDoublings) ++entry.failures;
  entry.until = now + CooldownAfter(entry.failures, rules);
  entry.forgiven = entry.until + rules.forgive_after;
  entry.pid = died ? 0 : pid;
  return Of(slot, now);
}

void CooldownTable::NoteReturn(const Slot& slot, std::int64_t pid, const CooldownRules& rules,
                               Instant now) {
  Forget(now);
  const auto it = slots_.find(slot);
  if (it == slots_.end()) return;
  Entry& entry = it->second;
  const bool outlived = pid != 0 && pid == entry.pid;
  entry.pid = 0;
  if (!outlived || entry.pardoned) return;
  entry.pardoned = true;
  --entry.failures;
  entry.until = std::min(entry.until, now + CooldownAfter(entry.failures, rules));
}

std::optional<CooldownTable::Cooling> CooldownTable::Of(const Slot& slot, Instant now) const {
  const auto it = slots_.find(slot);
  if (it == slots_.end() || it->second.until <= now) return std::nullopt;
  return Cooling{it->second.until, it->second.failures};
}

Instant CooldownTable::NextEnd(Instant now) const {
  Instant next = Instant::Never();
  for (const auto& [slot, entry] : slots_) {
    if (entry.until > now) next = std::min(next, entry.until);
  }
  return next;
}

void CooldownTable::Forget(Instant now) {
  std::erase_if(slots_, [&](const auto& entry) { return entry.second.forgiven <= now; });
}

// The slot that would be forgiven first goes: what it did is the longest ago.
void CooldownTable::MakeRoom() {
  if (slots_.size() < kMaxCooldownSlots) return;
  slots_.erase(std::ranges::min_element(slots_, {},
                                        [](const auto& entry) { return entry.second.forgiven; }));
}

}  // namespace muster::coordinator
