#include "coordinator/store/database.h"

#include <fmt/format.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/options.h>
#include <rocksdb/slice.h>
#include <rocksdb/write_batch.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <exception>
#include <string_view>

#include "coordinator/store/data_directory.h"

namespace muster::store {
namespace {

constexpr std::array<const char*, 3> kFamilyNames = {"default", "jobs", "checkpoints"};
const std::string kFormatKey = "format";
const std::string kFormat = "2";
// RocksDB needs as much for what it writes by itself: tables, a manifest, the next log. Refusing a
// write before that is gone is gentler than an error in the middle of it.
constexpr std::uint64_t kMinFreeBytes = std::uint64_t{4} << 20U;

// RocksDB's own log would lie on the same volume, and where the library is built with assertions,
// as Debian's is, a second line that does not fit there ends the process. What matters in it comes
// back as a status too.
class NoLog : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char* /*format*/, va_list /*arguments*/) override {}
};

rocksdb::Options OpenOptions() {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.paranoid_checks = true;
  // An update that was acknowledged must not be rolled back: damage within the log is an error, and
  // only a torn record at its end, which nobody was told of, is dropped.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  options.track_and_verify_wals_in_manifest = true;
  // Small, so that there is little to replay: the whole state is small.
  options.write_buffer_size = std::size_t{1} << 20U;
  // A family that is hardly ever written to would otherwise hold on to every log.
  options.max_total_wal_size = std::size_t{8} << 20U;
  options.compression = rocksdb::kNoCompression;
  options.max_background_jobs = 2;
  options.info_log = std::make_shared<NoLog>();
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  return options;
}

rocksdb::Slice SliceOf(const std::string& bytes) { return {bytes.data(), bytes.size()}; }

// What RocksDB says, as a line that names the directory and the remedy. `what`: "cannot be opened".
Status StatusOf(const rocksdb::Status& status, const std::string& directory,
                std::string_view what) {
  const std::string text = status.ToString();
  const auto says = [&](const char* words) { return text.find(words) != std::string::npos; };
  if (status.IsIOError() && says("lock hold by current process")) return InUse(directory, true);
  if (status.IsIOError() && says("While lock file") && says("temporarily unavailable")) {
    return InUse(directory, false);
  }
  if (status.IsNoSpace() || says("No space left on device") || says("Disk quota exceeded")) {
    return Full(directory);
  }
  if (status.IsCorruption() || status.IsPathNotFound()) {
    return Damaged(directory, text);
  }
  if (status.IsInvalidArgument() && says("olumn famil")) {
    return FailedPrecondition(fmt::format(
        "data directory {} {}: it was written by a newer musterd ({}): run that one, or choose "
        "another --data-dir",
        directory, what, text));
  }
  return Internal(
      fmt::format("data directory {} {}: {}: check that the disk is local, healthy and writable",
                  directory, what, text));
}

}  // namespace

struct Database::Handles {
  std::unique_ptr<rocksdb::DB> db;
  std::array<rocksdb::ColumnFamilyHandle*, kFamilyNames.size()> families{};

  ~Handles() {
    if (db == nullptr) return;
    for (rocksdb::ColumnFamilyHandle* family : families) {
      if (family != nullptr) db->DestroyColumnFamilyHandle(family).PermitUncheckedError();
    }
    // What was acknowledged is synced already, so there is nothing to lose here.
    db->Close().PermitUncheckedError();
  }
  [[nodiscard]] rocksdb::ColumnFamilyHandle* of(Family family) const {
    return families.at(static_cast<std::size_t>(family));
  }
};

Database::Database(std::string directory, rocksdb::Env* env)
    : directory_(std::move(directory)), env_(env) {}
Database::~Database() = default;

Result<std::unique_ptr<Database>> Database::Open(const std::string& directory, rocksdb::Env* env) {
  MUSTER_RETURN_IF_ERROR(PrepareDirectory(directory));
  std::unique_ptr<Database> database(new Database(directory, env));
  MUSTER_RETURN_IF_ERROR(database->OpenHandles());
  MUSTER_RETURN_IF_ERROR(database->CheckFormat());
  return database;
}

Status Database::OpenHandles() {
  try {
    std::vector<rocksdb::ColumnFamilyDescriptor> descriptors;
    rocksdb::Options options = OpenOptions();
    if (env_ != nullptr) options.env = env_;
    for (const char* name : kFamilyNames) descriptors.emplace_back(name, options);
    std::vector<rocksdb::ColumnFamilyHandle*> families;
    rocksdb::DB* db = nullptr;
    const rocksdb::Status opened =
        rocksdb::DB::Open(options, directory_, descriptors, &families, &db);
    if (!opened.ok()) return StatusOf(opened, directory_, "cannot be opened");
    handles_ = std::make_unique<Handles>();
    handles_->db.reset(db);
    std::copy(families.begin(), families.end(), handles_->families.begin());
    return {};
  } catch (const std::exception& e) {
    return Internal(fmt::format("data directory {} cannot be opened: {}", directory_, e.what()));
  }
}

Status Database::CheckFormat() {
  const Result<std::optional<std::string>> format = Get(Family::kMeta, kFormatKey);
  if (!format.ok()) return format.status();
  if (!format->has_value()) return TryWrite({{Family::kMeta, kFormatKey, kFormat}});
  if (**format == kFormat) return {};
  return FailedPrecondition(fmt::format(
      "data directory {} has format {}, this musterd reads {}: run the musterd that wrote it, or "
      "choose another --data-dir",
      directory_, **format, kFormat));
}

Status Database::TryWrite(const std::vector<KeyChange>& changes) {
  if (handles_ == nullptr)
    return Unavailable(fmt::format("data directory {} is closed", directory_));
  try {
    // With a checksum of each key and value from here to the log.
    rocksdb::WriteBatch batch(0, 0, /*protection_bytes_per_key=*/8, 0);
    rocksdb::Status status;
    for (const KeyChange& change : changes) {
      rocksdb::ColumnFamilyHandle* family = handles_->of(change.family);
      const rocksdb::Slice key = SliceOf(change.key);
      status = change.value.has_value() ? batch.Put(family, key, SliceOf(*change.value))
                                        : batch.Delete(family, key);
      if (!status.ok()) return StatusOf(status, directory_, "cannot be written");
    }
    rocksdb::WriteOptions options;
    options.sync = true;
    status = handles_->db->Write(options, &batch);
    if (!status.ok()) return StatusOf(status, directory_, "cannot be written");
    bytes_written_ += static_cast<std::int64_t>(batch.GetDataSize());
    return {};
  } catch (const std::exception& e) {
    return Internal(fmt::format("data directory {} cannot be written: {}", directory_, e.what()));
  }
}

Status Database::CheckRoom(std::size_t bytes) const {
  struct statvfs space {};
  if (::statvfs(directory_.c_str(), &space) != 0) {
    return FromErrno(errno, fmt::format("data directory {} cannot be examined", directory_));
  }
  const std::uint64_t free_bytes = std::uint64_t{space.f_bavail} * space.f_frsize;
  // Once in the log, and once in a table.
  return free_bytes < kMinFreeBytes + 2 * bytes ? Full(directory_) : Status();
}

Status Database::Write(const std::vector<KeyChange>& changes) {
  std::size_t bytes = 0;
  for (const KeyChange& change : changes) {
    bytes += change.key.size() + (change.value.has_value() ? change.value->size() : 0);
  }
  MUSTER_RETURN_IF_ERROR(CheckRoom(bytes));
  if (handles_ != nullptr && TryWrite(changes).ok()) return {};
  handles_.reset();
  ++reopenings_;
  // The first write may have failed for want of room.
  MUSTER_RETURN_IF_ERROR(CheckRoom(bytes));
  MUSTER_RETURN_IF_ERROR(OpenHandles());
  return TryWrite(changes);
}

Result<std::optional<std::string>> Database::Get(Family family, const std::string& key) const {
  if (handles_ == nullptr)
    return Unavailable(fmt::format("data directory {} is closed", directory_));
  try {
    std::string value;
    const rocksdb::Status status =
        handles_->db->Get(rocksdb::ReadOptions(), handles_->of(family), SliceOf(key), &value);
    if (status.IsNotFound()) return std::optional<std::string>();
    if (!status.ok()) return StatusOf(status, directory_, "cannot be read");
    return std::optional<std::string>(std::move(value));
  } catch (const std::exception& e) {
    return Internal(fmt::format("data directory {} cannot be read: {}", directory_, e.what()));
  }
}

Result<std::vector<std::pair<std::string, std::string>>> Database::Scan(
    Family family, const std::string& prefix) const {
  if (handles_ == nullptr)
    return Unavailable(fmt::format("data directory {} is closed", directory_));
  try {
    std::vector<std::pair<std::string, std::string>> found;
    const std::unique_ptr<rocksdb::Iterator> it(
        handles_->db->NewIterator(rocksdb::ReadOptions(), handles_->of(family)));
    for (it->Seek(SliceOf(prefix)); it->Valid() && it->key().starts_with(SliceOf(prefix));
         it->Next()) {
      found.emplace_back(it->key().ToString(), it->value().ToString());
    }
    if (!it->status().ok()) return StatusOf(it->status(), directory_, "cannot be read");
    return found;
  } catch (const std::exception& e) {
    return Internal(fmt::format("data directory {} cannot be read: {}", directory_, e.what()));
  }
}

}  // namespace muster::store
