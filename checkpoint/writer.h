// Writes checkpoints: one file per rank, and the manifest once all files are known. Nothing here
// commits anything; that is the index's part. README.md has the protocol.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/aligned_buffer.h"
#include "checkpoint/file_system.h"
#include "checkpoint/io_pool.h"
#include "protocol/records.h"
#include "protocol/status.h"

namespace muster::checkpoint {

// Of which checkpoint and which rank a shard is.
struct ShardPlan {
  std::string job;
  CheckpointKey key;
  Lineage lineage;
  Rank rank;
  std::int32_t world_size = 0;
  std::vector<TensorSpec> tensors;     // all of the job, in the order of registration
  std::vector<ListedBox> listed = {};  // what this rank stores of those that are cut kListed
};

// Is `root` a directory to write checkpoints to? Creates it when its parent exists, and proves with
// a small file that it can be written. One clear line otherwise: what is wrong with which path, and
// the remedy. Blocks for the file system. May be called by many processes at once.
Status CheckRoot(FileSystem& fs, const std::string& root);

// Writes the file of one rank. `data` is the data of the file as it will lie there: the parts that
// LayoutOf names, each row-major, one right after the other; it must not change meanwhile. Digests
// and writes go over the pool, straight from this memory. When it returns a record, the file, its
// name and its directory are durable, and it is complete. After an error the file is gone again (as
// far as the file system lets it), older checkpoints are untouched, and another call with the same
// plan takes a new name. kInvalidArgument for tensors that cannot be stored or data of a wrong
// size, kResourceExhausted when the file system lacks the space (asked before anything is written).
// Blocks until all is on the disk; beyond `data` it needs the memory of the header twice. Once
// `*stop` is true, it is given up between two writes, with kInterrupted.
[[nodiscard]] Result<FileRecord> WriteShard(FileSystem& fs, const std::string& root,
                                            const ShardPlan& plan, const AlignedBuffer& data,
                                            IoPool& pool, const std::atomic<bool>* stop = nullptr);

// Writes the manifest of a checkpoint whose files are all durable, and returns its digest once it
// is durable too. The manifest appears whole or not at all; writing it again writes the same bytes.
// kInvalidArgument for a record that does not pass CheckRecord, kNotFound or kDataLoss for one
// whose files are not all there (S08); nothing is written then.
[[nodiscard]] Result<std::uint64_t> WriteManifest(FileSystem& fs, const std::string& root,
                                                  const CheckpointRecord& record);

}  // namespace muster::checkpoint
