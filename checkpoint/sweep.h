// Removes what saves left behind that died or were given up, and that will never count.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "protocol/records.h"
#include "protocol/status.h"

namespace muster::checkpoint {

// A checkpoint's key is stale when it is of an earlier generation than `generation`, or of that one
// and of an earlier step than `step`. Whoever gives the rule (the coordinator) vouches that of the
// stale ones those in `known` alone can ever count from then on: reports about any other are
// refused. So a rank of an older generation that still writes, and one that has been paused for
// hours, only adds to what nobody will ever name; the next sweep takes it.
struct SweepRule {
  Generation generation;
  Step step;
  std::vector<CheckpointKey> known;
  // Probes of CheckRoot that the sweep before this one has seen.
  std::vector<std::string> probes;
};

struct SweepReport {
  std::int64_t directories = 0;     // removed
  std::int64_t files = 0;           // removed, those in the directories among them
  std::vector<std::string> probes;  // there now, for the next rule
};

// Removes below `root`
// - directories of stale keys that are not in `known`, hold no manifest, and nothing but what a
//   save writes: no pin, no sub-directory, no file of any other name;
// - in the other directories of stale keys that hold a whole manifest: manifests that were never
//   renamed, and attempts at a shard that the manifest does not name;
// - probes that were there in the sweep before already: a live one exists for milliseconds.
// Everything else is left alone. What is gone meanwhile is ok, so several processes may sweep at
// once. Goes on after an error and returns the first. Blocks.
[[nodiscard]] Result<SweepReport> SweepLeftovers(FileSystem& fs, const std::string& root,
                                                 const SweepRule& rule);

}  // namespace muster::checkpoint
