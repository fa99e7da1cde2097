// Writes down what this worker saw committed, for checkers that do not take Muster's word: see
// worker.h for the format.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/box.h"
#include "protocol/ids.h"
#include "protocol/records.h"
#include "protocol/status.h"
#include "worker/collective/socket.h"

namespace muster::worker {

struct StepEntry {
  Member member;
  Generation generation;
  Step step;
  Rank rank;
  std::int32_t world_size = 0;
  std::int64_t epoch = 0;
  std::vector<Range> samples;  // positions in the order of the epoch
  Outcome outcome = Outcome::kApply;
  double loss = 0;
  std::uint64_t digest = 0;
};

// Training thread only.
class RecordWriter {
 public:
  // Opens "<worker>-<pid>.jsonl" in `directory` for appending; an empty directory: writes nothing.
  Status Open(const std::string& directory, const WorkerId& worker);
  [[nodiscard]] bool active() const { return file_.valid(); }
  // Appends one line in one write(). An error (a full disk) is returned, and the record is missing.
  Status Write(const StepEntry& entry);
  // The last line: `entry` with outcome, loss and samples left out.
  Status WriteFinal(const StepEntry& entry);

 private:
  Status Append(const std::string& line);
  [[nodiscard]] static std::string Head(const StepEntry& entry);
  UniqueFd file_;
  std::string path_;
};

}  // namespace muster::worker
