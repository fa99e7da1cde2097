#include "tests/checkpoint/memory_disk.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "protocol/check.h"

namespace muster::checkpoint {
namespace {

constexpr std::size_t kPageBytes = 512;

using Node = MemoryDisk::Node;

struct Split {
  std::string parent;
  std::string name;
};

Split SplitPath(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
}

class MemoryWritableFile : public WritableFile {
 public:
  MemoryWritableFile(const MemoryDisk& disk, std::shared_ptr<Node> node)
      : disk_(disk), node_(std::move(node)) {}
  Status WriteAt(std::int64_t offset, std::span<const std::byte> bytes) override {
    const auto start = static_cast<std::size_t>(offset);
    const std::lock_guard lock(mutex_);
    if (node_->content.size() < start + bytes.size()) node_->content.resize(start + bytes.size());
    std::memcpy(node_->content.data() + start, bytes.data(), bytes.size());
    return {};
  }
  Status SetSize(std::int64_t bytes) override {
    node_->content.resize(static_cast<std::size_t>(bytes));
    return {};
  }
  Status Sync() override {
    if (!disk_.lies_about_files()) node_->durable_content = node_->content;
    return {};
  }
  Status Close() override { return {}; }

 private:
  const MemoryDisk& disk_;
  std::shared_ptr<Node> node_;
  std::mutex mutex_;  // held by WriteAt
};

class MemoryReadableFile : public ReadableFile {
 public:
  MemoryReadableFile(std::shared_ptr<Node> node, std::string path)
      : node_(std::move(node)), path_(std::move(path)) {}
  [[nodiscard]] Result<std::int64_t> Size() const override { return std::ssize(node_->content); }
  Status ReadAt(std::int64_t offset, std::span<std::byte> into) override {
    const auto start = static_cast<std::size_t>(offset);
    if (start + into.size() > node_->content.size()) return DataLoss(path_ + ": ends too early");
    std::memcpy(into.data(), node_->content.data() + start, into.size());
    return {};
  }

 private:
  std::shared_ptr<Node> node_;
  std::string path_;
};

// Content after a power cut: each page old or new; the length old or new.
std::string MixPages(const std::string& durable, const std::string& content, Prng& prng) {
  std::string mixed = durable;
  mixed.resize(prng.Chance(1, 2) ? content.size() : durable.size(), '\0');
  for (std::size_t page = 0; page < mixed.size(); page += kPageBytes) {
    if (prng.Chance(1, 2) || page >= content.size()) continue;
    const std::size_t count = std::min({kPageBytes, mixed.size() - page, content.size() - page});
    std::memcpy(mixed.data() + page, content.data() + page, count);
  }
  return mixed;
}

void LosePowerAt(Node& node, Prng* prng) {
  if (!node.is_directory) {
    node.content = prng == nullptr ? node.durable_content
                                   : MixPages(node.durable_content, node.content, *prng);
    node.durable_content = node.content;
    return;
  }
  std::set<std::string> names;
  for (const auto& [name, child] : node.entries) names.insert(name);
  for (const auto& [name, child] : node.durable_entries) names.insert(name);
  std::map<std::string, std::shared_ptr<Node>> left;
  for (const std::string& name : names) {
    const bool synced = prng == nullptr || prng->Chance(1, 2);
    const auto& entries = synced ? node.durable_entries : node.entries;
    if (const auto it = entries.find(name); it != entries.end()) left.insert(*it);
  }
  node.entries = left;
  node.durable_entries = left;
  for (const auto& [name, child] : left) LosePowerAt(*child, prng);
}

Status Error(int error_number, const std::string& path) { return FromErrno(error_number, path); }

}  // namespace

std::shared_ptr<Node> MemoryDisk::NewDirectory() {
  auto node = std::make_shared<Node>();
  node->is_directory = true;
  return node;
}

std::shared_ptr<Node> MemoryDisk::Find(const std::string& path) const {
  std::shared_ptr<Node> node = root_;
  std::size_t at = 1;
  while (node != nullptr && at < path.size()) {
    const std::size_t slash = std::min(path.find('/', at), path.size());
    const auto it = node->entries.find(path.substr(at, slash - at));
    node = it == node->entries.end() ? nullptr : it->second;
    at = slash + 1;
  }
  return node;
}

void MemoryDisk::Overwrite(const std::string& path, const std::string& content) {
  const std::shared_ptr<Node> directory = Find(SplitPath(path).parent);
  MUSTER_CHECK(directory != nullptr, "a file needs its directory");
  auto node = std::make_shared<Node>();
  node->content = content;
  node->durable_content = content;
  directory->entries[SplitPath(path).name] = node;
  directory->durable_entries[SplitPath(path).name] = node;
}

void MemoryDisk::LosePower() { LosePowerAt(*root_, nullptr); }
void MemoryDisk::LosePower(Prng& prng) { LosePowerAt(*root_, &prng); }

Result<std::unique_ptr<WritableFile>> MemoryDisk::CreateExclusively(const std::string& path) {
  const auto [parent, name] = SplitPath(path);
  const std::shared_ptr<Node> directory = Find(parent);
  if (directory == nullptr) return Error(ENOENT, path);
  auto node = std::make_shared<Node>();
  if (!directory->entries.emplace(name, node).second) return Error(EEXIST, path);
  return std::unique_ptr<WritableFile>(std::make_unique<MemoryWritableFile>(*this, node));
}

Result<std::unique_ptr<ReadableFile>> MemoryDisk::OpenForReading(const std::string& path) {
  const std::shared_ptr<Node> node = Find(path);
  if (node == nullptr) return Error(ENOENT, path);
  return std::unique_ptr<ReadableFile>(std::make_unique<MemoryReadableFile>(node, path));
}

Status MemoryDisk::SyncDirectory(const std::string& path) {
  const std::shared_ptr<Node> node = Find(path);
  if (node == nullptr) return Error(ENOENT, path);
  if (!lies_.directory_sync) node->durable_entries = node->entries;
  return {};
}

Status MemoryDisk::Rename(const std::string& from, const std::string& to) {
  const std::shared_ptr<Node> node = Find(from);
  const std::shared_ptr<Node> target = Find(SplitPath(to).parent);
  if (node == nullptr || target == nullptr) return Error(ENOENT, from);
  Find(SplitPath(from).parent)->entries.erase(SplitPath(from).name);
  target->entries[SplitPath(to).name] = node;
  return {};
}

Status MemoryDisk::MakeDirectory(const std::string& path) {
  const auto [parent, name] = SplitPath(path);
  const std::shared_ptr<Node> directory = Find(parent);
  if (directory == nullptr) return Error(ENOENT, path);
  return directory->entries.emplace(name, NewDirectory()).second ? Status() : Error(EEXIST, path);
}

Status MemoryDisk::Unlink(const std::string& path) {
  const auto [parent, name] = SplitPath(path);
  const std::shared_ptr<Node> directory = Find(parent);
  if (directory == nullptr || directory->entries.erase(name) == 0) return Error(ENOENT, path);
  return {};
}

Status MemoryDisk::RemoveDirectory(const std::string& path) {
  const std::shared_ptr<Node> node = Find(path);
  if (node == nullptr) return Error(ENOENT, path);
  if (!node->entries.empty()) return Error(ENOTEMPTY, path);
  return Unlink(path);
}

Result<std::vector<std::string>> MemoryDisk::List(const std::string& path) {
  const std::shared_ptr<Node> node = Find(path);
  if (node == nullptr) return Error(ENOENT, path);
  std::vector<std::string> names;
  for (const auto& [name, child] : node->entries) names.push_back(name);
  return names;
}

Result<std::int64_t> MemoryDisk::FreeBytes(const std::string& path) {
  if (Find(path) == nullptr) return Error(ENOENT, path);
  return free_bytes_;
}

}  // namespace muster::checkpoint
