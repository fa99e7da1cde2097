#include "checkpoint/file_system.h"

#include <fmt/format.h>

namespace muster::checkpoint {
namespace {

void CutSlashes(std::string* path) {
  while (path->size() > 1 && path->back() == '/') path->pop_back();
}

}  // namespace

std::string JoinPath(const std::string& directory, const std::string& name) {
  if (!directory.empty() && directory.back() == '/') return directory + name;
  return directory + "/" + name;
}

std::string ParentOf(std::string path) {
  CutSlashes(&path);
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string BaseNameOf(std::string path) {
  CutSlashes(&path);
  return path.substr(path.rfind('/') + 1);
}

Result<std::string> ReadWhole(FileSystem& fs, const std::string& path, std::int64_t limit) {
  Result<std::unique_ptr<ReadableFile>> file = fs.OpenForReading(path);
  if (!file.ok()) return file.status();
  const Result<std::int64_t> size = (*file)->Size();
  if (!size.ok()) return size.status();
  if (*size > limit) {
    return DataLoss(
        fmt::format("{}: {} bytes, and no such file has more than {}", path, *size, limit));
  }
  std::string text(static_cast<std::size_t>(*size), '\0');
  MUSTER_RETURN_IF_ERROR((*file)->ReadAt(0, std::as_writable_bytes(std::span(text))));
  return text;
}

}  // namespace muster::checkpoint
