// One RocksDB in one directory on a local disk: keys and values as bytes, in three column families.
// Journal knows what they mean. RocksDB's lock lets a single process have it open.
//
// Used by one thread at a time. Never fork after opening: a child inherits RocksDB's state without
// its threads, and hangs (a child that calls exec at once is fine).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "protocol/status.h"

namespace rocksdb {
class Env;
}

namespace muster::store {

enum class Family { kMeta, kJobs, kCheckpoints };

// Sets a key, or deletes it when there is no value.
struct KeyChange {
  Family family = Family::kMeta;
  std::string key;
  std::optional<std::string> value;
};

class Database {
 public:
  // Opens the database in `directory`, and creates it there when the directory is empty or does not
  // exist (its parent must). Blocks for the recovery of the log. Each error names the directory and
  // the remedy:
  //   kUnavailable         another process, or this one, has it open
  //   kNotFound            the parent directory does not exist
  //   kFailedPrecondition  not a directory, or written by a newer version
  //   kPermissionDenied    not writable
  //   kResourceExhausted   disk full
  //   kDataLoss            damaged
  // `env` is what RocksDB calls for files, not owned, null for its own: tests give one that fails.
  [[nodiscard]] static Result<std::unique_ptr<Database>> Open(const std::string& directory,
                                                              rocksdb::Env* env = nullptr);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // Makes all changes durable, in this order, or none of them. Blocks for a sync of the disk.
  // RocksDB refuses everything after a failed write, so then the database is closed, opened again
  // (which brings back all that was durable) and the write is tried once more. After an error the
  // changes may or may not be there at the next opening; the next Write begins with another
  // opening. While the volume has no room nothing is tried: kResourceExhausted, as long as that is
  // so, and the write after that goes through.
  [[nodiscard]] Status Write(const std::vector<KeyChange>& changes);

  // The value, or nothing when the key is not there.
  [[nodiscard]] Result<std::optional<std::string>> Get(Family family, const std::string& key) const;
  // All keys that begin with `prefix`, in order, with their values.
  [[nodiscard]] Result<std::vector<std::pair<std::string, std::string>>> Scan(
      Family family, const std::string& prefix) const;

  [[nodiscard]] const std::string& directory() const { return directory_; }
  // How often a failed write led to another opening.
  [[nodiscard]] std::int64_t reopenings() const { return reopenings_; }
  // Bytes of all batches that were made durable, as they go to the log.
  [[nodiscard]] std::int64_t bytes_written() const { return bytes_written_; }

 private:
  struct Handles;  // of RocksDB
  Database(std::string directory, rocksdb::Env* env);
  [[nodiscard]] Status OpenHandles();
  [[nodiscard]] Status CheckFormat();
  [[nodiscard]] Status TryWrite(const std::vector<KeyChange>& changes);
  // kResourceExhausted when the volume has too little space for a write of so many bytes.
  [[nodiscard]] Status CheckRoom(std::size_t bytes) const;

  const std::string directory_;
  rocksdb::Env* const env_;
  std::unique_ptr<Handles> handles_;  // null after a failed reopening
  std::int64_t reopenings_ = 0;
  std::int64_t bytes_written_ = 0;
};

}  // namespace muster::store
