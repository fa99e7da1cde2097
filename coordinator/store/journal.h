// What the coordinator remembers of each job: its record, and its checkpoints in the order in which
// they were committed.
//
// What is stored, by family and key (numbers are 8 bytes, most significant first):
//   jobs         NAME                          layout, record as JSON without its tensors
//   checkpoints  "e" NAME step generation      place in the order of commit, layout, digest of the
//                                              file list, entry as JSON without tensors and files
//                "f" NAME step generation      file list as JSON
//   meta         "layout/" 16 hex digits       tensors as JSON; the key is their digest
// So an unchanged layout costs a checkpoint nothing, a file list is written once, and a layout goes
// in the batch in which the last record that has it goes.
//
// Used by one thread at a time (Writer gives it one of its own).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "coordinator/store/database.h"
#include "coordinator/store/layouts.h"
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
  // `env` as there.
  [[nodiscard]] static Result<std::unique_ptr<Journal>> Open(const std::string& directory,
                                                             rocksdb::Env* env = nullptr);

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
  [[nodiscard]] std::int64_t bytes_written() const { return database_->bytes_written(); }

 private:
  // What is known of a stored checkpoint without reading it.
  struct Checkpoint {
    std::uint64_t place = 0;  // in the order of commit; a replaced entry keeps it
    LayoutId layout = 0;
    std::optional<std::uint64_t> files;  // digest of the list; nothing: it has to be written
  };
  struct Known {
    std::map<std::string, LayoutId> jobs;  // by key in the database, as the checkpoints
    std::map<std::string, Checkpoint> checkpoints;
    Layouts layouts;
    std::uint64_t next_place = 1;
  };
  struct Plan;  // of one Write
  // Layouts that were read, by those who read many records.
  using Cache = std::map<LayoutId, std::vector<TensorSpec>>;

  explicit Journal(std::unique_ptr<Database> database) : database_(std::move(database)) {}
  [[nodiscard]] Status LoadKnown();
  [[nodiscard]] static Status Add(const PutJob& put, Plan* plan);
  [[nodiscard]] static Status Add(const PutCheckpoint& put, Plan* plan);
  [[nodiscard]] static Status Add(const DropCheckpoint& drop, Plan* plan);
  void Doubt(const Plan& plan);
  // From what is stored under `key`, which is that of a checkpoint without its first letter.
  [[nodiscard]] Result<std::pair<std::uint64_t, CheckpointEntry>> ReadCheckpoint(
      const std::string& key, const std::string& value, Cache* cache) const;
  [[nodiscard]] Result<JobRecord> ReadJob(const std::string& value, Cache* cache) const;
  [[nodiscard]] Result<std::vector<TensorSpec>> ReadLayout(LayoutId id, Cache* cache) const;
  [[nodiscard]] Result<std::vector<CheckpointEntry>> CheckpointsOf(const JobName& job,
                                                                   Cache* cache) const;

  std::unique_ptr<Database> database_;
  Known known_;
};

}  // namespace muster::store
