// L1 and S2, re-forming is bounded and never needless: a generation has as many members as the job
// asks for, the windows for joins and for failures that belong together end, a full job does not
// re-form to grow, and live state that well members hold is not given up.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "chaos/sim/checkers/verdict.h"
#include "chaos/sim/piece.h"
#include "coordinator/core/effects.h"
#include "protocol/records.h"

namespace muster::sim {

// A worker that has been well for long, in the generation that is being left.
struct Holder {
  Member member;
  Piece held;
};

class Reforming {
 public:
  // How long joins, and failures that belong together, may be waited for.
  Reforming(Duration join_window, Duration settle) : join_window_(join_window), settle_(settle) {}

  // A durable record. `holders` are the well members of record.started, as their memory is.
  void OnRecord(const JobRecord& record, const std::vector<Holder>& holders, std::int64_t elements,
                Verdict& verdict);
  void OnStarted(const coordinator::Incident& incident, const JobSpec& spec,
                 Verdict& verdict) const;
  // What status shows, once in a while.
  void OnWaiting(Generation forming, const std::string& waiting_for, Instant now, Verdict& verdict);
  // Enough workers for the first generation are there, since `quorum`, and nothing has gone wrong.
  void OnFirstFormation(Instant quorum, Instant now, Verdict& verdict) const;

  // All of its state, for those who compare states.
  template <class Visit>
  void VisitState(Visit&& visit) const {
    visit(given_up_, judged_, started_, members_, members_before_);
  }

 private:
  Duration join_window_;
  Duration settle_;
  Generation judged_;
  Generation started_;
  std::set<Member> members_;         // of the last one that started
  std::set<Member> members_before_;  // and of the one before
  Generation given_up_;              // whose state a record has given up
  std::optional<Instant> settling_;
  Generation settling_for_;
};

}  // namespace muster::sim
