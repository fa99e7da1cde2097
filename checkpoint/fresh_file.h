// Files that appear whole or not at all, under names that nothing had before. Internal to what
// writes below a checkpoint root or an export's target.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "checkpoint/file_system.h"
#include "protocol/status.h"

namespace muster::checkpoint {

// A file that did not exist before, and its name.
struct FreshFile {
  std::string name;
  std::string path;
  std::unique_ptr<WritableFile> file;
};

// Creates the first of the names for attempt 0, 1, … that is free in the directory.
// kResourceExhausted when all kMaxAttempts of them are taken.
[[nodiscard]] Result<FreshFile> CreateFresh(FileSystem& fs, const std::string& directory,
                                            const std::function<std::string(int)>& name_of);

// Creates a file for "<name>.<attempt: 2 digits>.tmp", from which it is to be renamed to `name`.
[[nodiscard]] Result<FreshFile> CreateTemporary(FileSystem& fs, const std::string& directory,
                                                const std::string& name);

// Runs `fill`, syncs and closes the file; removes it when any of this fails.
Status FillOrRemove(FileSystem& fs, FreshFile& fresh,
                    const std::function<Status(WritableFile&)>& fill);

}  // namespace muster::checkpoint
