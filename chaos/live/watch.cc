#include "chaos/live/watch.h"

#include <dirent.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <fstream>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "chaos/live/process.h"

namespace muster::chaos {
namespace {

constexpr Duration kVerifyLimit = Duration::Seconds(120);

// Strings between zero bytes.
std::vector<std::string> Strings(const std::string& text) {
  std::vector<std::string> strings;
  std::istringstream stream(text);
  for (std::string entry; std::getline(stream, entry, '\0');) strings.push_back(std::move(entry));
  return strings;
}

std::string ValueOf(const std::vector<std::string>& environment, const std::string& name) {
  for (const std::string& entry : environment) {
    if (entry.starts_with(name + "=")) return entry.substr(name.size() + 1);
  }
  return {};
}

std::string BaseName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// "musterd", or a twin of it that is made to misbehave.
void NameRole(std::int64_t pid, const std::vector<std::string>& environment,
              ProcessHistory* history) {
  const std::vector<std::string> argv = Strings(ReadFile(fmt::format("/proc/{}/cmdline", pid)));
  const std::string program = argv.empty() ? "" : BaseName(argv[0]);
  const std::string worker = ValueOf(environment, "MUSTER_WORKER");
  if (!worker.empty()) {
    history->role = "worker";
    history->name = worker;
  } else if (program.starts_with("musterd")) {
    history->role = "coordinator";
    history->name = "musterd";
  } else if (program == "muster" && argv.size() > 1 && argv[1] == "run") {
    history->role = "launcher";
    const auto node = std::find(argv.begin(), argv.end(), "--node");
    history->name = node == argv.end() || node + 1 == argv.end() ? "" : *(node + 1);
  } else {
    history->role = "other";
    history->name = program;
  }
}

std::int64_t CountEntries(const std::string& directory) {
  DIR* opened = opendir(directory.c_str());
  if (opened == nullptr) return 0;
  std::int64_t count = -2;  // "." and ".."
  while (readdir(opened) != nullptr) ++count;
  closedir(opened);
  return std::max<std::int64_t>(0, count);
}

std::int64_t NumberAfter(const std::string& text, const std::string& key) {
  const std::size_t at = text.find(key);
  if (at == std::string::npos) return 0;
  return std::strtoll(text.c_str() + at + key.size(), nullptr, 10);
}

std::vector<std::int64_t> AllPids() {
  std::vector<std::int64_t> pids;
  DIR* proc = opendir("/proc");
  if (proc == nullptr) return pids;
  while (const dirent* entry = readdir(proc)) {
    const std::string_view name(entry->d_name);
    std::int64_t pid = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error == std::errc() && end == name.data() + name.size()) pids.push_back(pid);
  }
  closedir(proc);
  return pids;
}

// A line with its numbers taken out: what is the same in all of its repetitions.
std::string Shape(const std::string& line) {
  std::string shape;
  for (std::size_t i = 0; i < line.size();) {
    if (std::isxdigit(static_cast<unsigned char>(line[i])) == 0) {
      shape += line[i++];
      continue;
    }
    std::size_t end = i;
    bool digit = false;
    while (end < line.size() && std::isxdigit(static_cast<unsigned char>(line[end])) != 0) {
      digit = digit || std::isdigit(static_cast<unsigned char>(line[end])) != 0;
      ++end;
    }
    shape += digit ? "#" : line.substr(i, end - i);
    i = end;
  }
  return shape;
}

}  // namespace

ProcessWatch::ProcessWatch(std::string mark, std::size_t most_samples)
    : mark_(std::move(mark)), most_samples_(most_samples) {}

void ProcessWatch::Note(std::int64_t pid, std::int64_t now_ns) {
  const std::optional<std::uint64_t> start = StartTicksOf(pid);
  if (!start) return;
  const Key key{pid, *start};
  const auto known = lives_.find(key);
  if (known == lives_.end()) {
    const std::vector<std::string> environment =
        Strings(ReadFile(fmt::format("/proc/{}/environ", pid)));
    // Between fork and exec it still has the environment of the one who starts it: look again.
    if (std::find(environment.begin(), environment.end(), mark_) == environment.end()) return;
    ProcessHistory& history = lives_[key].history;
    history.pid = pid;
    history.start_ticks = *start;
    history.first_ns = now_ns;
  }
  Life& life = lives_[key];
  // exec() makes another program of it: the role is that of the last.
  NameRole(pid, Strings(ReadFile(fmt::format("/proc/{}/environ", pid))), &life.history);
  life.history.last_ns = now_ns;
  if (life.looks++ % life.keep_every != 0) return;
  const std::string status = ReadFile(fmt::format("/proc/{}/status", pid));
  std::vector<ProcessSample>& samples = life.history.samples;
  samples.push_back({now_ns, CountEntries(fmt::format("/proc/{}/fd", pid)),
                     NumberAfter(status, "Threads:"), NumberAfter(status, "VmRSS:")});
  if (samples.size() < most_samples_) return;
  for (std::size_t i = 0; i < samples.size() / 2; ++i) samples[i] = samples[2 * i];
  samples.resize(samples.size() / 2);
  life.keep_every *= 2;
}

void ProcessWatch::Look(std::int64_t now_ns) {
  now_ns_ = now_ns;
  for (const std::int64_t pid : AllPids()) {
    if (pid != getpid()) Note(pid, now_ns);
  }
}

std::vector<ProcessHistory> ProcessWatch::Histories() const {
  std::vector<ProcessHistory> all;
  for (const auto& [key, life] : lives_) all.push_back(life.history);
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.first_ns < b.first_ns; });
  return all;
}

std::vector<ProcessHistory> ProcessWatch::Alive() const {
  std::vector<ProcessHistory> alive = Histories();
  std::erase_if(alive, [&](const ProcessHistory& life) { return life.last_ns != now_ns_; });
  return alive;
}

Result<LogFact> FactsOfLog(const std::string& path, const std::string& name) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFound(fmt::format("{} cannot be read", path));
  LogFact fact;
  fact.name = name;
  const bool all = name.starts_with("musterd");
  std::unordered_map<std::string, std::int64_t> shapes;
  std::string line;
  while (std::getline(file, line)) {
    // What a worker printed is passed on by its launcher as "[b-0] …".
    if (!all && !line.starts_with("[muster] ")) continue;
    fact.bytes += static_cast<std::int64_t>(line.size()) + 1;
    ++fact.lines;
    constexpr std::size_t kMostShapes = 100'000;
    if (shapes.size() > kMostShapes) continue;
    std::string shape = Shape(line);
    const std::int64_t count = ++shapes[shape];
    if (count > fact.repeats) {
      fact.repeats = count;
      fact.most_frequent = std::move(shape);
    }
  }
  return fact;
}

std::vector<CheckpointFact> VerifyCheckpoints(const std::string& muster, const std::string& root,
                                              const JobStatus& job) {
  std::vector<CheckpointFact> facts;
  for (const CheckpointStatus& checkpoint : job.checkpoints) {
    CheckpointFact fact;
    fact.directory = checkpoint.directory;
    fact.step = checkpoint.step;
    fact.announced = checkpoint.state == "announced";
    if (!fact.announced) continue;
    std::string output = "/tmp/muster-verify-XXXXXX";
    const int file = mkstemp(output.data());
    if (file >= 0) close(file);
    ProcessOptions command;
    command.argv = {muster, "checkpoint", "verify", root + "/" + checkpoint.directory};
    command.output = output;
    const Result<int> code = RunToEnd(command, kVerifyLimit);
    fact.loads = code.ok() && *code == 0;
    fact.detail = code.ok() ? ReadFile(output) : code.status().message();
    std::replace(fact.detail.begin(), fact.detail.end(), '\n', ' ');
    while (fact.detail.ends_with(' ')) fact.detail.pop_back();
    unlink(output.c_str());
    facts.push_back(std::move(fact));
  }
  return facts;
}

}  // namespace muster::chaos
