// Runs that never were, for the tests of the report: as the lab would have seen them.
#pragma once

#include <string>
#include <vector>

#include "chaos/live/evidence.h"

namespace muster::chaos {

// Four workers in three minutes: a kill, a pause, a coordinator that restarts, a cut link, and one
// fault that could not be made.
[[nodiscard]] Evidence EventfulRun();
// 40 workers with names made to break a page, and 300 faults.
[[nodiscard]] Evidence HostileRun();
// Nothing came of it: no record, no process, no time.
[[nodiscard]] Evidence EmptyRun();

// One finding of each outcome if `broken`; otherwise none that is broken.
[[nodiscard]] std::vector<Finding> SomeFindings(bool broken);

// Markup, a quote of each kind, a control character, a byte that is no UTF-8, and letters beyond
// ASCII.
[[nodiscard]] std::string HostileText();

}  // namespace muster::chaos
