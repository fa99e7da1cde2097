#include "chaos/sim/hunt.h"

namespace muster::sim {

std::vector<SmallSearch> SmallSearches() {
  std::vector<SmallSearch> all;
  const auto add = [&](const char* name, int workers, Budget budget, bool sharded) {
    SmallSearch& search = all.emplace_back(SmallSearch{name, ExploreOptions::Small(workers)});
    search.options.budget = budget;
    search.options.from_start = false;
    search.options.job.sharded = sharded;
    search.options.max_states = 200'000;
  };
  add("no fault", 2, {}, false);
  add("1 cut", 2, {.cuts = 1}, false);
  add("1 early timer", 2, {.early_timers = 1}, false);
  add("1 coordinator crash", 2, {.coordinator_crashes = 1}, false);
  add("1 store loss", 2, {.store_losses = 1}, false);
  add("1 leave", 2, {.leaves = 1}, false);
  add("1 failed call", 2, {.failures = 1}, false);
  add("sharded, 1 failed call", 2, {.failures = 1}, true);
  add("1 kill", 2, {.kills = 1}, false);
  add("sharded, 1 coordinator crash", 2, {.coordinator_crashes = 1}, true);
  add("sharded, 1 leave", 2, {.leaves = 1}, true);
  add("sharded, 1 kill", 2, {.kills = 1}, true);
  add("1 pause", 2, {.pauses = 1}, false);
  add("1 block, 1 early timer", 2, {.blocks = 1, .early_timers = 1}, false);
  add("sharded, 1 pause", 2, {.pauses = 1}, true);
  add("2 coordinator crashes", 2, {.coordinator_crashes = 2}, false);
  add("1 kill, 1 cut", 2, {.kills = 1, .cuts = 1}, false);
  add("1 failed call, 1 coordinator crash", 2, {.coordinator_crashes = 1, .failures = 1}, false);
  add("1 failed call, 1 kill", 2, {.kills = 1, .failures = 1}, false);
  all.back().options.max_states = 1'000'000;  // the shortest that decide a step twice
  add("1 failed call, 1 leave", 2, {.leaves = 1, .failures = 1}, false);
  add("sharded, 1 failed call, 1 crash", 2, {.coordinator_crashes = 1, .failures = 1}, true);
  add("sharded, 1 failed call, 1 kill", 2, {.kills = 1, .failures = 1}, true);
  add("1 kill, 1 coordinator crash", 2, {.kills = 1, .coordinator_crashes = 1}, false);
  add("3 workers, 1 kill", 3, {.kills = 1}, false);
  add("3 workers, 1 early timer", 3, {.early_timers = 1}, false);
  add("3 workers, 2 kills", 3, {.kills = 2}, false);
  // Where a generation is being formed again while its id is on the way.
  add("nccl, 1 failed call, 1 kill", 2, {.kills = 1, .failures = 1}, false);
  all.back().options.job.backend = Backend::kNccl;
  return all;
}

}  // namespace muster::sim
