// A file system that fails one chosen call, or stops at it as a killed process would.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"

namespace muster::checkpoint {

// Passes calls on and counts them, from 1. Thread-safe, except for the calls that set it up.
class FaultyFileSystem : public FileSystem {
 public:
  enum class Fault {
    kNone,
    kFail,      // call k fails with `error`; the others work
    kFailTorn,  // the same, but a write has put half of its bytes on the disk
    kStop,      // call k and all after it do nothing: the process was killed
    kStopTorn,  // the same, but a write at call k has put half of its bytes on the disk
  };
  // `base` must outlive this and its files.
  explicit FaultyFileSystem(FileSystem& base) : base_(base) {}

  void Set(Fault fault, std::int64_t at, Status error) {
    fault_ = fault;
    at_ = at;
    error_ = std::move(error);
    calls_ = 0;
  }
  // Runs `action` when call k comes, before anything of the call is done.
  void SetAction(std::int64_t at, std::function<void()> action) {
    Set(Fault::kNone, at, {});
    action_ = std::move(action);
  }
  [[nodiscard]] std::int64_t calls() const { return calls_; }

  [[nodiscard]] Result<std::unique_ptr<WritableFile>> CreateExclusively(
      const std::string& path) override;
  [[nodiscard]] Result<std::unique_ptr<ReadableFile>> OpenForReading(
      const std::string& path) override;
  Status SyncDirectory(const std::string& path) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Status MakeDirectory(const std::string& path) override;
  Status Unlink(const std::string& path) override;
  Status RemoveDirectory(const std::string& path) override;
  [[nodiscard]] Result<std::vector<std::string>> List(const std::string& path) override;
  [[nodiscard]] Result<std::int64_t> FreeBytes(const std::string& path) override;

  // Counts a call and returns the error that it must fail with, or ok. Says whether, when it is a
  // write, half of its bytes are to be written all the same.
  Status Count(bool* tears = nullptr);

 private:
  FileSystem& base_;
  Fault fault_ = Fault::kNone;
  std::int64_t at_ = 0;
  Status error_;
  std::mutex mutex_;  // held while a call is counted
  std::int64_t calls_ = 0;
  std::function<void()> action_;
};

}  // namespace muster::checkpoint
