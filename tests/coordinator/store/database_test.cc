// The database: what was written is there after every kind of end, and each trouble with the
// directory has a line that names it and the remedy.
#include "coordinator/store/database.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "tests/coordinator/store/store_support.h"

namespace muster::store {
namespace {

namespace fs = std::filesystem;

class DatabaseTest : public StoreTest {
 protected:
  [[nodiscard]] std::unique_ptr<Database> OpenDatabase() const {
    Result<std::unique_ptr<Database>> database = Database::Open(directory());
    EXPECT_TRUE(database.ok()) << database.status().ToString();
    return database.ok() ? std::move(database).value() : nullptr;
  }
  // Expects a refusal of `path` that names it, with this code and these words.
  static void ExpectRefused(const std::string& path, Code code, const std::string& words) {
    const Result<std::unique_ptr<Database>> database = Database::Open(path);
    ASSERT_FALSE(database.ok());
    const Status& status = database.status();
    EXPECT_EQ(status.code(), code) << status.ToString();
    EXPECT_NE(status.message().find("data directory " + path), std::string::npos)
        << status.ToString();
    EXPECT_NE(status.message().find(words), std::string::npos) << status.ToString();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  }
  // Files of the database with this beginning and end in their names.
  [[nodiscard]] std::vector<fs::path> Files(const std::string& begin,
                                            const std::string& end) const {
    std::vector<fs::path> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(directory())) {
      const std::string name = entry.path().filename();
      if (name.starts_with(begin) && name.ends_with(end)) files.push_back(entry.path());
    }
    return files;
  }
};

std::string ValueOf(const Database& database, Family family, const std::string& key) {
  const Result<std::optional<std::string>> value = database.Get(family, key);
  EXPECT_TRUE(value.ok()) << value.status().ToString();
  return value.ok() && value->has_value() ? **value : "(none)";
}

TEST_F(DatabaseTest, WhatIsWrittenIsThereAfterReopening) {
  const std::string binary("k\0\xff", 3);
  {
    const auto database = OpenDatabase();
    ASSERT_NE(database, nullptr);
    ASSERT_TRUE(database
                    ->Write({{Family::kJobs, "a", "1"},
                             {Family::kJobs, "b", "2"},
                             {Family::kCheckpoints, binary, std::string("\0v", 2)}})
                    .ok());
    ASSERT_TRUE(
        database->Write({{Family::kJobs, "a", "3"}, {Family::kJobs, "b", std::nullopt}}).ok());
  }
  const auto database = OpenDatabase();
  ASSERT_NE(database, nullptr);
  EXPECT_EQ(ValueOf(*database, Family::kJobs, "a"), "3");
  EXPECT_EQ(ValueOf(*database, Family::kJobs, "b"), "(none)");
  EXPECT_EQ(ValueOf(*database, Family::kCheckpoints, binary), std::string("\0v", 2));
  EXPECT_EQ(ValueOf(*database, Family::kCheckpoints, "a"), "(none)") << "families are apart";
}

TEST_F(DatabaseTest, ScansByPrefixInOrder) {
  const auto database = OpenDatabase();
  ASSERT_NE(database, nullptr);
  ASSERT_TRUE(database
                  ->Write({{Family::kJobs, "b2", "2"},
                           {Family::kJobs, "a", "0"},
                           {Family::kJobs, "b1", "1"},
                           {Family::kJobs, "c", "3"}})
                  .ok());
  const auto found = database->Scan(Family::kJobs, "b");
  ASSERT_TRUE(found.ok());
  ASSERT_EQ(found->size(), 2U);
  EXPECT_EQ((*found)[0], std::pair(std::string("b1"), std::string("1")));
  EXPECT_EQ((*found)[1], std::pair(std::string("b2"), std::string("2")));
  EXPECT_EQ(database->Scan(Family::kJobs, "")->size(), 4U);
  EXPECT_TRUE(database->Scan(Family::kCheckpoints, "")->empty());
}

TEST_F(DatabaseTest, CreatesTheDirectoryButNotItsParents) {
  const std::string inner = directory() + "/data";
  ASSERT_TRUE(Database::Open(inner).ok());
  EXPECT_TRUE(fs::is_directory(inner));
  ExpectRefused(directory() + "/no/data", Code::kNotFound, "its parent does not exist");
}

// S15: a second opening by the same process does not give up the lock of the first.
TEST_F(DatabaseTest, IsLockedWithinTheProcess) {
  const auto first = OpenDatabase();
  ASSERT_NE(first, nullptr);
  ExpectRefused(
      directory(), Code::kUnavailable,
      "is in use by another musterd (this process): stop it or choose another --data-dir");
  EXPECT_TRUE(first->Write({{Family::kJobs, "a", "1"}}).ok()) << "the first one is not harmed";
  ExpectRefused(directory(), Code::kUnavailable, "is in use by another musterd");
  Child other("--hold", directory());
  EXPECT_EQ(other.NextNumber(), -1) << "another process got in";
}

// S15: also when the holder is stopped and answers nothing.
TEST_F(DatabaseTest, IsLockedBetweenProcessesUntilTheHolderDies) {
  Child holder("--hold", directory());
  ASSERT_EQ(holder.NextNumber(), 0);
  ASSERT_EQ(::kill(holder.pid(), SIGSTOP), 0);
  ExpectRefused(directory(), Code::kUnavailable,
                "is in use by another musterd (process " + std::to_string(holder.pid()) +
                    "): stop it or choose another --data-dir");
  ExpectRefused(directory(), Code::kUnavailable, "is in use by another musterd");
  holder.Kill();
  EXPECT_NE(OpenDatabase(), nullptr);
}

// S15: killed at any moment of much writing, it leaves little for the next opening to replay.
TEST_F(DatabaseTest, LogsStaySmall) {
  const std::string value(100'000, 'x');
  const auto database = OpenDatabase();
  ASSERT_NE(database, nullptr);
  std::uintmax_t most = 0;
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(database->Write({{Family::kJobs, "k" + std::to_string(i % 7), value}}).ok());
    std::uintmax_t bytes = 0;
    std::error_code gone;
    for (const fs::path& log : Files("", ".log")) {
      const std::uintmax_t size = fs::file_size(log, gone);
      if (!gone) bytes += size;
    }
    most = std::max(most, bytes);
  }
  EXPECT_GT(database->bytes_written(), 29'999'999);
  EXPECT_LT(most, 16U << 20U) << "bytes of logs";
}

TEST_F(DatabaseTest, AFileInPlaceOfTheDirectoryIsRefused) {
  const std::string file = directory() + "/file";
  std::ofstream(file) << "precious";
  ExpectRefused(file, Code::kFailedPrecondition, "is not a directory: choose another --data-dir");
  EXPECT_EQ(fs::file_size(file), 8U) << "and left alone";
}

TEST_F(DatabaseTest, AReadOnlyDirectoryIsRefused) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  ASSERT_EQ(::chmod(directory().c_str(), 0555), 0);
  ExpectRefused(directory(), Code::kPermissionDenied, "is not writable");
  ExpectRefused(directory() + "/data", Code::kPermissionDenied, "choose another --data-dir");
  ASSERT_EQ(::chmod(directory().c_str(), 0755), 0);
}

TEST_F(DatabaseTest, DamageIsReportedNotRepaired) {
  ASSERT_TRUE(OpenDatabase()->Write({{Family::kJobs, "a", "1"}}).ok());
  const std::vector<fs::path> manifests = Files("MANIFEST-", "");
  ASSERT_FALSE(manifests.empty());
  for (const fs::path& manifest : manifests) std::ofstream(manifest) << "this is no manifest";
  ExpectRefused(directory(), Code::kDataLoss, "is damaged");
  ExpectRefused(directory(), Code::kDataLoss, "restore it from a copy, or start with an empty");
}

TEST_F(DatabaseTest, AMissingHeadIsNotTakenForAnEmptyDatabase) {
  ASSERT_TRUE(OpenDatabase()->Write({{Family::kJobs, "a", "1"}}).ok());
  fs::remove(directory() + "/CURRENT");
  ExpectRefused(directory(), Code::kDataLoss, "no CURRENT");
}

TEST_F(DatabaseTest, DamageWithinTheLogIsReported) {
  {
    Child writer("--write", directory());
    while (writer.NextNumber() < 200) {
    }
    writer.Kill();
  }
  const std::vector<fs::path> logs = Files("", ".log");
  ASSERT_FALSE(logs.empty());
  for (const fs::path& log : logs) {
    if (fs::file_size(log) < 4096) continue;
    std::fstream file(log, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(1000);
    file << "damage";
  }
  ExpectRefused(directory(), Code::kDataLoss, "is damaged");
}

TEST_F(DatabaseTest, AnotherFormatIsRefused) {
  ASSERT_TRUE(OpenDatabase()->Write({{Family::kMeta, "format", "1"}}).ok());
  ExpectRefused(directory(), Code::kFailedPrecondition,
                "has format 1, this musterd reads 2: run the musterd that wrote it");
}

TEST_F(DatabaseTest, ReopensAfterAFailedWriteAndTriesAgain) {
  const std::string value(10'000, 'x');
  {
    const auto database = OpenDatabase();
    ASSERT_NE(database, nullptr);
    const FileSizeLimit limit(256 << 10U);
    // The log reaches the limit every 25 writes; a fresh one has room again.
    for (int i = 0; i < 60; ++i) {
      const Status status = database->Write({{Family::kJobs, "k" + std::to_string(i), value}});
      ASSERT_TRUE(status.ok()) << i << ": " << status.ToString();
    }
    EXPECT_GE(database->reopenings(), 1);
  }
  const auto database = OpenDatabase();
  ASSERT_NE(database, nullptr);
  EXPECT_EQ(database->Scan(Family::kJobs, "k")->size(), 60U);
}

TEST_F(DatabaseTest, AWriteThatFailsTwiceIsReportedAndTheNextOneWorks) {
  const auto database = OpenDatabase();
  ASSERT_NE(database, nullptr);
  ASSERT_TRUE(database->Write({{Family::kJobs, "before", "1"}}).ok());
  {
    const FileSizeLimit limit(256 << 10U);
    const Status status =
        database->Write({{Family::kJobs, "large", std::string(std::size_t{1} << 20U, 'x')}});
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.message().find("data directory " + directory() + " cannot be written"),
              std::string::npos)
        << status.ToString();
  }
  const Status status = database->Write({{Family::kJobs, "after", "2"}});
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(ValueOf(*database, Family::kJobs, "before"), "1");
  EXPECT_EQ(ValueOf(*database, Family::kJobs, "after"), "2");
}

}  // namespace
}  // namespace muster::store
