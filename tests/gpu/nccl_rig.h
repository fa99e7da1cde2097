// One process that takes part in a communicator over the doubles.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "tests/gpu/processes.h"
#include "worker/collective/gpu_backend.h"

namespace muster {

using gpu_double::Child;
using gpu_double::Processes;
using gpu_double::Variables;

inline Variables With(Variables variables = {}) {
  variables.emplace("MUSTER_CUDART_LIBRARY", MUSTER_CUDART_DOUBLE);
  variables.emplace("MUSTER_NCCL_LIBRARY", MUSTER_NCCL_DOUBLE);
  return variables;
}

inline NcclOptions ShortAborts() {
  NcclOptions options;
  options.abort_soft_deadline = Duration::Millis(100);
  options.abort_hard_deadline = Duration::Millis(300);
  options.say = [](const std::string& line) { fmt::print(stderr, "said: {}\n", line); };
  return options;
}

// One rank with its device and its communicator, which is not connected yet.
struct Rig {
  explicit Rig(const Child& child, NcclOptions options = {}) {
    auto opened = OpenDevice(0);
    REQUIRE(opened.ok());
    device = *opened;
    NcclGroup group;
    group.generation = Generation(7);
    group.rank = Rank(child.rank());
    group.world_size = child.size();
    if (child.size() > 1 && child.rank() == 0) {
      const Result<std::string> id = MintNcclId();
      REQUIRE(id.ok());
      group.id = *id;
      child.Tell(group.id);
    } else if (child.size() > 1) {
      group.id = child.Await();
    }
    auto made = MakeNcclCommunicator(device, std::move(group), std::move(options));
    REQUIRE(made.ok());
    communicator = *made;
  }
  std::shared_ptr<Device> device;
  std::shared_ptr<DeviceCommunicator> communicator;
};

// A file that is not there yet, for a fault's `when`.
inline std::string SwitchFile() {
  static int number = 0;
  std::string path = fmt::format("{}muster-switch-{}-{}", testing::TempDir(), ::getpid(), ++number);
  std::filesystem::remove(path);
  return path;
}

}  // namespace muster
