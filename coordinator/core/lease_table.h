// Deadlines of many things that are renewed far more often than they run out. A renewal costs
// nothing here: the owner only remembers when it last heard, and the table asks again when the
// deadline that it knows has come.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "protocol/ids.h"
#include "protocol/time.h"

namespace muster::coordinator {

class LeaseTable {
 public:
  // Looks at `member` again at `at`. Several entries of one member are harmless.
  void Watch(Instant at, const Member& member) { entries_.emplace(at, member); }
  [[nodiscard]] std::size_t size() const { return entries_.size(); }
  // Instant::Never() when nothing is watched.
  [[nodiscard]] Instant Next() const {
    return entries_.empty() ? Instant::Never() : entries_.begin()->first;
  }
  // Removes and returns those that are due at `now`.
  [[nodiscard]] std::vector<Member> Due(Instant now) {
    std::vector<Member> due;
    while (!entries_.empty() && entries_.begin()->first <= now) {
      due.push_back(entries_.begin()->second);
      entries_.erase(entries_.begin());
    }
    return due;
  }
  // All of its state, for those who compare states.
  template <class Visit>
  void VisitState(Visit&& visit) const {
    visit(entries_);
  }

 private:
  std::set<std::pair<Instant, Member>> entries_;
};

}  // namespace muster::coordinator
