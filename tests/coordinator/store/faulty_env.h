// RocksDB's files behind a counter: the k-th call that changes the disk fails, or is where the
// process dies or the power goes.
#pragma once

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>

#include "coordinator/store/journal.h"

namespace muster::store {

// Counts calls that create, write, sync, rename or remove, from 1. Syncs are noted, and the disk is
// not bothered. Thread-safe.
class FaultyFiles : public rocksdb::FileSystemWrapper {
 public:
  FaultyFiles() : rocksdb::FileSystemWrapper(rocksdb::FileSystem::Default()) {}
  const char* Name() const override { return "FaultyFiles"; }

  // The k-th call from now on does nothing and returns what `fault` returns, if that returns. No
  // call for 0.
  void Set(std::int64_t at, std::function<rocksdb::IOStatus()> fault);
  // Syncs do nothing and report success, to prove that a test notices.
  void LieAboutSyncs() { lies_ = true; }
  [[nodiscard]] std::int64_t calls() const;

  // Takes from the disk what was written since the last sync of each file, and undoes all creations
  // and renames since the last sync of the directory: as one, for RocksDB relies on a file system
  // that keeps them in order. Removals stay. For a fault, or with nothing else running.
  void LosePower();

  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus NewDirectory(const std::string& name, const rocksdb::IOOptions& options,
                                 std::unique_ptr<rocksdb::FSDirectory>* directory,
                                 rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus DeleteFile(const std::string& name, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;
  rocksdb::IOStatus RenameFile(const std::string& from, const std::string& to,
                               const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override;

  // For the files and directories.
  rocksdb::IOStatus Count();
  void FileSynced(const std::string& name, std::uint64_t bytes);
  void DirectorySynced();

 private:
  mutable std::mutex mutex_;
  std::int64_t calls_ = 0;
  std::int64_t at_ = 0;
  std::function<rocksdb::IOStatus()> fault_;
  bool lies_ = false;
  std::unordered_map<std::string, std::uint64_t> synced_;  // bytes of each file that was created
  std::set<std::string> unsynced_names_;                   // of files that were created
  std::unordered_map<std::string, std::string> replaced_;  // what unsynced renames replaced
};

// The batch that makes `number` the job's committed step: adds its checkpoint, of `number` files
// and a layout of its own, and drops the one before the last.
[[nodiscard]] Batch NumberedBatch(std::int64_t number);
// The checkpoint that it adds.
[[nodiscard]] CheckpointEntry NumberedEntry(std::int64_t number);
inline constexpr std::int64_t kNumberedBatches = 6;

// In a process of its own (see Child): writes NumberedBatch 1, 2, ... to a journal in `directory`,
// which is opened anew half-way, tells the number of each that was acknowledged to `out`, and -2
// after all. `mode` is "--deadly" and then how it dies ("-kill", "-power", or "-lies" for a power
// cut with syncs that lie), "=", and at which call.
[[nodiscard]] int RunDeadly(const std::string& mode, const std::string& directory, int out);

}  // namespace muster::store
