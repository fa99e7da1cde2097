#include "chaos/live/run_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdlib.h>
#include <sys/random.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "chaos/live/process.h"
#include "chaos/live/report.h"
#include "chaos/live/schedule.h"

namespace muster::chaos {
namespace {

constexpr int kUsageExit = 2;
constexpr int kInterruptedExit = 130;

std::uint64_t FreshSeed() {
  std::uint32_t seed = 0;
  (void)!getrandom(&seed, sizeof(seed), 0);
  return seed;
}

// Records of an undisturbed run, from where they were kept or from a run now.
Result<RunFacts> ReferenceFor(const RunOptions& options, const RunCommandOptions& command,
                              const Evidence& evidence, Console& console) {
  // As many as there are, whatever numbers they bear.
  const auto steps = static_cast<std::int64_t>(StandingOf(evidence.facts).size());
  if (!command.reference.empty()) {
    RunFacts facts;
    Result<std::vector<StepRecord>> records = ReadRecords(command.reference);
    if (!records.ok()) return records.status();
    facts.records = std::move(records).value();
    facts.epoch_samples = evidence.facts.epoch_samples;
    facts.global_batch = evidence.facts.global_batch;
    const Standing standing = StandingOf(facts);
    facts.steps = standing.empty() ? 0 : standing.rbegin()->first;
    if (facts.steps >= steps) return facts;
  }
  RunOptions undisturbed = options;
  undisturbed.record_copy = command.reference;
  return RunReference(undisturbed, steps, console);
}

void ShowSchedule(const RunOptions& options, const Schedule& schedule, Console& console) {
  console.Heading(fmt::format("scenario {}, seed {}: {}", options.scenario.name, options.seed,
                              options.scenario.summary));
  for (const PlannedFault& fault : schedule.faults) console.Line("  " + Describe(fault));
  if (schedule.faults.empty()) console.Line("  no fault");
  for (const std::string& line : options.sandbox.lacks) console.Line("  " + line);
  for (const LeftOut& left : schedule.left_out) {
    console.Line(fmt::format("  left out: {}: {}", NameOf(left.kind), left.reason));
  }
}

void ShowVerdict(const Judged& judged, const std::string& repeat, Console& console) {
  console.Heading("verdict, from the workers' own records, the process table and the files");
  for (const Finding& finding : judged.findings) console.Verdict(finding);
  const bool ok = judged.ok();
  console.Result(ok, ok ? "every promise held" : "a promise was BROKEN");
  if (!ok) console.Line("again: " + repeat);
}

Result<RunOptions> OptionsOf(const RunCommandOptions& command, const Sandbox& sandbox) {
  Result<Scenario> scenario =
      LoadScenario(command.scenario, ScenarioDirectory(command.bin_directory));
  if (!scenario.ok()) return scenario.status();
  RunOptions options;
  options.scenario = std::move(scenario).value();
  options.seed = command.seed ? *command.seed : FreshSeed();
  options.bin_directory = command.bin_directory;
  options.coordinator_program = command.coordinator;
  options.keep = command.keep;
  options.sandbox = sandbox;
  options.program = command.program;
  if (options.program.empty()) {
    options.program = DefaultProgram(command.bin_directory,
                                     options.scenario.nodes * options.scenario.workers_per_node);
  }
  return options;
}

std::string RepeatOf(const RunOptions& options, const RunCommandOptions& command) {
  std::string line = fmt::format("muster-chaos run {} --seed {}", command.scenario, options.seed);
  if (!command.coordinator.empty()) line += " --coordinator " + command.coordinator;
  if (!command.program.empty()) line += fmt::format(" -- {}", fmt::join(command.program, " "));
  return line;
}

}  // namespace

bool Judged::ok() const {
  return std::all_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.ok || finding.skipped; });
}

std::string ScenarioDirectory(const std::string& bin_directory) {
  const char* chosen = getenv("MUSTER_SCENARIOS");
  if (chosen != nullptr && *chosen != '\0') return chosen;
  const std::string share = bin_directory + "/../share/scenarios";
  if (std::filesystem::is_directory(share)) return share;
  return std::filesystem::path(bin_directory + "/../../../chaos/scenarios").lexically_normal();
}

std::vector<std::string> DefaultProgram(const std::string& bin_directory, std::int64_t workers) {
  const std::int64_t parts = std::max<std::int64_t>(8, workers);
  return {bin_directory + "/char_lm",
          "--steps",
          "1000000",
          "--min-workers",
          "1",
          "--max-workers",
          std::to_string(workers),
          "--batch",
          std::to_string(parts * 16),
          "--micro-batches",
          std::to_string(parts),
          "--hidden",
          "128",
          "--optimizer",
          "sharded",
          "--checkpoint-dir",
          "{run}/checkpoints",
          "--checkpoint-every",
          "50"};
}

Result<Judged> RunAndJudge(RunOptions options, const RunCommandOptions& command, Console& console) {
  Result<Evidence> evidence = RunScenario(options, console);
  if (!evidence.ok()) return evidence.status();
  Judged judged;
  judged.evidence = std::move(evidence).value();
  if (Interrupted()) return muster::Interrupted("the run");
  if (!command.no_reference && judged.evidence.facts.steps > 0) {
    Result<RunFacts> reference = ReferenceFor(options, command, judged.evidence, console);
    if (!reference.ok()) return reference.status();
    judged.evidence.reference = std::move(reference).value();
  }
  judged.findings = Judge(judged.evidence);
  return judged;
}

int RunCommand(const RunCommandOptions& command, std::optional<Judged>* out) {
  // Before anything else: it forks.
  const Sandbox sandbox = command.dry_run ? Sandbox{{true, true}, {}} : EnterSandbox();
  CatchInterrupts();
  Console console;
  const Result<RunOptions> options = OptionsOf(command, sandbox);
  if (!options.ok()) {
    std::fprintf(stderr, "muster-chaos: %s\n", options.status().message().c_str());
    return kUsageExit;
  }
  ShowSchedule(*options, Draw(options->scenario, options->seed, sandbox.powers), console);
  if (command.dry_run) return 0;
  Result<Judged> judged = RunAndJudge(*options, command, console);
  if (!judged.ok()) {
    console.EndProgress();
    if (judged.status().code() == Code::kInterrupted) {
      console.Result(false, "interrupted: what was started is taken down");
      return kInterruptedExit;
    }
    console.Result(false, fmt::format("nothing was judged: {}", judged.status().message()));
    return 1;
  }
  ShowVerdict(*judged, RepeatOf(*options, command), console);
  if (!command.report.empty()) {
    const Status written = WriteReport(command.report, judged->evidence, judged->findings);
    if (!written.ok()) {
      console.Result(false, written.message());
      return 1;
    }
    console.Line(fmt::format("report: {}/report.html", command.report));
  }
  if (command.json) {
    std::printf("%s\n", JsonReport(judged->evidence, judged->findings).c_str());
    std::fflush(stdout);
  }
  const int code = judged->ok() ? 0 : 1;
  if (out != nullptr) *out = std::move(judged).value();
  return code;
}

int ScenariosCommand(const std::string& bin_directory) {
  const std::string directory = ScenarioDirectory(bin_directory);
  const std::vector<std::string> names = ScenariosIn(directory);
  std::size_t width = 0;
  for (const std::string& name : names) width = std::max(width, name.size());
  bool ok = !names.empty();
  for (const std::string& name : names) {
    const Result<Scenario> scenario = LoadScenario(name, directory);
    ok = ok && scenario.ok();
    std::printf("%s\n", fmt::format("{:<{}}  {}", name, width,
                                    scenario.ok() ? scenario->summary : scenario.status().message())
                            .c_str());
  }
  if (names.empty()) std::fprintf(stderr, "no scenarios in %s\n", directory.c_str());
  return ok ? 0 : 1;
}

}  // namespace muster::chaos
