#include "tests/coordinator/store/faulty_env.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "tests/coordinator/store/store_support.h"

namespace muster::store {
namespace {

using rocksdb::FSDirectory;
using rocksdb::FSWritableFile;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;

class FaultyFile : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  FaultyFile(FaultyFiles& owner, std::string name, std::unique_ptr<FSWritableFile> file)
      : FSWritableFileOwnerWrapper(std::move(file)), owner_(owner), name_(std::move(name)) {}

  IOStatus Append(const rocksdb::Slice& data, const IOOptions& options,
                  IODebugContext* debug) override {
    IOStatus status = owner_.Count();
    return status.ok() ? FSWritableFileOwnerWrapper::Append(data, options, debug) : status;
  }
  IOStatus Append(const rocksdb::Slice& data, const IOOptions& options,
                  const rocksdb::DataVerificationInfo& info, IODebugContext* debug) override {
    IOStatus status = owner_.Count();
    return status.ok() ? FSWritableFileOwnerWrapper::Append(data, options, info, debug) : status;
  }
  IOStatus Sync(const IOOptions& options, IODebugContext* debug) override {
    return Synced(options, debug);
  }
  IOStatus Fsync(const IOOptions& options, IODebugContext* debug) override {
    return Synced(options, debug);
  }
  IOStatus Close(const IOOptions& options, IODebugContext* debug) override {
    IOStatus status = owner_.Count();
    return status.ok() ? FSWritableFileOwnerWrapper::Close(options, debug) : status;
  }

 private:
  // Only noted: the disk that it would be waited for is not the one that loses power.
  IOStatus Synced(const IOOptions& options, IODebugContext* debug) {
    IOStatus status = owner_.Count();
    if (status.ok()) owner_.FileSynced(name_, GetFileSize(options, debug));
    return status;
  }

  FaultyFiles& owner_;
  const std::string name_;
};

class FaultyDirectory : public rocksdb::FSDirectoryWrapper {
 public:
  FaultyDirectory(FaultyFiles& owner, std::unique_ptr<FSDirectory> directory)
      : FSDirectoryWrapper(std::move(directory)), owner_(owner) {}

  IOStatus Fsync(const IOOptions& /*options*/, IODebugContext* /*debug*/) override {
    IOStatus status = owner_.Count();
    if (status.ok()) owner_.DirectorySynced();
    return status;
  }
  IOStatus FsyncWithDirOptions(const IOOptions& options, IODebugContext* debug,
                               const rocksdb::DirFsyncOptions& /*how*/) override {
    return Fsync(options, debug);
  }

 private:
  FaultyFiles& owner_;
};

}  // namespace

void FaultyFiles::Set(std::int64_t at, std::function<IOStatus()> fault) {
  const std::lock_guard lock(mutex_);
  calls_ = 0;
  at_ = at;
  fault_ = std::move(fault);
}

std::int64_t FaultyFiles::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

IOStatus FaultyFiles::Count() {
  // Held during the fault too, so that a process that dies there does nothing else meanwhile.
  const std::lock_guard lock(mutex_);
  return ++calls_ == at_ ? fault_() : IOStatus::OK();
}

void FaultyFiles::FileSynced(const std::string& name, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto file = synced_.find(name);
  if (file != synced_.end() && !lies_) file->second = bytes;
}

void FaultyFiles::DirectorySynced() {
  const std::lock_guard lock(mutex_);
  if (lies_) return;
  unsynced_names_.clear();
  replaced_.clear();
}

void FaultyFiles::LosePower() {
  for (const auto& [name, content] : replaced_) {
    std::ofstream(name, std::ios::binary | std::ios::trunc) << content;
    synced_.erase(name);
  }
  for (const auto& [name, bytes] : synced_) {
    if (unsynced_names_.contains(name)) {
      ::unlink(name.c_str());
    } else if (::truncate(name.c_str(), static_cast<off_t>(bytes)) != 0) {
      continue;  // removed by now
    }
  }
}

IOStatus FaultyFiles::NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                      std::unique_ptr<FSWritableFile>* file,
                                      IODebugContext* debug) {
  IOStatus status = Count();
  if (!status.ok()) return status;
  std::unique_ptr<FSWritableFile> made;
  status = FileSystemWrapper::NewWritableFile(name, options, &made, debug);
  if (!status.ok()) return status;
  *file = std::make_unique<FaultyFile>(*this, name, std::move(made));
  const std::lock_guard lock(mutex_);
  synced_[name] = 0;
  unsynced_names_.insert(name);
  return status;
}

IOStatus FaultyFiles::NewDirectory(const std::string& name, const IOOptions& options,
                                   std::unique_ptr<FSDirectory>* directory, IODebugContext* debug) {
  std::unique_ptr<FSDirectory> made;
  IOStatus status = FileSystemWrapper::NewDirectory(name, options, &made, debug);
  if (status.ok()) *directory = std::make_unique<FaultyDirectory>(*this, std::move(made));
  return status;
}

IOStatus FaultyFiles::DeleteFile(const std::string& name, const IOOptions& options,
                                 IODebugContext* debug) {
  IOStatus status = Count();
  if (!status.ok()) return status;
  status = FileSystemWrapper::DeleteFile(name, options, debug);
  const std::lock_guard lock(mutex_);
  synced_.erase(name);
  unsynced_names_.erase(name);
  return status;
}

IOStatus FaultyFiles::RenameFile(const std::string& from, const std::string& to,
                                 const IOOptions& options, IODebugContext* debug) {
  IOStatus status = Count();
  if (!status.ok()) return status;
  std::ostringstream before;
  const bool replaces = (before << std::ifstream(to, std::ios::binary).rdbuf()).good();
  status = FileSystemWrapper::RenameFile(from, to, options, debug);
  if (!status.ok()) return status;
  const std::lock_guard lock(mutex_);
  if (auto file = synced_.extract(from); !file.empty()) {
    file.key() = to;
    synced_.erase(to);
    synced_.insert(std::move(file));
  }
  unsynced_names_.erase(from);
  if (!replaces) {
    unsynced_names_.insert(to);
  } else if (!unsynced_names_.contains(to)) {
    replaced_.emplace(to, before.str());
  }
  return status;
}

CheckpointEntry NumberedEntry(std::int64_t number) {
  CheckpointEntry entry = EntryOf("job", number, 1);
  entry.record.tensors = {{fmt::format("t{}", number), DType::kFloat32, {number, 3}, 0}};
  entry.record.files.clear();
  for (std::int64_t i = 0; i < number; ++i) {
    entry.record.files.push_back(
        {fmt::format("r{:05}.safetensors", i), 100, 7, Rank(static_cast<std::int32_t>(i)), {}});
  }
  entry.record.world_size = static_cast<std::int32_t>(number);
  entry.record.bytes = 100 * number;
  return entry;
}

Batch NumberedBatch(std::int64_t number) {
  Batch batch = {PutJob{RecordOf("job", number)},
                 PutCheckpoint{JobName("job"), NumberedEntry(number)}};
  if (number > 2) {
    batch.emplace_back(
        DropCheckpoint{JobName("job"), {.step = Step(number - 2), .generation = Generation(1)}});
  }
  return batch;
}

int RunDeadly(const std::string& mode, const std::string& directory, int out) {
  std::signal(SIGPIPE, SIG_IGN);
  const auto tell = [&](std::int64_t number) {
    return ::write(out, &number, sizeof(number)) == static_cast<ssize_t>(sizeof(number));
  };
  const auto files = std::make_shared<FaultyFiles>();
  const std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(files);
  if (mode.starts_with("--deadly-lies")) files->LieAboutSyncs();
  const bool power = !mode.starts_with("--deadly-kill");
  files->Set(std::atoll(mode.c_str() + mode.find('=') + 1), [&files, power]() -> IOStatus {
    if (power) files->LosePower();
    ::_exit(9);
  });
  std::unique_ptr<Journal> journal;
  for (std::int64_t number = 1; number <= kNumberedBatches; ++number) {
    if (number % (kNumberedBatches / 2) == 1) {
      journal.reset();
      Result<std::unique_ptr<Journal>> opened = Journal::Open(directory, env.get());
      if (!opened.ok()) return 1;
      journal = std::move(opened).value();
    }
    if (!journal->Write(NumberedBatch(number)).ok() || !tell(number)) return 1;
  }
  return tell(-2) ? 0 : 1;
}

}  // namespace muster::store
