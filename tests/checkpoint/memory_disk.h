// A disk in memory that loses what was not synced when the power goes: file contents page by page,
// names one by one, in any combination.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "protocol/prng.h"

namespace muster::checkpoint {

// Knows absolute paths below "/"; the root exists. Files are as thread-safe as their
// interface says, the disk is not. Harsher than most real file
// systems: after a power cut a rename may have removed the old name and not made the new one.
class MemoryDisk : public FileSystem {
 public:
  // Which syncs do nothing and report success, to prove that a test notices.
  struct Lies {
    bool file_sync = false;
    bool directory_sync = false;
  };

  void Lie(Lies lies) { lies_ = lies; }
  // Everything that was not synced is gone.
  void LosePower();
  // Each page and each name that was not synced is gone or not, as the generator says.
  void LosePower(Prng& prng);
  // Gives the file this content, durably, and makes it if need be: damage from outside.
  // REQUIRES: its directory exists.
  void Overwrite(const std::string& path, const std::string& content);
  void set_free_bytes(std::int64_t bytes) { free_bytes_ = bytes; }

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

  // A file or a directory: what processes see, and what the platter holds.
  struct Node {
    bool is_directory = false;
    std::string content;
    std::string durable_content;
    std::map<std::string, std::shared_ptr<Node>> entries;
    std::map<std::string, std::shared_ptr<Node>> durable_entries;
  };

  [[nodiscard]] bool lies_about_files() const { return lies_.file_sync; }

 private:
  // The node at the path, or null.
  [[nodiscard]] std::shared_ptr<Node> Find(const std::string& path) const;

  std::shared_ptr<Node> root_ = NewDirectory();
  std::int64_t free_bytes_ = std::int64_t{1} << 40U;
  Lies lies_;

  static std::shared_ptr<Node> NewDirectory();
};

}  // namespace muster::checkpoint
