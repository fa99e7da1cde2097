// `muster checkpoint …`: looks into, verifies, repairs and exports checkpoints on a disk, without a
// coordinator.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/file_system.h"

namespace muster::cli {

struct CheckpointOptions {
  // A root (a job's checkpoint directory), or one checkpoint in it (…/s<step>-g<generation>).
  std::string path;
  std::string target;         // export: where to
  bool json = false;          // ls, show
  bool tensors = false;       // show: every tensor and every file
  bool dry_run = false;       // reindex: nothing is written
  bool force = false;         // export: replaces what is there
  bool copy_aliases = false;  // export: as tensors of their own
  // Export to a directory: of one file. The default is that of other tools.
  std::int64_t part_bytes = 5'000'000'000;
};

// Each prints its result to stdout, progress of long work to stderr, and returns what the process
// should exit with: 0, or 1 after a line on stderr for each thing that is wrong, with the remedy
// where there is one.

[[nodiscard]] int RunCheckpointLs(checkpoint::FileSystem& fs, const CheckpointOptions& options);
[[nodiscard]] int RunCheckpointShow(checkpoint::FileSystem& fs, const CheckpointOptions& options);
// 1 also when there is nothing to verify. Of a root, saves without a manifest are passed over.
[[nodiscard]] int RunCheckpointVerify(checkpoint::FileSystem& fs, const CheckpointOptions& options);
// Saves that were never finished are left alone, and nothing is wrong with that.
[[nodiscard]] int RunCheckpointReindex(checkpoint::FileSystem& fs,
                                       const CheckpointOptions& options);
[[nodiscard]] int RunCheckpointExport(checkpoint::FileSystem& fs, const CheckpointOptions& options);
[[nodiscard]] int RunCheckpointPin(checkpoint::FileSystem& fs, const CheckpointOptions& options);
[[nodiscard]] int RunCheckpointUnpin(checkpoint::FileSystem& fs, const CheckpointOptions& options);

}  // namespace muster::cli
