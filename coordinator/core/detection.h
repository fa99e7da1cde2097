// Who is to be taken for dead, and on what evidence. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/config.h"
#include "protocol/messages.h"

namespace muster::coordinator {

struct SilenceView {
  Instant now;
  bool connected = false;
  Instant closed_at;  // when not connected
  Instant last_heard;
  bool launcher_says_alive = false;
  bool mass_close = false;  // many sessions closed together: the transport, not the workers
  Timing timing;
};
struct SilenceVerdict {
  bool suspect = false;
  Cause cause = Cause::kLeaseExpired;
  Instant look_again;  // when not suspect
};
// A closed session counts after the grace, silence after the lease. A launcher that says the
// process lives, or a mass closing, leaves a closed session to the lease.
[[nodiscard]] SilenceVerdict JudgeSilence(const SilenceView& view);

struct ProgressView {
  Member member;
  std::uint64_t operations = 0;  // begun in this generation
  bool waiting = false;          // inside one now
  Stage stage = Stage::kIdle;
  Duration unchanged;           // since its last change of `operations`, `stage` or `waiting`
  bool phase_in_force = false;  // the user named a phase whose deadline has not passed
};
struct Straggler {
  Member member;
  std::uint64_t missing_operation = 0;  // that others wait in
  Duration behind;                      // how long they have waited
};
// The ranks that have not entered the operation in which others have waited for `timeout` or more.
// Arrival order at the operation decides, not durations: the collective makes those equal.
[[nodiscard]] std::vector<Straggler> FindStragglers(const std::vector<ProgressView>& members,
                                                    Duration timeout);

// A small set of workers that covers all bad pairs: again and again the one in most of them, the
// greater one on a tie (greedy vertex cover).
[[nodiscard]] std::vector<Member> CoverBadPairs(std::vector<std::pair<Member, Member>> pairs);

}  // namespace muster::coordinator
