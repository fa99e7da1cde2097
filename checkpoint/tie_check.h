// Two tensors that were stored apart and are to become one have to be equal.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "checkpoint/match.h"
#include "checkpoint/reader.h"
#include "protocol/records.h"
#include "protocol/status.h"

namespace muster::checkpoint {

// Reads both tensors of each tie, a slice at a time, and compares their bytes. kFailedPrecondition
// names the two that differ; other errors as LoadBoxes. Blocks; needs memory for two slices of
// 16 MiB. REQUIRES: each tie is of two tensors of the record with the same type and shape.
Status CheckTies(FileSystem& fs, const std::string& root, const CheckpointRecord& record,
                 const std::vector<TensorMatch::Tie>& ties, const ReadOptions& options);

}  // namespace muster::checkpoint
