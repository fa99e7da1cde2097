// `muster-chaos bench`: how long a job stands still when it loses a worker, and what re-forms leave
// behind on a GPU.
#pragma once

#include <string>
#include <vector>

namespace muster::chaos {

struct BenchOptions {
  std::string bin_directory;
  int kills = 20;
  int pauses = 5;
  std::string peer;  // "torchrun": measure it too
  bool keep = false;
};

// Prints an account, and one JSON object as the last line of stdout. Returns 0 when everything
// could be measured, whatever the numbers.
[[nodiscard]] int RunRecoveryBench(const BenchOptions& options);

struct GpuBenchOptions {
  std::string bin_directory;
  int reforms = 200;
  int pause_every = 10;  // of the workers that are hit, every so manieth is stopped, not killed
  std::vector<std::string> flags = {"--device", "cuda", "--gpu", "0", "--backend", "nccl"};
  std::string text;  // to train on; empty: the licence texts
  bool keep = false;
};

// `bench gpu`: four processes on one GPU, each taken for a host of its own by NCCL; one is killed
// or stopped, the others re-form, it comes back and they grow, over and over. The last line of
// stdout is one JSON object. Returns 0 when everything could be measured.
[[nodiscard]] int RunGpuBench(const GpuBenchOptions& options);

// The value below which `percent` of the values lie (nearest rank); 0 when there are none.
[[nodiscard]] double Percentile(std::vector<double> values, double percent);

}  // namespace muster::chaos
