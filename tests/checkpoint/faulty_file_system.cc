#include "tests/checkpoint/faulty_file_system.h"

#include <utility>

namespace muster::checkpoint {
namespace {

class FaultyWritableFile : public WritableFile {
 public:
  FaultyWritableFile(FaultyFileSystem& owner, std::unique_ptr<WritableFile> base)
      : owner_(owner), base_(std::move(base)) {}
  Status WriteAt(std::int64_t offset, std::span<const std::byte> bytes) override {
    bool tears = false;
    const Status status = owner_.Count(&tears);
    if (status.ok()) return base_->WriteAt(offset, bytes);
    if (tears) MUSTER_RETURN_IF_ERROR(base_->WriteAt(offset, bytes.first(bytes.size() / 2)));
    return status;
  }
  Status SetSize(std::int64_t bytes) override {
    MUSTER_RETURN_IF_ERROR(owner_.Count());
    return base_->SetSize(bytes);
  }
  Status Sync() override {
    MUSTER_RETURN_IF_ERROR(owner_.Count());
    return base_->Sync();
  }
  Status Close() override {
    MUSTER_RETURN_IF_ERROR(owner_.Count());
    return base_->Close();
  }

 private:
  FaultyFileSystem& owner_;
  std::unique_ptr<WritableFile> base_;
};

class FaultyReadableFile : public ReadableFile {
 public:
  FaultyReadableFile(FaultyFileSystem& owner, std::unique_ptr<ReadableFile> base)
      : owner_(owner), base_(std::move(base)) {}
  [[nodiscard]] Result<std::int64_t> Size() const override {
    if (Status status = owner_.Count(); !status.ok()) return status;
    return base_->Size();
  }
  Status ReadAt(std::int64_t offset, std::span<std::byte> into) override {
    MUSTER_RETURN_IF_ERROR(owner_.Count());
    return base_->ReadAt(offset, into);
  }

 private:
  FaultyFileSystem& owner_;
  std::unique_ptr<ReadableFile> base_;
};

}  // namespace

Status FaultyFileSystem::Count(bool* tears) {
  const std::lock_guard lock(mutex_);
  ++calls_;
  if (action_ && calls_ == at_) action_();
  const bool torn = fault_ == Fault::kFailTorn || fault_ == Fault::kStopTorn;
  if (tears != nullptr) *tears = torn && calls_ == at_;
  switch (fault_) {
    case Fault::kNone: return {};
    case Fault::kFail:
    case Fault::kFailTorn: return calls_ == at_ ? error_ : Status();
    case Fault::kStop:
    case Fault::kStopTorn: return calls_ >= at_ ? error_ : Status();
  }
  return {};
}

Result<std::unique_ptr<WritableFile>> FaultyFileSystem::CreateExclusively(const std::string& path) {
  if (Status status = Count(); !status.ok()) return status;
  Result<std::unique_ptr<WritableFile>> file = base_.CreateExclusively(path);
  if (!file.ok()) return file.status();
  return std::unique_ptr<WritableFile>(
      std::make_unique<FaultyWritableFile>(*this, std::move(*file)));
}

Result<std::unique_ptr<ReadableFile>> FaultyFileSystem::OpenForReading(const std::string& path) {
  if (Status status = Count(); !status.ok()) return status;
  Result<std::unique_ptr<ReadableFile>> file = base_.OpenForReading(path);
  if (!file.ok()) return file.status();
  return std::unique_ptr<ReadableFile>(
      std::make_unique<FaultyReadableFile>(*this, std::move(*file)));
}

Status FaultyFileSystem::SyncDirectory(const std::string& path) {
  MUSTER_RETURN_IF_ERROR(Count());
  return base_.SyncDirectory(path);
}
Status FaultyFileSystem::Rename(const std::string& from, const std::string& to) {
  MUSTER_RETURN_IF_ERROR(Count());
  return base_.Rename(from, to);
}
Status FaultyFileSystem::MakeDirectory(const std::string& path) {
  MUSTER_RETURN_IF_ERROR(Count());
  return base_.MakeDirectory(path);
}
Status FaultyFileSystem::Unlink(const std::string& path) {
  MUSTER_RETURN_IF_ERROR(Count());
  return base_.Unlink(path);
}
Status FaultyFileSystem::RemoveDirectory(const std::string& path) {
  MUSTER_RETURN_IF_ERROR(Count());
  return base_.RemoveDirectory(path);
}
Result<std::vector<std::string>> FaultyFileSystem::List(const std::string& path) {
  if (Status status = Count(); !status.ok()) return status;
  return base_.List(path);
}
Result<std::int64_t> FaultyFileSystem::FreeBytes(const std::string& path) {
  if (Status status = Count(); !status.ok()) return status;
  return base_.FreeBytes(path);
}

}  // namespace muster::checkpoint
