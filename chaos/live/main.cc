// muster-chaos: faults on real processes, and verdicts.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <string>

#include "chaos/live/bench.h"
#include "chaos/live/demo.h"
#include "chaos/live/drill.h"
#include "chaos/live/run_command.h"
#include "chaos/live/soak.h"
#include "protocol/duration_text.h"

namespace {

// Where this executable lies; the others lie beside it.
std::string OwnDirectory() {
  std::array<char, 4096> path{};
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size());
  const std::string text(path.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  return text.substr(0, text.rfind('/'));
}

CLI::App* AddGpuBench(CLI::App& bench, muster::chaos::GpuBenchOptions* gpu) {
  CLI::App* command = bench.add_subcommand(
      "gpu", "Re-forms over NCCL in the same processes: their times, and what they leave behind");
  command->add_option("--reforms", gpu->reforms, "How many")->check(CLI::Range(4, 100000));
  command->add_option("--pause-every", gpu->pause_every,
                      "Every so manieth worker is stopped instead of killed; 0: none");
  command->add_option("--text", gpu->text, "File to train on instead of the licence texts");
  command->add_flag("--keep", gpu->keep, "Leave logs and records behind");
  return command;
}

CLI::App* AddRun(CLI::App& app, muster::chaos::RunCommandOptions* run) {
  CLI::App* command =
      app.add_subcommand("run", "Run a program under a scenario, break it, and judge what it did");
  command->footer(
      "PROGRAM is any that embeds Muster's worker library; nothing in it changes. \"{run}\" in "
      "its\n"
      "arguments stands for a fresh directory: let it save its checkpoints there, as in\n"
      "  muster-chaos run single-kill -- ./train --checkpoint-dir {run}/checkpoints\n"
      "It is started by `muster run` on each node of the scenario, with MUSTER_COORDINATOR and "
      "all\n"
      "else that the worker library reads in its environment. Without one, a small language model\n"
      "is trained. Exit code: 0 all promises held, 1 one did not, 2 no such scenario, 130 "
      "interrupted.");
  command
      ->add_option("scenario", run->scenario,
                   "Name of one that ships (`muster-chaos scenarios`), or a file")
      ->required();
  command->add_option("program", run->program, "The program and its arguments, after --");
  command->add_option("--seed", run->seed, "Of the schedule; the same one breaks the same things");
  command->add_option("--report", run->report,
                      "Directory for report.html, report.json and junit.xml");
  command->add_option("--coordinator", run->coordinator, "Run this program instead of musterd");
  command->add_option("--reference", run->reference,
                      "Records of an undisturbed run, kept there between runs of one program");
  command->add_flag("--no-reference", run->no_reference,
                    "No undisturbed run to compare with: S4 is not judged");
  command->add_flag("--dry-run", run->dry_run, "Show the schedule and start nothing");
  command->add_flag("--keep", run->keep, "Leave logs and records behind");
  command->add_flag("--json", run->json, "Print the report as one object on the last line");
  return command;
}

CLI::App* AddDrill(CLI::App& app, muster::chaos::RunCommandOptions* drill, std::string* mtbf) {
  CLI::App* command = app.add_subcommand(
      "drill",
      "The rehearsal before a long run, on your own loop: a kill, a pause, a restart of musterd, a "
      "damaged checkpoint, a drain, and an undisturbed run to compare with; then go or no-go");
  command->footer("As for `run`: write {run} where the program's checkpoint directory stands.");
  command->add_option("program", drill->program, "The program and its arguments, after --");
  command->add_option("--mtbf", *mtbf, "Mean time between failures that you expect");
  command->add_option("--seed", drill->seed, "Of the schedule");
  command->add_option("--report", drill->report,
                      "Directory for report.html, report.json and junit.xml");
  command->add_flag("--keep", drill->keep, "Leave logs and records behind");
  return command;
}

CLI::App* AddSoak(CLI::App& app, muster::chaos::SoakOptions* soak, double* minutes) {
  CLI::App* command = app.add_subcommand(
      "soak", "Run one scenario after another with fresh seeds, and keep the seeds that break");
  command->add_option("--minutes", *minutes, "No run begins after so many")
      ->check(CLI::Range(0.1, 100000.0));
  command->add_option("--seed", soak->seed, "Of the order and of the runs' seeds");
  soak->directory = "build/soak";
  command->add_option("--dir", soak->directory,
                      "Reports and logs of runs that broke, and failures.txt with their commands");
  command->add_option("--scenario", soak->scenarios, "Only this one; may be given again");
  command->add_flag("--json", soak->json, "Print the sums as one object on the last line");
  command->add_option("program", soak->program, "The program and its arguments, after --");
  return command;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Kills, stops and cuts real Muster processes, and judges what they do then.");
  app.require_subcommand(1);
  app.option_defaults()->always_capture_default();

  muster::chaos::DemoOptions demo;
  CLI::App* demo_command =
      app.add_subcommand("demo", "Kill one of four workers in mid-run and watch the job go on");
  demo_command->add_flag("--sharded", demo.sharded,
                         "Cut the optimizer state over the workers: a death loses a part of it");
  demo_command->add_flag("--json", demo.json, "Print the facts as one object on the last line");
  demo_command->add_option("--steps", demo.steps, "Of the job")->check(CLI::Range(60, 1000000));
  demo_command->add_flag("--keep", demo.keep, "Leave logs and records behind");

  muster::chaos::BenchOptions bench;
  CLI::App* bench_command = app.add_subcommand("bench", "Measure; the last line is JSON");
  bench_command->require_subcommand(1);
  CLI::App* recovery = bench_command->add_subcommand(
      "recovery", "From a kill or a pause of one of four workers to the others' next step");
  recovery->add_option("--kills", bench.kills, "SIGKILLs")->check(CLI::Range(0, 10000));
  recovery->add_option("--pauses", bench.pauses, "SIGSTOPs")->check(CLI::Range(0, 10000));
  recovery->add_option("--peer", bench.peer, "Measure this one too")
      ->check(CLI::IsMember({"torchrun"}));
  recovery->add_flag("--keep", bench.keep, "Leave logs and records behind");

  muster::chaos::GpuBenchOptions gpu;
  const CLI::App* gpu_command = AddGpuBench(*bench_command, &gpu);

  muster::chaos::RunCommandOptions run;
  const CLI::App* run_command = AddRun(app, &run);
  const CLI::App* scenarios_command =
      app.add_subcommand("scenarios", "List the scenarios that ship, with what they do");
  muster::chaos::RunCommandOptions drill;
  drill.scenario = "drill";
  std::string mtbf = "6h";
  const CLI::App* drill_command = AddDrill(app, &drill, &mtbf);
  muster::chaos::SoakOptions soak;
  double minutes = 10;
  const CLI::App* soak_command = AddSoak(app, &soak, &minutes);

  CLI11_PARSE(app, argc, argv);
  if (*run_command) {
    run.bin_directory = OwnDirectory();
    return muster::chaos::RunCommand(run);
  }
  if (*drill_command) {
    const muster::Result<muster::Duration> between = muster::ParseDuration(mtbf);
    if (!between.ok() || *between <= muster::Duration()) {
      std::fprintf(stderr, "muster-chaos: --mtbf: a time as 90m, 6h or 24h, not '%s'\n",
                   mtbf.c_str());
      return 2;
    }
    drill.bin_directory = OwnDirectory();
    return muster::chaos::DrillCommand(drill, *between);
  }
  if (*scenarios_command) return muster::chaos::ScenariosCommand(OwnDirectory());
  if (*soak_command) {
    soak.bin_directory = OwnDirectory();
    soak.own_program = OwnDirectory() + "/muster-chaos";
    soak.length = muster::Duration::Millis(static_cast<std::int64_t>(minutes * 60'000));
    return muster::chaos::RunSoak(soak);
  }
  demo.bin_directory = bench.bin_directory = gpu.bin_directory = OwnDirectory();
  if (*demo_command) return muster::chaos::RunDemo(demo);
  if (*gpu_command) return muster::chaos::RunGpuBench(gpu);
  return muster::chaos::RunRecoveryBench(bench);
}
