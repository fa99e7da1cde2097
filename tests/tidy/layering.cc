#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "tests/tidy/checks.h"
#include "tests/tidy/source.h"

namespace muster::tidy {
namespace {

using Names = std::vector<std::string_view>;

struct Layer {
  std::string_view files;  // path prefix; the longest one that fits a path counts
  Names project;           // folders, and single headers, that it may include besides its own
  Names libraries;         // besides the standard library, and POSIX unless it is pure
  bool pure = false;       // no clock, thread, socket, file, environment or global randomness
};

const std::vector<Layer>& Layers() {
  static const std::vector<Layer> layers = {
      {"protocol/", {}, {"fmt"}, true},
      {"protocol/codec", {"protocol/"}, {"fmt", "nlohmann"}, true},
      {"protocol/transport/", {"protocol/"}, {"fmt", "boost", "openssl"}},
      {"coordinator/core/", {"protocol/"}, {"fmt"}, true},
      {"worker/core/", {"protocol/"}, {"fmt"}, true},
      {"checkpoint/", {"protocol/"}, {"fmt", "nlohmann", "xxhash.h", "boost"}},
      {"coordinator/store/", {"protocol/", "checkpoint/"}, {"fmt", "nlohmann", "rocksdb"}},
      {"worker/collective/", {"protocol/"}, {"fmt", "nccl.h", "cuda"}},
      {"coordinator/server/",
       {"protocol/", "protocol/transport/", "coordinator/core/", "coordinator/store/",
        "checkpoint/"},
       {"fmt", "boost", "openssl", "spdlog", "prometheus", "nlohmann"}},
      {"coordinator/",
       {"protocol/", "protocol/transport/", "coordinator/core/", "coordinator/store/",
        "coordinator/server/"},
       {"fmt", "boost", "spdlog"}},
      {"worker/client/",
       {"protocol/", "protocol/transport/", "worker/core/", "worker/collective/", "checkpoint/"},
       {"fmt", "boost", "nlohmann"}},
      {"worker/cli/",
       {"protocol/", "protocol/transport/", "checkpoint/", "worker/collective/"},
       {"fmt", "boost", "nlohmann"}},
      {"worker/examples/",
       {"protocol/", "worker/client/", "worker/collective/device.h",
        "worker/collective/gpu_backend.h"},
       {"fmt", "CLI"}},
      {"chaos/sim/checkers/",
       {"protocol/", "coordinator/core/", "worker/core/", "chaos/sim/"},
       {"fmt"},
       true},
      {"chaos/sim/",
       {"protocol/", "coordinator/core/", "worker/core/", "checkpoint/", "chaos/sim/checkers/"},
       {"fmt", "nlohmann", "boost/pfr"},
       true},
      {"chaos/live/",
       {"protocol/", "protocol/transport/", "checkpoint/"},
       {"fmt", "boost", "nlohmann", "yaml-cpp"}},
  };
  return layers;
}

// Standard headers that bring a clock, threads, files, the environment or unportable randomness.
constexpr std::array kImpureHeaders = {
    "atomic",     "barrier",   "chrono",       "condition_variable", "csignal", "ctime",
    "filesystem", "fstream",   "future",       "iostream",           "latch",   "mutex",
    "random",     "semaphore", "shared_mutex", "stop_token",         "thread",  "cstdio"};
constexpr std::array kImpureWords = {
    "std::chrono", "std::this_thread", "clock_gettime(", "gettimeofday(", "std::time(",
    "::time(",     "time(nullptr)",    "time(NULL)",     "std::rand(",    "rand(",
    "srand(",      "getenv(",          "thread_local"};
// The one place that stops the process prints why.
constexpr std::string_view kCheckSource = "protocol/check.cc";

const Layer* LayerOf(const std::string& path) {
  const Layer* best = nullptr;
  for (const Layer& layer : Layers()) {
    if (!path.starts_with(layer.files)) continue;
    if (best == nullptr || layer.files.size() > best->files.size()) best = &layer;
  }
  return best;
}

bool Contains(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// "protocol/transport/" for "protocol/transport/net.h".
std::string_view FolderOf(std::string_view path) { return path.substr(0, path.rfind('/') + 1); }

bool IsMain(const std::string& path) { return path.ends_with("main.cc"); }

// "boost" for <boost/asio.hpp>; "" for what belongs to the standard library or to POSIX.
std::string_view LibraryOf(std::string_view target) {
  const std::size_t slash = target.find('/');
  const std::string_view first = target.substr(0, slash);
  if (target.starts_with("cuda")) return "cuda";
  if (target.starts_with("boost/pfr")) return "boost/pfr";  // no I/O in this part of it
  if (slash != std::string_view::npos) {
    const Names posix = {"sys", "linux", "netinet", "arpa", "net", "bits", "asm"};
    return Contains(posix, first) ? std::string_view() : first;
  }
  const Names libraries = {"xxhash.h", "nccl.h", "zlib.h", "zstd.h", "lz4.h"};
  return Contains(libraries, target) ? target : std::string_view();
}

// "" when the layer may include it, otherwise why not.
std::string WhyRefused(const Layer& layer, const std::string& path, const Include& include) {
  const std::string_view target = include.target;
  if (!include.angled) {
    const std::string_view folder = FolderOf(target);
    const bool own = folder == FolderOf(path);
    if (!LibraryOf(target).empty() && Contains(layer.libraries, LibraryOf(target))) {
      return "is a library: include it with angle brackets";
    }
    const bool named = Contains(layer.project, folder) || Contains(layer.project, target);
    return own || named ? "" : "lies outside of what its layer may use";
  }
  const std::string_view library = LibraryOf(target);
  if (library == "CLI" && IsMain(path)) return "";
  if (!library.empty()) {
    return Contains(layer.libraries, library) ? "" : "is no library of this layer";
  }
  if (!layer.pure || IsMain(path)) return "";
  if (path == kCheckSource && target == "cstdio") return "";
  const bool posix = target.ends_with(".h");
  const bool impure =
      std::find(kImpureHeaders.begin(), kImpureHeaders.end(), target) != kImpureHeaders.end();
  return posix || impure ? "has no place in a pure layer" : "";
}

}  // namespace

Findings CheckLayering(const std::string& path, std::string_view text) {
  Findings findings;
  const Layer* layer = LayerOf(path);
  if (layer == nullptr) return findings;
  for (const Include& include : IncludesOf(text)) {
    const std::string why = WhyRefused(*layer, path, include);
    if (!why.empty()) findings.push_back(Finding{path, include.line, include.target + " " + why});
  }
  if (!layer->pure || IsMain(path)) return findings;
  const std::string code = BlankNonCode(text);
  for (const std::string_view word : kImpureWords) {
    for (const std::size_t at : FindWord(code, word)) {
      findings.push_back(Finding{path, LineAt(code, at),
                                 std::string(word) + " has no place in a pure layer: pass it in"});
    }
  }
  return findings;
}

Findings CheckPublicHeaders(const Tree& tree) {
  Findings findings;
  for (const char* root :
       {"worker/client/worker.h", "worker/client/step.h", "worker/client/training_state.h"}) {
    std::vector<std::string> reached = {root};
    for (std::size_t i = 0; i < reached.size(); ++i) {
      const auto file = tree.find(reached[i]);
      if (file == tree.end()) continue;
      for (const Include& include : IncludesOf(file->second)) {
        const std::string_view library = LibraryOf(include.target);
        if (include.angled && (library == "boost" || library == "nlohmann")) {
          findings.push_back(
              Finding{reached[i], include.line, include.target + " reaches the users of " + root});
        }
        const bool known =
            std::find(reached.begin(), reached.end(), include.target) != reached.end();
        if (!include.angled && !known) reached.push_back(include.target);
      }
    }
  }
  return findings;
}

}  // namespace muster::tidy
