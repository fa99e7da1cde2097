// A world of its own for a run: PID, mount and network namespaces, which the kernel takes apart
// when the last process in them has ended, however that came about. No process, mount, link or
// address of a run can outlive it. As root, or as a user where the kernel allows user namespaces.
#pragma once

#include <string>
#include <vector>

#include "chaos/live/scenario.h"
#include "protocol/status.h"

namespace muster::chaos {

// What came of EnterSandbox for the one who goes on inside.
struct Sandbox {
  Powers powers;
  // Why something is missing, one line each, with the remedy; empty when nothing is.
  std::vector<std::string> lacks;
};

// Returns only inside, in a process that is number 1 of its PID namespace (or, where no namespace
// can be made, in the calling process, with nothing but `lacks`). The calling process stays
// outside: it hands SIGINT and SIGTERM on, waits, and exits with the code of the one inside; when
// it is killed, the one inside and all of its processes die with it. To be called first in main(),
// before any thread is started.
[[nodiscard]] Sandbox EnterSandbox();

// Directories of runs whose lab has died are removed: those named `<parent>/<prefix>-*` that hold a
// file "lock" which nobody has locked. Returns what it removed.
std::vector<std::string> RemoveResidue(const std::string& parent, const std::string& prefix);
// Locks `<directory>/lock` for as long as this process lives, so that RemoveResidue leaves it
// alone.
[[nodiscard]] Status ClaimDirectory(const std::string& directory);

// Reaps children that are not in `known` and have ended; running ones are left alone.
void ReapEnded(const std::vector<int>& known);

}  // namespace muster::chaos
