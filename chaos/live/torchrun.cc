#include "chaos/live/torchrun.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "chaos/live/process.h"

namespace muster::chaos {
namespace {

constexpr Duration kKillLimit = Duration::Seconds(180);  // one kill and its recovery
constexpr Duration kImportLimit = Duration::Seconds(60);

// The script prints {"kill_to_step_ms": [...]} as its last line.
Result<std::vector<double>> ParseLastLine(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const std::string line = text.substr(text.rfind('\n') + 1);
  try {
    return nlohmann::json::parse(line).at("kill_to_step_ms").get<std::vector<double>>();
  } catch (const std::exception& error) {
    return Internal(fmt::format("torchrun_peer.py printed no result ({}): {}", error.what(), text));
  }
}

}  // namespace

Result<std::vector<double>> MeasureTorchrunKills(TorchrunMode mode, int kills) {
  ProcessOptions probe;
  probe.argv = {"/usr/bin/python3", "-c", "import torch.distributed"};
  const Result<int> present = RunToEnd(probe, kImportLimit);
  if (!present.ok()) return present.status();
  if (*present != 0) {
    return NotFound(
        "the peer needs PyTorch: as root, apt-get install -y --no-install-recommends "
        "python3-torch");
  }
  const std::filesystem::path root = std::filesystem::temp_directory_path() / "muster-torch-XXXXXX";
  std::string directory = root.string();
  if (mkdtemp(directory.data()) == nullptr) return FromErrno(errno, directory);
  ProcessOptions options;
  options.argv = {"/usr/bin/python3", MUSTER_SOURCE_DIR "/tests/bench/torchrun_peer.py",
                  "--mode",           mode == TorchrunMode::kTuned ? "tuned" : "default",
                  "--kills",          std::to_string(kills),
                  "--directory",      directory};
  options.output = directory + "/peer.log";
  const Result<int> code = RunToEnd(options, kKillLimit * (kills + 1));
  const std::string output = ReadFile(options.output);
  // The agents were children of the script; whatever it left behind is ours now.
  ReapStrays({});
  if (!code.ok()) return code.status();
  if (*code != 0) {
    return Internal(
        fmt::format("torchrun_peer.py ended with {} (logs in {}): {}", *code, directory, output));
  }
  std::filesystem::remove_all(directory);
  return ParseLastLine(output);
}

}  // namespace muster::chaos
