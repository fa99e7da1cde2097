// Measures checkpoints against what the machine can do: `./run bench checkpoint`. A line for each
// part, and one JSON object last; every ratio is one of medians of interleaved repeats.
#include <fmt/format.h>
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "tests/bench/checkpoint_measures.h"

namespace muster::bench {
namespace {

constexpr std::int64_t kMostBytes = std::int64_t{1} << 30U;

std::int64_t AvailableMemory() {
  std::ifstream info("/proc/meminfo");
  for (std::string word; info >> word;) {
    std::int64_t kilobytes = 0;
    if (word == "MemAvailable:" && info >> kilobytes) return kilobytes * 1024;
  }
  return kMostBytes;
}

// 1 GiB, less on a machine that lacks the memory for five times as much or the disk for three.
std::int64_t DefaultBytes(const std::string& directory) {
  checkpoint::PosixFileSystem fs;
  const Result<std::int64_t> disk = fs.FreeBytes(directory);
  return std::min({kMostBytes, AvailableMemory() / 5, disk.ok() ? *disk / 3 : kMostBytes});
}

// A directory that is removed, with everything in it, at the end.
class WorkDirectory {
 public:
  explicit WorkDirectory(const std::string& parent)
      : path_((std::filesystem::absolute(parent) / "muster-bench-XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  WorkDirectory(const WorkDirectory&) = delete;
  WorkDirectory& operator=(const WorkDirectory&) = delete;
  ~WorkDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Status MeasureAll(Setup& setup, std::int64_t bytes) {
  setup.tensors = TransformerState(bytes);
  MUSTER_RETURN_IF_ERROR(setup.live.Allocate(setup.tensors));
  setup.live.Randomize(setup.pool);
  const std::int64_t state_bytes = std::ssize(setup.live.all());
  setup.report = {{"bytes", state_bytes}, {"repeats", setup.repeats}};
  std::printf("state    %zu tensors, %.2f GB, to %s\n", setup.tensors.size(),
              static_cast<double>(state_bytes) / 1e9, setup.directory.c_str());
  for (const auto measure : {MeasureStall, MeasureWrite, MeasureRead, MeasureReshard, MeasureMemory,
                             MeasurePlan, MeasureCommits, MeasureTorch}) {
    MUSTER_RETURN_IF_ERROR(measure(setup));
  }
  return {};
}

int Run(const std::string& parent, std::int64_t bytes, int repeats) {
  const WorkDirectory directory(parent);
  if (directory.path().empty()) {
    std::fprintf(stderr, "bench checkpoint: cannot make a directory in %s\n", parent.c_str());
    return 1;
  }
  Setup setup;
  setup.directory = directory.path();
  setup.repeats = repeats;
  if (const Status status = MeasureAll(setup, bytes > 0 ? bytes : DefaultBytes(parent));
      !status.ok()) {
    std::fprintf(stderr, "bench checkpoint: %s\n", status.message().c_str());
    return 1;
  }
  std::printf("%s\n", setup.report.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) {
  CLI::App app("Measures checkpoints against what the machine can do.");
  std::string directory = std::filesystem::temp_directory_path().string();
  std::int64_t bytes = 0;
  int repeats = 7;
  app.add_option("--directory", directory, "where to write; on the disk that is to be measured")
      ->check(CLI::ExistingDirectory)
      ->capture_default_str();
  app.add_option("--bytes", bytes, "of the state; default: 1 GiB, or what the machine allows")
      ->check(CLI::PositiveNumber);
  app.add_option("--repeats", repeats, "of each measurement")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return muster::bench::Run(directory, bytes, repeats);
}
