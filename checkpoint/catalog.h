// What lies in a checkpoint root, for people and their tools: no coordinator is asked, and none is
// told.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "checkpoint/io_pool.h"
#include "checkpoint/manifest.h"
#include "protocol/ids.h"
#include "protocol/records.h"
#include "protocol/status.h"

namespace muster::checkpoint {

// A directory whose name is that of a checkpoint.
struct CatalogEntry {
  std::string directory;  // its name below the root
  CheckpointKey key;
  // Or why there is none that can be used: kNotFound for a save that is not finished, or never will
  // be; kDataLoss for one that is damaged, or that names files which are not there.
  Result<Manifest> manifest;
  std::int64_t bytes = 0;  // by the manifest, otherwise of the shard files that are there
  bool pinned = false;
};

// Looks at one of them: its manifest and the names in it, not the files themselves. kNotFound when
// there is no such directory, kInvalidArgument when its name is not that of a checkpoint.
[[nodiscard]] Result<CatalogEntry> LookAt(FileSystem& fs, const std::string& root,
                                          const std::string& directory);

// All of them in the order of their commits: by generation, then by step. One that goes meanwhile
// is left out. Blocks for the disk, for a manifest each.
[[nodiscard]] Result<std::vector<CatalogEntry>> ListCheckpoints(FileSystem& fs,
                                                                const std::string& root);

// Keeps retention from removing the checkpoint, or lets it go again; durably. Ok when that is how
// it was. kNotFound when there is no such directory. Blocks.
Status SetPinned(FileSystem& fs, const std::string& root, const std::string& directory,
                 bool pinned);

struct RebuildOptions {
  IoPool* pool = nullptr;  // as ReadOptions has it
  bool write = true;       // false: all but the last step
  // Is told the record that was put together, before its bytes are verified.
  std::function<void(const CheckpointRecord& record)> found = {};
  // As ReadOptions has it.
  std::function<void(std::int64_t bytes)> progress = {};
};

// The record that the headers of the shard files in a checkpoint's directory add up to. Of each
// rank the file of the last attempt that is whole counts; all have to be of one save, and together
// they hold every tensor exactly once. kNotFound names what is missing (the save was never
// finished), kDataLoss what contradicts. Reads headers alone.
[[nodiscard]] Result<CheckpointRecord> AssembleRecord(FileSystem& fs, const std::string& root,
                                                      const std::string& directory);

// Gives a checkpoint whose manifest is gone or damaged a new one, after every byte of its files has
// been verified, and returns its digest. kAlreadyExists when it has one that can be read (also by
// another version alone); nothing is touched then. Otherwise fails as AssembleRecord and
// VerifyCheckpoint do. Nobody else may write below the root meanwhile: a save that is under way
// looks like one whose manifest is gone. Blocks.
[[nodiscard]] Result<std::uint64_t> RebuildManifest(FileSystem& fs, const std::string& root,
                                                    const std::string& directory,
                                                    const RebuildOptions& options = {});

}  // namespace muster::checkpoint
