// muster: starts the workers of a node, and shows what a job is doing.

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>

#include "checkpoint/posix_file_system.h"
#include "protocol/limits.h"
#include "protocol/transport/steady_clock.h"
#include "protocol/transport/url.h"
#include "worker/cli/checkpoint_command.h"
#include "worker/cli/drain_command.h"
#include "worker/cli/gpu_command.h"
#include "worker/cli/launcher.h"
#include "worker/cli/launcher_session.h"
#include "worker/cli/ops_view.h"
#include "worker/cli/query.h"
#include "worker/cli/standalone.h"

namespace muster::cli {
namespace {

std::string FromEnvironment(const char* name, const std::string& otherwise = "") {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

std::string HostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "node";
  return name.data();
}

struct RunFlags {
  LauncherOptions launcher;
  bool standalone = false;
  std::string data_dir;
  std::int64_t restart_pause_ms = 200;
  std::int64_t restart_window_ms = 300'000;
  std::int64_t stop_timeout_ms = 30'000;
};

CLI::AsNumberWithUnit DurationInMs() {
  const std::map<std::string, std::int64_t> units = {
      {"ms", 1}, {"s", 1000}, {"m", 60'000}, {"min", 60'000}, {"h", 3'600'000}};
  return CLI::AsNumberWithUnit(units, CLI::AsNumberWithUnit::UNIT_REQUIRED, "TIME");
}

int Fail(const std::string& message) {
  fmt::print(stderr, "muster: {}\n", message);
  return 1;
}

// "" or what is wrong with the flags.
std::string Check(RunFlags& flags) {
  LauncherOptions& options = flags.launcher;
  options.restarts.first_pause = Duration::Millis(flags.restart_pause_ms);
  options.restarts.window = Duration::Millis(flags.restart_window_ms);
  options.stop_timeout = Duration::Millis(flags.stop_timeout_ms);
  if (std::string problem = options.restarts.Problem(); !problem.empty()) return problem;
  if (options.program.empty()) return "name the program to run, after --";
  if (options.job.empty()) {
    if (!flags.standalone) return "name the job with --job (or MUSTER_JOB)";
    options.job = "default";
  }
  if (options.job.size() > kMaxNameBytes || options.node.size() + 12 > kMaxNameBytes) {
    return fmt::format("--job and --node are limited to about {} bytes", kMaxNameBytes);
  }
  if (flags.standalone) return "";
  if (options.coordinator.empty()) {
    return "give the coordinator's URL with --coordinator (or MUSTER_COORDINATOR), or --standalone "
           "for one of its own";
  }
  const Result<HostPort> url = ParseUrl(options.coordinator);
  return url.ok() ? "" : "--coordinator: " + url.status().message();
}

int Run(RunFlags flags) {
  if (const std::string problem = Check(flags); !problem.empty()) return Fail(problem);
  const Result<FileDescriptor> signals = CatchSignals();
  if (!signals.ok()) return Fail(signals.status().message());
  std::unique_ptr<Standalone> standalone;
  if (flags.standalone) {
    auto started =
        Standalone::Start(BesideThisExecutable("musterd"), flags.data_dir, signals->get());
    if (!started.ok()) return Fail(started.status().message());
    standalone = std::move(*started);
    flags.launcher.coordinator = standalone->url();
    fmt::print(stderr, "[muster] musterd listens on {}; job {}\n", standalone->url(),
               flags.launcher.job);
  }
  LauncherSession session({.url = flags.launcher.coordinator,
                           .token = FromEnvironment("MUSTER_TOKEN"),
                           .job = JobName(flags.launcher.job),
                           .node = NodeName(flags.launcher.node),
                           .seed = static_cast<std::uint64_t>(getpid()) ^
                                   static_cast<std::uint64_t>(MonotonicNow().nanos())});
  Launcher launcher(flags.launcher, signals->get(), session, standalone.get(), STDOUT_FILENO,
                    STDERR_FILENO);
  return launcher.Run();
}

void AddRun(CLI::App& app, RunFlags& flags) {
  LauncherOptions& options = flags.launcher;
  options.coordinator = FromEnvironment("MUSTER_COORDINATOR");
  options.job = FromEnvironment("MUSTER_JOB");
  options.node = FromEnvironment("MUSTER_NODE", HostName());
  app.add_option("-n,--workers", options.workers, "Workers on this node")
      ->check(CLI::Range(1, kMaxWorldSize))
      ->capture_default_str();
  app.add_option("--coordinator", options.coordinator, "URL, as http://host:7077");
  app.add_option("--job", options.job, "Name of the job");
  app.add_option("--node", options.node, "Name of this node; workers are NODE-0, NODE-1, …")
      ->capture_default_str();
  app.add_option("--max-restarts", options.restarts.max_restarts,
                 "Restarts of one worker after failures, within the window")
      ->capture_default_str();
  app.add_option("--restart-window", flags.restart_window_ms, "Older failures are forgotten")
      ->transform(DurationInMs())
      ->default_str("300s");
  app.add_option("--restart-pause", flags.restart_pause_ms,
                 "Before the first restart; doubled by each further failure, up to 30s")
      ->transform(DurationInMs())
      ->default_str("200ms");
  app.add_option("--stop-timeout", flags.stop_timeout_ms,
                 "How long workers that were asked to stop may take")
      ->transform(DurationInMs())
      ->default_str("30s");
  options.notice_file = FromEnvironment("MUSTER_NOTICE_FILE");
  app.add_option(
      "--notice-file", options.notice_file,
      "While this file exists (a spot or maintenance notice), the workers leave, and none "
      "is started; when it goes away they come back (MUSTER_NOTICE_FILE)");
  auto* standalone =
      app.add_flag("--standalone", flags.standalone,
                   "Start a coordinator for this job alone, and end it with the job");
  app.add_option("--data-dir", flags.data_dir,
                 "Of that coordinator; default: a temporary one, removed at the end")
      ->needs(standalone);
  app.add_option("program", options.program, "The program and its arguments, after --");
  // Everything from the first word on that is no flag of ours belongs to the program.
  app.positionals_at_end(true);
}

void AddQuery(CLI::App& app, QueryOptions& options) {
  options.coordinator =
      FromEnvironment("MUSTER_COORDINATOR", fmt::format("http://127.0.0.1:{}", kDefaultPort));
  options.job = FromEnvironment("MUSTER_JOB");
  options.token = FromEnvironment("MUSTER_TOKEN");
  app.add_option("--coordinator", options.coordinator, "URL (MUSTER_COORDINATOR)")
      ->capture_default_str();
  app.add_option_function<std::string>(
         "-o,--output", [&options](const std::string& form) { options.json = form == "json"; },
         "text or json")
      ->check(CLI::IsMember({"text", "json"}));
  app.add_flag("--json", options.json, "The same as -o json");
}

struct StatusFlags {
  QueryOptions query;
  OpsOptions ops;
  bool show_ops = false;
};

void AddStatus(CLI::App& app, StatusFlags& flags) {
  AddQuery(app, flags.query);
  flags.ops.directory = FromEnvironment("MUSTER_FLIGHT_DIR");
  app.add_option("job,--job", flags.query.job, "Name of the job; none: all of them");
  app.add_flag("--watch", flags.query.repeat, "Show it again each second");
  CLI::Option* ops = app.add_flag(
      "--ops", flags.show_ops,
      "Ask no coordinator: compare what the workers of this host, dead ones too, wrote down of "
      "their operations with each other, and say who has not entered which");
  app.add_option("--flight-dir", flags.ops.directory,
                 "Where they wrote it (MUSTER_FLIGHT_DIR); default: " + DefaultFlightDirectory())
      ->needs(ops);
}

int ShowStatus(StatusFlags flags) {
  if (!flags.show_ops) return RunStatus(flags.query);
  flags.ops.job = flags.query.job;
  flags.ops.json = flags.query.json;
  flags.ops.repeat = flags.query.repeat;
  return RunOps(flags.ops);
}

using CheckpointCommand = int (*)(checkpoint::FileSystem&, const CheckpointOptions&);
using CheckpointCommands = std::map<const CLI::App*, CheckpointCommand>;

CheckpointCommands AddCheckpoint(CLI::App& app, CheckpointOptions& options) {
  app.require_subcommand(1);
  CheckpointCommands commands;
  const auto add = [&](const char* name, const char* text, const char* path, const char* path_text,
                       CheckpointCommand command) -> CLI::App& {
    CLI::App* added = app.add_subcommand(name, text);
    added->add_option(path, options.path, path_text)->required();
    commands.emplace(added, command);
    return *added;
  };
  const auto add_output = [&](CLI::App& to) {
    to.add_option_function<std::string>(
          "-o,--output", [&options](const std::string& form) { options.json = form == "json"; },
          "text or json")
        ->check(CLI::IsMember({"text", "json"}));
  };
  const char* const any = "A job's checkpoint directory, or one checkpoint in it";
  const char* const one = "One checkpoint, as ROOT/s000000000100-g00000001";
  add_output(add("ls", "List the checkpoints in a directory, the newest last", "ROOT", any,
                 RunCheckpointLs));
  CLI::App& show =
      add("show", "Show what a checkpoint holds", "CHECKPOINT", one, RunCheckpointShow);
  show.add_flag("--tensors", options.tensors, "List every tensor and every file");
  add_output(show);
  add("verify", "Read every byte, and name every file and block that is damaged", "ROOT", any,
      RunCheckpointVerify);
  CLI::App& reindex =
      add("reindex",
          "Make new manifests for checkpoints that have none that can be read, once every byte of "
          "them is verified. Only while no job writes there",
          "ROOT", any, RunCheckpointReindex);
  reindex.add_flag("--dry-run", options.dry_run, "Verify, and say what would be written");
  CLI::App& to_export =
      add("export", "Write a checkpoint as safetensors files with whole tensors, for other tools",
          "CHECKPOINT", one, RunCheckpointExport);
  to_export
      .add_option("OUT", options.target,
                  "A file, if it ends in .safetensors; otherwise a directory for files of at most "
                  "the part size, with an index")
      ->required();
  to_export.add_option("--part-size", options.part_bytes, "Of one file of several, as 5GB or 2GiB")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->check(CLI::PositiveNumber)
      ->option_text("SIZE (5GB)");
  to_export.add_flag("--force", options.force, "Replace what is there");
  to_export.add_flag("--copy-aliases", options.copy_aliases,
                     "Write tied tensors once for each of their names");
  add("pin", "Keep a checkpoint, whatever newer ones there are", "CHECKPOINT", one,
      RunCheckpointPin);
  add("unpin", "Let a pinned checkpoint go when its time comes", "CHECKPOINT", one,
      RunCheckpointUnpin);
  return commands;
}

void AddDrain(CLI::App& app, DrainOptions& options) {
  AddQuery(app, options.query);
  app.add_option("job", options.query.job, "Name of the job (MUSTER_JOB)");
  app.add_option("--node", options.node, "All workers of this node");
  app.add_option("--worker", options.worker, "This worker");
  const auto millis = [](Duration* into) {
    return [into](const std::int64_t& value) { *into = Duration::Millis(value); };
  };
  app.add_option_function<std::int64_t>(
         "--within", millis(&options.within),
         "Do not wait longer than that for the boundary: the step is taken again then")
      ->transform(DurationInMs());
  app.add_flag("--undo", options.undo, "Welcome the place again");
  app.add_flag("--wait", options.wait, "Return when none of it is a member any more");
  app.add_option_function<std::int64_t>("--timeout", millis(&options.timeout), "Of --wait")
      ->transform(DurationInMs())
      ->default_str("600s");
}

int Main(int argc, char** argv) {
  CLI::App app("Keeps a distributed training job running when nodes die.");
  app.require_subcommand(1);

  RunFlags run_flags;
  CLI::App* run = app.add_subcommand("run", "Start the workers of this node and watch them");
  AddRun(*run, run_flags);

  StatusFlags status_flags;
  CLI::App* status = app.add_subcommand("status", "Show a job, or all jobs, in one screen");
  AddStatus(*status, status_flags);

  QueryOptions events_options;
  CLI::App* events = app.add_subcommand("events", "List what happened to a job");
  AddQuery(*events, events_options);
  events->add_option("job", events_options.job, "Name of the job (MUSTER_JOB)");
  events->add_option("--since", events_options.since, "Only events from this number on")
      ->check(CLI::NonNegativeNumber);
  events->add_flag("--follow", events_options.repeat, "Go on as they come");

  DrainOptions drain_options;
  CLI::App* drain = app.add_subcommand(
      "drain", "Let a node or a worker go at the next step boundary, and take none there");
  AddDrain(*drain, drain_options);
  QueryOptions adopt_options;
  bool adopt_yes = false;
  CLI::App* adopt = app.add_subcommand(
      "adopt", "Go on without members that musterd cannot see, instead of waiting for them");
  AddQuery(*adopt, adopt_options);
  adopt->add_option("job", adopt_options.job, "Name of the job (MUSTER_JOB)");
  adopt->add_flag("--yes", adopt_yes, "What they do meanwhile may become void");

  CheckpointOptions checkpoint_options;
  const CheckpointCommands checkpoint_commands = AddCheckpoint(
      *app.add_subcommand("checkpoint",
                          "Look into, verify, repair and export checkpoints on a disk; needs no "
                          "coordinator"),
      checkpoint_options);

  GpuOptions gpu_options;
  CLI::App* gpu = app.add_subcommand(
      "gpu", "Show whether workers on this machine can use a GPU and NCCL, or why not");
  gpu->add_option("--gpu", gpu_options.ordinal, "Its number among the visible ones")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  gpu->add_flag("--json", gpu_options.json, "Print one JSON object");

  CLI::App* version = app.add_subcommand("version", "Print the version");
  CLI11_PARSE(app, argc, argv);

  if (run->parsed()) return Run(run_flags);
  if (status->parsed()) return ShowStatus(status_flags);
  if (events->parsed()) {
    if (events_options.job.empty()) return Fail("name the job: muster events JOB");
    return RunEvents(events_options);
  }
  if (drain->parsed()) return RunDrain(drain_options);
  if (adopt->parsed()) return RunAdopt(adopt_options, adopt_yes);
  if (gpu->parsed()) return RunGpu(gpu_options);
  for (const auto& [subcommand, command] : checkpoint_commands) {
    if (!subcommand->parsed()) continue;
    checkpoint::PosixFileSystem files;
    return command(files, checkpoint_options);
  }
  if (version->parsed()) {
    fmt::print("muster {} (protocol {}.{})\n", MUSTER_VERSION, kProtocolMajor, kProtocolMinor);
  }
  return 0;
}

}  // namespace
}  // namespace muster::cli

int main(int argc, char** argv) { return muster::cli::Main(argc, argv); }
