// muster-chaos: faults on real processes, and verdicts.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <string>

#include "chaos/live/bench.h"
#include "chaos/live/demo.h"

namespace {

// Where this executable lies; the others lie beside it.
std::string OwnDirectory() {
  std::array<char, 4096> path{};
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size());
  const std::string text(path.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  return text.substr(0, text.rfind('/'));
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
  CLI::App* gpu_command = bench_command->add_subcommand(
      "gpu", "Re-forms over NCCL in the same processes: their times, and what they leave behind");
  gpu_command->add_option("--reforms", gpu.reforms, "How many")->check(CLI::Range(4, 100000));
  gpu_command->add_option("--pause-every", gpu.pause_every,
                          "Every so manieth worker is stopped instead of killed; 0: none");
  gpu_command->add_option("--text", gpu.text, "File to train on instead of the licence texts");
  gpu_command->add_flag("--keep", gpu.keep, "Leave logs and records behind");

  CLI11_PARSE(app, argc, argv);
  demo.bin_directory = bench.bin_directory = gpu.bin_directory = OwnDirectory();
  if (*demo_command) return muster::chaos::RunDemo(demo);
  if (*gpu_command) return muster::chaos::RunGpuBench(gpu);
  return muster::chaos::RunRecoveryBench(bench);
}
