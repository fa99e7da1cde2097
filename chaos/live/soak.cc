#include "chaos/live/soak.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/random.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "chaos/live/console.h"
#include "chaos/live/process.h"
#include "chaos/live/run_command.h"
#include "protocol/prng.h"
#include "protocol/transport/steady_clock.h"

namespace muster::chaos {
namespace {

constexpr Duration kRunLimit = Duration::Seconds(900);
constexpr Duration kStopLimit = Duration::Seconds(60);
constexpr int kInterruptedExit = 130;

// Takes the scenarios in a fresh order each time round, so that each comes as often as the others.
class Rounds {
 public:
  Rounds(std::vector<std::string> names, std::uint64_t seed)
      : names_(std::move(names)), dice_(seed) {}
  std::string Next() {
    if (left_.empty()) {
      left_ = names_;
      for (std::size_t i = left_.size(); i > 1; --i) std::swap(left_[i - 1], left_[dice_.Below(i)]);
    }
    std::string name = left_.back();
    left_.pop_back();
    return name;
  }
  std::uint64_t Seed() { return dice_.Below(std::uint64_t{1} << 32U); }

 private:
  const std::vector<std::string> names_;
  std::vector<std::string> left_;
  Prng dice_;
};

// How one run ended: its exit code; an error when it had to be stopped.
Result<int> RunOnce(const ProcessOptions& command) {
  Result<Process> process = Process::Start(command);
  if (!process.ok()) return process.status();
  const Instant deadline = MonotonicNow() + kRunLimit;
  while (MonotonicNow() < deadline && !Interrupted()) {
    if (const auto ended = process->Wait(Duration::Millis(200))) return ExitCode(*ended);
  }
  process->Signal(SIGTERM);
  (void)process->Wait(kStopLimit);
  if (Interrupted()) return muster::Interrupted("the soak");
  return DeadlineExceeded(fmt::format("it still ran after {} s", kRunLimit.ToSeconds()));
}

class Soak {
 public:
  explicit Soak(const SoakOptions& options, std::uint64_t seed)
      : options_(options), rounds_(NamesOf(options), seed) {}

  int Run() {
    std::error_code error;
    std::filesystem::create_directories(options_.directory, error);
    const Instant end = MonotonicNow() + options_.length;
    int code = 0;
    while (MonotonicNow() < end && code != kInterruptedExit) {
      const int once = One(end);
      code = once == kInterruptedExit ? once : std::max(code, once);
    }
    Close();
    return code;
  }

 private:
  static std::vector<std::string> NamesOf(const SoakOptions& options) {
    return options.scenarios.empty() ? ScenariosIn(ScenarioDirectory(options.bin_directory))
                                     : options.scenarios;
  }

  int One(Instant end) {
    const std::string scenario = rounds_.Next();
    const std::uint64_t seed = rounds_.Seed();
    const std::string name = fmt::format("{}-{}", scenario, seed);
    const std::string report = options_.directory + "/" + name;
    ProcessOptions command;
    command.argv = {options_.own_program,
                    "run",
                    scenario,
                    "--seed",
                    std::to_string(seed),
                    "--report",
                    report,
                    "--reference",
                    options_.directory + "/reference"};
    if (!options_.program.empty()) {
      command.argv.emplace_back("--");
      command.argv.insert(command.argv.end(), options_.program.begin(), options_.program.end());
    }
    command.output = options_.directory + "/" + name + ".log";
    const Instant began = MonotonicNow();
    const Result<int> code = RunOnce(command);
    if (!code.ok() && code.status().code() == Code::kInterrupted) return kInterruptedExit;
    const bool held = code.ok() && *code == 0;
    ++tally_.runs;
    if (!AddReport(ReadFile(report + "/report.json"), &tally_) && held) return Fail(command, name);
    console_.Line(fmt::format("{:6.1f} min left  {:<30} seed {:<11} {:5.1f} s  {}",
                              std::max(0.0, (end - MonotonicNow()).ToSeconds() / 60), scenario,
                              seed, (MonotonicNow() - began).ToSeconds(),
                              held ? "held" : "BROKEN"));
    if (!held) return Fail(command, name);
    std::error_code ignored;
    std::filesystem::remove_all(report, ignored);
    std::filesystem::remove(command.output, ignored);
    return 0;
  }

  int Fail(const ProcessOptions& command, const std::string& name) {
    ++tally_.failed;
    std::ofstream list(options_.directory + "/failures.txt", std::ios::app);
    list << fmt::format("{}\n", fmt::join(command.argv, " "));
    console_.Result(false, fmt::format("  log and report: {}/{}*", options_.directory, name));
    return 1;
  }

  void Close() {
    std::int64_t faults = 0;
    std::vector<std::string> kinds;
    for (const auto& [kind, count] : tally_.faults) {
      faults += count;
      kinds.push_back(fmt::format("{} {}", count, kind));
    }
    console_.Heading(fmt::format("{} runs, {} broken; {} steps, {} re-forms, {} faults",
                                 tally_.runs, tally_.failed, tally_.steps, tally_.reforms, faults));
    console_.Line(fmt::format("  {}", fmt::join(kinds, ", ")));
    if (!options_.json) return;
    const nlohmann::json json = {{"runs", tally_.runs},
                                 {"broken", tally_.failed},
                                 {"steps", tally_.steps},
                                 {"reforms", tally_.reforms},
                                 {"faults", tally_.faults}};
    std::printf("%s\n", json.dump().c_str());
    std::fflush(stdout);
  }

  const SoakOptions& options_;
  Rounds rounds_;
  Console console_;
  SoakTally tally_;
};

}  // namespace

bool AddReport(const std::string& report, SoakTally* tally) {
  const nlohmann::json json = nlohmann::json::parse(report, nullptr, false);
  if (!json.is_object() || !json.contains("injections")) return false;
  tally->steps += json.value("steps", std::int64_t{0});
  const auto incidents = json.find("incidents");
  if (incidents != json.end()) tally->reforms += static_cast<std::int64_t>(incidents->size());
  for (const nlohmann::json& injection : json["injections"]) {
    const std::string failure = injection.value("failure", "");
    if (failure.empty()) ++tally->faults[injection.value("kind", "unknown")];
  }
  return true;
}

int RunSoak(const SoakOptions& options) {
  CatchInterrupts();
  std::uint64_t seed = 0;
  if (options.seed) {
    seed = *options.seed;
  } else {
    std::uint32_t fresh = 0;
    (void)!getrandom(&fresh, sizeof(fresh), 0);
    seed = fresh;
  }
  Console().Heading(fmt::format("soak of {:.0f} min, seed {}; what breaks is kept in {}",
                                options.length.ToSeconds() / 60, seed, options.directory));
  return Soak(options, seed).Run();
}

}  // namespace muster::chaos
