// Writes a checkpoint as the plain safetensors files that other tools load: whole tensors under
// their own names, whatever the world size at which it was saved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "checkpoint/io_pool.h"
#include "protocol/records.h"
#include "protocol/status.h"

namespace muster::checkpoint {

struct ExportOptions {
  // Bytes of tensors in one file, which a larger tensor passes alone; 0: all go to one file.
  std::int64_t part_bytes = 0;
  // Writes aliases as tensors of their own; otherwise the metadata says what they stand for.
  bool copy_aliases = false;
};

// A tensor in a file of an export.
struct ExportTensor {
  std::size_t index = 0;   // in the record's list
  std::int64_t begin = 0;  // bytes from the start of the data
  std::int64_t end = 0;
};
struct ExportFile {
  std::string name;
  std::string prefix;                 // all before the data
  std::vector<ExportTensor> tensors;  // in the order of the data, which they fill
  [[nodiscard]] std::int64_t data_bytes() const { return tensors.empty() ? 0 : tensors.back().end; }
};

// What an export consists of.
struct ExportPlan {
  std::string directory;  // that the files go to
  bool parts = false;     // the directory is made if need be, and holds no other model then
  std::vector<ExportFile> files;
  std::string index;            // content of kExportIndexName; empty when there is none
  std::int64_t data_bytes = 0;  // of all tensors
};

// In a directory of parts: a single one is model.safetensors and has no index; several are
// model-00001-of-0000N.safetensors, and the index says which tensor is in which.
inline constexpr const char* kExportIndexName = "model.safetensors.index.json";

// With a part size `target` is a directory, and tensors are dealt to parts in the order of
// registration; without, it is the file. In each file larger elements come first, so that tensors
// are aligned. Types are those that are stored; what a logical type says is in the metadata:
//   format             pt
//   muster.job, muster.step, muster.generation
//   muster.logical_dtypes, muster.aliases   JSON: name to type, alias to name; of this file
// kInvalidArgument when there are too many tensors for one header, or `target` lies in a
// checkpoint. Pure. REQUIRES: the record passed CheckRecord.
[[nodiscard]] Result<ExportPlan> PlanExport(const CheckpointRecord& record,
                                            const std::string& target,
                                            const ExportOptions& options);

// How the plan is carried out.
struct ExportRun {
  bool force = false;  // replaces what has the names of the export
  // Memory for tensors on their way, rounded up to the alignment; the reader has its own besides.
  std::int64_t buffer_bytes = std::int64_t{256} << 20U;
  // Is told how many more bytes of tensors have been written. Called by any thread, by several at
  // once.
  std::function<void(std::int64_t bytes)> progress = {};
};

// Reads the checkpoint, verifying every block, and writes the files. They appear under their names
// when all are durable, and an index after them; until then nothing there has changed.
// kAlreadyExists when something is in the way and `force` is not set,
// kResourceExhausted when the file system lacks the space (asked before it starts); kDataLoss as
// LoadBoxes. Blocks. REQUIRES: a plan of PlanExport for this record.
Status Export(FileSystem& fs, const std::string& root, const CheckpointRecord& record,
              const ExportPlan& plan, IoPool& pool, const ExportRun& run = {});

}  // namespace muster::checkpoint
