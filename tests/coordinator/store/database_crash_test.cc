// Every call of the index to its disk is a place to die, to lose power, or to fail.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/coordinator/store/faulty_env.h"
#include "tests/coordinator/store/store_support.h"

namespace muster::store {
namespace {

using rocksdb::IOStatus;

class DatabaseCrashTest : public StoreTest {
 protected:
  // An empty directory's path; it is removed when the next one is asked for.
  [[nodiscard]] std::string Fresh() const {
    const std::string path = directory() + "/data";
    std::filesystem::remove_all(path);
    return path;
  }
};

// Why what lies in the directory is not the first n batches for an n from `acknowledged` to `most`;
// empty when it is.
std::string Unsound(const std::string& directory, std::int64_t acknowledged, std::int64_t most) {
  const auto env = rocksdb::NewCompositeEnv(std::make_shared<FaultyFiles>());  // no real syncs
  const Result<std::unique_ptr<Journal>> journal = Journal::Open(directory, env.get());
  if (!journal.ok()) return journal.status().ToString();
  const Result<std::vector<StoredJob>> jobs = (*journal)->LoadAll();
  if (!jobs.ok()) return jobs.status().ToString();
  const std::int64_t number = jobs->empty() ? 0 : jobs->front().record.committed.value();
  if (number < acknowledged || number > most) {
    return fmt::format("batch {} is the last one there, {} to {} expected", number, acknowledged,
                       most);
  }
  std::vector<CheckpointEntry> expected;
  for (std::int64_t i = std::max<std::int64_t>(1, number - 1); i <= number; ++i) {
    expected.push_back(NumberedEntry(i));
  }
  if (number > 0 && jobs->front().record != RecordOf("job", number)) return "another record";
  if (number > 0 && jobs->front().checkpoints != expected) {
    return fmt::format("batch {} is there in part", number);
  }
  const Status status = (*journal)->Write(NumberedBatch(number + 1));
  return status.ok() ? "" : "cannot be written afterwards: " + status.ToString();
}

// Lets a child die at call k, for all k; returns how often what it left was unsound, each of them
// told to `tell`.
int DieAtEveryCall(const std::string& how, const std::function<std::string()>& fresh,
                   const std::function<void(const std::string&)>& tell) {
  int unsound = 0;
  bool ended = false;
  for (std::int64_t k = 1; !ended; ++k) {
    const std::string directory = fresh();
    std::int64_t acknowledged = 0;
    {
      Child child(fmt::format("--deadly-{}={}", how, k), directory);
      std::int64_t number = 0;
      while ((number = child.NextNumber()) > 0) acknowledged = number;
      ended = number == -2;
      EXPECT_TRUE(!ended || k > 40) << "hardly any call was counted";
    }
    const std::string why =
        Unsound(directory, acknowledged, std::min(acknowledged + 1, kNumberedBatches));
    if (why.empty()) continue;
    ++unsound;
    tell(fmt::format("{} at call {}: {}", how, k, why));
  }
  return unsound;
}

// S01 for the coordinator's index: what was acknowledged is there, and every batch is there whole
// or not at all, wherever the process was killed.
TEST_F(DatabaseCrashTest, KilledAtEveryCall) {
  DieAtEveryCall(
      "kill", [&] { return Fresh(); }, [](const std::string& why) { ADD_FAILURE() << why; });
}

// S07: the same when all that was not synced is gone as well.
TEST_F(DatabaseCrashTest, PowerCutAtEveryCall) {
  DieAtEveryCall(
      "power", [&] { return Fresh(); }, [](const std::string& why) { ADD_FAILURE() << why; });
}

// The check above can fail: with syncs that do nothing it does.
TEST_F(DatabaseCrashTest, PowerCutsShowMissingSyncs) {
  EXPECT_GT(DieAtEveryCall(
                "lies", [&] { return Fresh(); }, [](const std::string&) {}),
            0);
}

// Writes all batches, over failures, while call k fails; returns how many calls there were.
std::int64_t FailAt(const std::string& directory, std::int64_t k, const IOStatus& error) {
  const auto files = std::make_shared<FaultyFiles>();
  const std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(files);
  files->Set(k, [&error] { return error; });
  const std::string when = fmt::format("{} at call {}", error.ToString(), k);
  Result<std::unique_ptr<Journal>> journal = Journal::Open(directory, env.get());
  if (!journal.ok()) {
    EXPECT_GE(files->calls(), k) << when << ": " << journal.status().ToString();
    journal = Journal::Open(directory, env.get());
  }
  EXPECT_TRUE(journal.ok()) << when << ", again: " << journal.status().ToString();
  if (!journal.ok()) return files->calls();
  for (std::int64_t number = 1; number <= kNumberedBatches; ++number) {
    Status status = (*journal)->Write(NumberedBatch(number));
    // A second failure of one call would be the failure of another.
    if (!status.ok()) status = (*journal)->Write(NumberedBatch(number));
    EXPECT_TRUE(status.ok()) << when << ", batch " << number << ": " << status.ToString();
  }
  const std::int64_t calls = files->calls();
  files->Set(0, nullptr);
  journal->reset();
  files->LosePower();
  EXPECT_EQ(Unsound(directory, kNumberedBatches, kNumberedBatches), "") << when;
  return calls;
}

// S03: a full disk or a broken one at any call: the index fails or recovers by itself, and after
// that nothing that was acknowledged is missing.
TEST_F(DatabaseCrashTest, FailsAtEveryCall) {
  IOStatus full = IOStatus::NoSpace("injected");
  full.SetRetryable(true);  // as RocksDB marks what the operating system reports as ENOSPC
  for (const IOStatus& error : {full, IOStatus::IOError("injected")}) {
    for (std::int64_t k = 1; FailAt(Fresh(), k, error) >= k; ++k) {
      ASSERT_LT(k, 1000);
    }
  }
}

}  // namespace
}  // namespace muster::store
