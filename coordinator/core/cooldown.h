// Slots that fail again and again. A slot is a worker's name on a node: the place that a process
// comes back to, whatever its incarnation. One that failed a few times in a row has to wait before
// it is taken into a generation again, longer each time, so that a machine that cannot keep a
// worker alive does not stop all the others every few seconds. Pure.
//
// A failure is the loss of a member on evidence about that very worker. What never counts: a
// planned leave, a suspicion that was withdrawn, a worker given up for reasons of the coordinator's
// own (which of two ends of a bad link goes, an adoption, a restart of the coordinator). A process
// that outlived its loss (it had only been silent) is pardoned once; doing so again and again is a
// failure like any other.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "protocol/messages.h"
#include "protocol/time.h"

namespace muster::coordinator {

struct Slot {
  WorkerId worker;
  NodeName node;
  friend auto operator<=>(const Slot&, const Slot&) = default;
};

struct CooldownRules {
  int failures = 3;        // the failure that begins the first cool-down
  Duration first;          // how long that one is; each further one is twice as long
  Duration longest;        // and never longer than this
  Duration forgive_after;  // all is forgotten this long after the last cool-down without a failure
};

// How long a slot cools down after its n-th failure; zero below `rules.failures`.
[[nodiscard]] Duration CooldownAfter(int failures, const CooldownRules& rules);

// Is a worker that was given up for `cause` a failure of its slot? `died`: conclusively.
[[nodiscard]] bool HeldAgainstSlot(Cause cause, bool died);

class CooldownTable {
 public:
  struct Cooling {
    Instant until;
    int failures = 0;
  };

  // A member in `slot` was lost; `died`: its process is known to be dead. What the slot has to wait
  // now, if anything.
  std::optional<Cooling> NoteFailure(const Slot& slot, std::int64_t pid, bool died,
                                     const CooldownRules& rules, Instant now);
  // A worker came to `slot` in this process.
  void NoteReturn(const Slot& slot, std::int64_t pid, const CooldownRules& rules, Instant now);
  // Nothing when a worker in `slot` may be taken.
  [[nodiscard]] std::optional<Cooling> Of(const Slot& slot, Instant now) const;
  // The first end of a cool-down after `now`; Instant::Never() when none is under way.
  [[nodiscard]] Instant NextEnd(Instant now) const;
  [[nodiscard]] std::size_t size() const { return slots_.size(); }
  // All of its state, for those who compare states.
  template <class Visit>
  void VisitState(Visit&& visit) const {
    visit(slots_);
  }

 private:
  struct Entry {
    int failures = 0;
    Instant until;          // of the cool-down after the last failure
    Instant forgiven;       // when nothing is held against the slot any more
    std::int64_t pid = 0;   // of the process whose loss was the last failure; 0: it is dead
    bool pardoned = false;  // it outlived its loss once
  };
  void Forget(Instant now);
  void MakeRoom();

  std::map<Slot, Entry> slots_;  // bounded by kMaxCooldownSlots
};

}  // namespace muster::coordinator
