// Makes of the coordinator's twin with the planted bugs one that has the bug named in
// MUSTER_SABOTAGE, before main() begins.
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "protocol/mutants.h"

namespace {

[[maybe_unused]] const bool planted = [] {
  const char* chosen = getenv("MUSTER_SABOTAGE");
  const std::string name = chosen == nullptr ? "" : chosen;
  for (const muster::MutantInfo& info : muster::MutantTable()) {
    if (info.name == name) muster::Plant(info.mutant);
  }
  if (name == "flood-log") {
    std::thread([] {
      while (true) {
        const std::string line = "still here\n";
        (void)!write(STDERR_FILENO, line.data(), line.size());
        poll(nullptr, 0, 1);
      }
    }).detach();
  }
  return true;
}();

}  // namespace
