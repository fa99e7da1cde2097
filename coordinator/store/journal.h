// What the coordinator remembers of each job: its record, and its checkpoints in the order in which
// they were committed.
//
// Used by one thread at a time (Writer gives it one of its own).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "coordinator/store/database.h"
#include "protocol/ids.h"
#include "protocol/records.h"
#include "protocol/status.h"

namespace muster::store {

// Replaces the job's record.
struct PutJob {
  JobRecord record;
};
// Adds a checkpoint behind all others of its job, or replaces the one with this key in its place.
// REQUIRES: entry.record.job is `job`.
struct PutCheckpoint {
  JobName job;
  CheckpointEntry entry;
};
// Forgets a checkpoint; one that is not there is ok.
struct DropCheckpoint {
  JobName job;
  CheckpointKey key;
};
using Change = std::variant<PutJob, PutCheckpoint, DropCheckpoint>;
// Changes that become durable together or not at all, in their order.
using Batch = std::vector<Change>;

struct StoredJob {
  JobRecord record;
  std::vector<CheckpointEntry> checkpoints;  // in the order of commit
};

class Journal {
 public:
  // See Database::Open for the errors; besides, kDataLoss for an index that cannot be read. Blocks.
  [[nodiscard]] static Result<std::unique_ptr<Journal>> Open(const std::string& directory);

  // All jobs, by name. Checkpoints of jobs without a record are left out. kDataLoss names the entry
  // that cannot be decoded. Blocks.
  [[nodiscard]] Result<std::vector<StoredJob>> LoadAll() const;

  // Returns ok once all changes are on the disk; one sync, whatever their number. Blocks.
  // kInvalidArgument, with nothing written, for a record that could not be read back: it names the
  // field. For other errors see Database::Write.
  [[nodiscard]] Status Write(const Batch& batch) {
    return Write(std::vector<const Batch*>{&batch});
  }
  // The same for several batches, one after the other, as one.
  [[nodiscard]] Status Write(const std::vector<const Batch*>& batches);

  // Nothing when there is none.
  [[nodiscard]] Result<std::optional<CheckpointEntry>> FindCheckpoint(
      const JobName& job, const CheckpointKey& key) const;
  // In the order of commit.
  [[nodiscard]] Result<std::vector<CheckpointEntry>> CheckpointsOf(const JobName& job) const;

  [[nodiscard]] const std::string& directory() const { return database_->directory(); }
  [[nodiscard]] std::int64_t reopenings() const { return database_->reopenings(); }

 private:
  // Where each checkpoint stands in the order of commit, by its key in the database. In memory too,
  // for a replaced entry keeps its place.
  using Places = std::map<std::string, std::uint64_t>;
  struct Plan;  // of one Write

  explicit Journal(std::unique_ptr<Database> database) : database_(std::move(database)) {}
  [[nodiscard]] Status LoadPlaces();
  [[nodiscard]] Status Add(const PutJob& put, Plan* plan) const;
  [[nodiscard]] Status Add(const PutCheckpoint& put, Plan* plan) const;
  [[nodiscard]] Status Add(const DropCheckpoint& drop, Plan* plan) const;

  std::unique_ptr<Database> database_;
  Places places_;
  std::uint64_t next_place_ = 1;
};

}  // namespace muster::store
