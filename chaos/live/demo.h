// `muster-chaos demo`: kill a worker of a real job in mid-run, watch the job go on, and judge it.
#pragma once

#include <cstdint>
#include <string>

namespace muster::chaos {

struct DemoOptions {
  std::string bin_directory;
  bool sharded = false;
  bool json = false;  // the facts as one object on the last line
  std::int64_t steps = 300;
  bool keep = false;  // leave records and logs behind, and say where
};

// Runs an undisturbed job and then the same one disturbed; prints an account on stdout. Returns 0
// only if every promise held.
[[nodiscard]] int RunDemo(const DemoOptions& options);

}  // namespace muster::chaos
