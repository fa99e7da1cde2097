#include "checkpoint/fresh_file.h"

#include <fmt/format.h>

#include <utility>

#include "checkpoint/format.h"

namespace muster::checkpoint {

Result<FreshFile> CreateFresh(FileSystem& fs, const std::string& directory,
                              const std::function<std::string(int)>& name_of) {
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    const std::string name = name_of(attempt);
    const std::string path = JoinPath(directory, name);
    Result<std::unique_ptr<WritableFile>> file = fs.CreateExclusively(path);
    if (file.ok()) return FreshFile{name, path, std::move(*file)};
    if (file.status().code() != Code::kAlreadyExists) return file.status();
  }
  return ResourceExhausted(
      fmt::format("{}: {} and all {} names after it are taken by abandoned "
                  "files: remove them",
                  directory, name_of(0), kMaxAttempts - 1));
}

Result<FreshFile> CreateTemporary(FileSystem& fs, const std::string& directory,
                                  const std::string& name) {
  return CreateFresh(fs, directory,
                     [&name](int attempt) { return fmt::format("{}.{:02}.tmp", name, attempt); });
}

Status FillOrRemove(FileSystem& fs, FreshFile& fresh,
                    const std::function<Status(WritableFile&)>& fill) {
  Status status = fill(*fresh.file);
  if (status.ok()) status = fresh.file->Sync();
  if (status.ok()) status = fresh.file->Close();
  if (status.ok()) return status;
  fresh.file.reset();
  // The file is worthless, and so is an error about not getting rid of it.
  static_cast<void>(fs.Unlink(fresh.path));
  return status;
}

}  // namespace muster::checkpoint
