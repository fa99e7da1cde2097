// The measurements of the checkpoint benchmark, one function each.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/io_pool.h"
#include "checkpoint/posix_file_system.h"
#include "protocol/records.h"
#include "protocol/status.h"
#include "tests/bench/checkpoint_workload.h"

namespace muster::bench {

struct Setup {
  std::string directory;  // to write to; empty
  int repeats = 5;
  std::vector<TensorSpec> tensors;
  TensorMemory live;  // the training state
  checkpoint::PosixFileSystem fs;
  checkpoint::IoPool pool;
  nlohmann::json report = nlohmann::json::object();
};

// Each prints a line of progress and adds its keys to the report.

// stall_ratio: the copy that training waits for / one memcpy of the same bytes.
Status MeasureStall(Setup& setup);
// write_ratio: bytes a second of a shard with its manifest / of the best raw writer of one file.
// Needs MeasureStall's time for save_s, which is both together.
Status MeasureWrite(Setup& setup);
// read_ratio: bytes a second of a verified load, cold / of the best raw reader of one file; load_s.
Status MeasureRead(Setup& setup);
// reshard_read_ratio: bytes read / bytes needed, from one world size to another.
Status MeasureReshard(Setup& setup);
// extra_memory_bytes: what saving and loading need beyond the state, the snapshot and the targets.
Status MeasureMemory(Setup& setup);
// torch_save_ratio, torch_load_ratio: time of PyTorch / save_s, load_s. Null without PyTorch.
Status MeasureTorch(Setup& setup);
// plan_ms: of one rank of 9,999 that loads a checkpoint of 10,000 ranks and 10,000 tensors.
Status MeasurePlan(Setup& setup);
// commit_ms: of a checkpoint of as many, whose layout is known, from the last shard's report until
// it is durable at the coordinator.
Status MeasureCommits(Setup& setup);

}  // namespace muster::bench
