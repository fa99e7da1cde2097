// Real worker processes that train on the doubles of CUDA and NCCL (tests/gpu/README.md): one
// process a rank, each on a host of its own as far as NCCL can tell.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/fixture.h"

namespace muster::chaos {

// How long an abort may take before the process is given up, in these tests.
inline constexpr const char* kAbortTimeoutMs = "2000";

class NcclE2eTest : public E2eTest {
 protected:
  NcclE2eTest() {
    AddFlags({"--forming-timeout", "4s", "--cooldown-failures", "1000"},
             {"--max-restarts", "1000", "--restart-window", "1s"});
  }

  static Workload GpuJob(bool sharded = false) {
    Workload workload = Job(sharded);
    workload.job = sharded ? "gpu-sharded" : "gpu";
    workload.steps = 120;
    workload.flags = {"--device", "cuda", "--backend", "nccl"};
    workload.environment = {{"MUSTER_CUDART_LIBRARY", MUSTER_CUDART_DOUBLE},
                            {"MUSTER_NCCL_LIBRARY", MUSTER_NCCL_DOUBLE},
                            {"MUSTER_ABORT_TIMEOUT_MS", kAbortTimeoutMs}};
    return workload;
  }
  // The same for one node, whose double misbehaves.
  static Workload With(Workload workload, const std::string& faults) {
    workload.environment.emplace_back("MUSTER_DOUBLE_FAULTS", faults);
    return workload;
  }
  // Starts a, b, c, d, of which c has these faults, and waits for a step of theirs.
  void StartFourWith(const Workload& workload, const std::string& faults_of_c) {
    ASSERT_NO_FATAL_FAILURE(StartNodes(workload, {"a", "b", "d"}, 1));
    ASSERT_NO_FATAL_FAILURE(StartNodes(With(workload, faults_of_c), {"c"}, 1));
    const JobStatus job = Await(workload, "four workers in step", [](const JobStatus& status) {
      return status.world_size == 4 && status.phase == "running" && status.committed >= 5;
    });
    ASSERT_EQ(job.world_size, 4) << lab().OutputOf("c");
  }

  // A file whose presence arms a fault (`when=`).
  [[nodiscard]] std::string Switch(const std::string& name) {
    return lab().directory() + "/switch-" + name;
  }
  static void On(const std::string& path) { std::ofstream(path) << "on\n"; }
  static void Off(const std::string& path) { std::filesystem::remove(path); }
};

}  // namespace muster::chaos
