// What the workers wrote down about each step before its Commit() returned (MUSTER_RECORD_DIR): the
// evidence on which verdicts rest. One file for each life of a process, one JSON object a line.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/status.h"
#include "protocol/time.h"

namespace muster::chaos {

// Positions [lo, hi) in the sample order of one epoch.
struct SampleRange {
  std::int64_t lo = 0;
  std::int64_t hi = 0;
  friend auto operator<=>(const SampleRange&, const SampleRange&) = default;
};

// One rank's account of one committed step; or, with `final`, of the state it ended with.
struct StepRecord {
  std::int64_t t_ns = 0;  // CLOCK_REALTIME
  std::int64_t pid = 0;
  std::string worker;
  std::string incarnation;  // 16 hexadecimal digits
  std::int64_t generation = 0;
  std::int64_t step = 0;
  std::int64_t rank = 0;
  std::int64_t world_size = 0;
  std::int64_t epoch = 0;
  std::vector<SampleRange> samples;
  std::string outcome;  // "apply" or "skip"
  double loss = 0;
  std::string digest;  // of the reduced gradient; final: of the whole state
  bool final = false;
};

// The record in one line of a file. A line that is not a record is an error that says why.
[[nodiscard]] Result<StepRecord> ParseRecord(std::string_view line);

// Reads the record files of a directory as they grow. Not thread-safe. A line without its newline
// is one that is being written, or was cut off by a kill, and does not count.
class RecordFollower {
 public:
  explicit RecordFollower(std::string directory);
  RecordFollower(const RecordFollower&) = delete;
  RecordFollower& operator=(const RecordFollower&) = delete;
  ~RecordFollower();
  // Blocks until a file of the directory changes, `limit` at most. The directory should exist when
  // the follower is made; without one this only waits.
  void AwaitChange(Duration limit);
  // The records that came since the last call, file by file. A missing directory has none.
  [[nodiscard]] Result<std::vector<StepRecord>> Poll();
  // All records so far.
  [[nodiscard]] const std::vector<StepRecord>& all() const { return all_; }
  // The greatest committed step so far; 0: none.
  [[nodiscard]] std::int64_t last_step() const { return last_step_; }

 private:
  std::string directory_;
  int watch_ = -1;                                // inotify
  std::map<std::string, std::uint64_t> offsets_;  // by file name: bytes taken
  std::vector<StepRecord> all_;
  std::int64_t last_step_ = 0;
};

// All records of a directory at once.
[[nodiscard]] Result<std::vector<StepRecord>> ReadRecords(const std::string& directory);

}  // namespace muster::chaos
