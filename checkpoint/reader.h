// Reads checkpoints: the manifest, and the wanted boxes of its tensors, cut as the caller likes.
// Nothing is taken from a file that was not verified. README.md has the format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "checkpoint/io_pool.h"
#include "checkpoint/manifest.h"
#include "protocol/records.h"
#include "protocol/status.h"

namespace muster::checkpoint {

// A box of a tensor, and where its elements go.
struct WantedBox {
  std::size_t tensor = 0;  // in the record's list; an alias is as good as what it stands for
  Box box;
  std::span<std::byte> into;  // not owned; without strides: exactly the box, row-major
  // Of a target that is not contiguous: the step from element to element along each dimension, in
  // elements, and the place of the box's first element; see Placement in reshard.h.
  std::vector<std::int64_t> strides = {};
  std::int64_t offset = 0;
};

// A box that is in memory already, row-major, and need not be read. Its bytes are believed.
struct LiveBox {
  std::size_t tensor = 0;
  Box box;
  std::span<const std::byte> bytes;  // not owned
};

struct ReadOptions {
  // Works on several blocks at once; null: one after the other.
  IoPool* pool = nullptr;
  // What is taken from memory instead of files, for LoadBoxes alone.
  std::span<const LiveBox> live = {};
  // Is asked after a file that the record names was not found; true means try again. A network file
  // system may show an older state of a directory for a while. Null: no second attempt. Called by
  // any thread.
  std::function<bool(const Status& problem)> retry = {};
  // Is told how many more bytes have been read. Called by any thread, by several at once.
  std::function<void(std::int64_t bytes)> progress = {};
  // Is told of each file and each block that is damaged, and reading goes on: for VerifyCheckpoint
  // alone. Null: the first damage ends it. Called by any thread, by several at once.
  std::function<void(Rank rank, const Status& damage)> damaged = {};
};

struct LoadReport {
  std::int64_t files = 0;       // opened
  std::int64_t bytes_read = 0;  // from all files, headers included
  std::int64_t bytes_used = 0;  // of them, copied to where they were wanted
  std::int64_t bytes_live = 0;  // copied from memory
};

// Reads and verifies `manifest.json` of the checkpoint in `directory` (its name below the root).
// With `digest` (which the coordinator names) also that it is the very manifest that was announced.
// kDataLoss, naming the file, when it is not; kNotFound when there is none.
[[nodiscard]] Result<Manifest> ReadManifest(FileSystem& fs, const std::string& root,
                                            const std::string& directory,
                                            std::optional<std::uint64_t> digest = std::nullopt);

// Fills all wanted boxes, at whatever world size the checkpoint was saved. Only the blocks that
// hold something wanted are read, neighbouring ones at once, each is verified before a byte of it
// is used, and every element of every buffer is accounted for. Blocks for the disk; beyond the
// buffers it needs about 4 MiB for each thread of the pool, and the headers of 16 files. kDataLoss
// names the file (and the block) that is missing, damaged or of another checkpoint: the buffers
// then hold anything, and that checkpoint is not to be used. kInvalidArgument for a record that
// does not pass CheckRecord, or a box that does not fit.
[[nodiscard]] Result<LoadReport> LoadBoxes(FileSystem& fs, const std::string& root,
                                           const CheckpointRecord& record,
                                           std::span<const WantedBox> wanted,
                                           const ReadOptions& options = {});

// Reads every byte of the checkpoint and verifies it. As LoadBoxes for everything else.
[[nodiscard]] Status VerifyCheckpoint(FileSystem& fs, const std::string& root,
                                      const CheckpointRecord& record,
                                      const ReadOptions& options = {});

}  // namespace muster::checkpoint
