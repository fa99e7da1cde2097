// A directory of its own for each test, records to store, and the test program as a child that can
// be killed.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/store/journal.h"

namespace muster::store {

class StoreTest : public ::testing::Test {
 protected:
  StoreTest();
  ~StoreTest() override;
  // The directory, which exists and is empty.
  [[nodiscard]] const std::string& directory() const { return directory_; }
  [[nodiscard]] std::unique_ptr<Journal> OpenJournal() const;

 private:
  std::string directory_;
};

// A record whose content follows from `number`, which is its committed step.
[[nodiscard]] JobRecord RecordOf(const std::string& job, std::int64_t number);
[[nodiscard]] CheckpointEntry EntryOf(const std::string& job, std::int64_t step,
                                      std::int64_t generation);
// While it lives, no file of this process can grow beyond `bytes`: writes fail with EFBIG.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const struct rlimit limit = {.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*handler_)(int);
  struct rlimit before_ {};
};

// The steps of the entries.
[[nodiscard]] std::vector<std::int64_t> StepsOf(const std::vector<CheckpointEntry>& entries);

// This program, run again as `main(argc, argv)` of store_test_main.cc does for `mode`. Dies with
// its parent; killed and waited for by the destructor.
class Child {
 public:
  Child(const std::string& mode, const std::string& directory);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // The next number that the child has written, or -1 when there will be none. Blocks.
  [[nodiscard]] std::int64_t NextNumber();
  // SIGKILL, and waits for the end. Idempotent.
  void Kill();
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int pipe_ = -1;
  bool ended_ = false;
};

// What the child does: opens `directory` and writes 0; in mode "--write" then stores batch after
// batch (a job's record and a checkpoint of the same number) and writes the number of each that
// was acknowledged. Returns when nobody reads any more.
[[nodiscard]] int RunChild(const std::string& mode, const std::string& directory, int out);

}  // namespace muster::store
