// `muster-chaos bench recovery`: how long a job stands still when it loses a worker.
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

// The value below which `percent` of the values lie (nearest rank); 0 when there are none.
[[nodiscard]] double Percentile(std::vector<double> values, double percent);

}  // namespace muster::chaos
