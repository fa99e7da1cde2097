// When a member that wants to leave, and will be killed if it takes too long, is not waited for any
// more.
//
// A planned leave waits for the next step boundary, on which the members agree, so that no work is
// lost. If the worker will be killed before that (a spot instance with two minutes of notice, in a
// step of ten), the boundary is worth less than the members' state: the generation is interrupted
// while the leaver can still hand over what it alone holds. The step that is open is resolved as
// after any failure; then the rules of every planned leave hold: it goes at once when the others
// have all of the state, and stays for one more generation when going would undo steps. Nobody is
// hurried twice for the same leave, and a worker that outlives its deadline is no worse for it.
#pragma once

#include <algorithm>

#include "protocol/time.h"

namespace muster::coordinator {

// Told at `asked` that it is killed at `by`, it is hurried at this time: when half of the notice is
// over, or when no more than `forming_timeout`, in which any re-form is done, is left.
[[nodiscard]] constexpr Instant HurryAt(Instant asked, Instant by, Duration forming_timeout) {
  const Duration notice = by - asked;
  return asked + std::max(notice / 2, notice - forming_timeout);
}

}  // namespace muster::coordinator
