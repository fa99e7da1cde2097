// Scenarios that ship, run for real: the lab's verdict on Muster is the test. The ids are those of
// the public failures that each of them stands for.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "chaos/live/process.h"
#include "tests/support/temp_dir.h"

namespace muster::chaos {
namespace {

struct Case {
  const char* scenario;
  const char* ids;
};

void PrintTo(const Case& tested, std::ostream* out) { *out << tested.scenario; }

std::string NameOf(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.scenario;
  for (char& letter : name) {
    if (letter == '-') letter = '_';
  }
  return name;
}

class LabTest : public testing::TestWithParam<Case> {};

TEST_P(LabTest, EveryPromiseHolds) {
  const test::TempDir directory;
  ProcessOptions command;
  command.argv = {std::string(MUSTER_BIN_DIR) + "/muster-chaos",
                  "run",
                  GetParam().scenario,
                  "--seed",
                  "5",
                  "--report",
                  directory.path() + "/report"};
  command.output = directory.path() + "/log";
  constexpr Duration kLimit = Duration::Seconds(600);
  const Result<int> code = RunToEnd(command, kLimit);
  ASSERT_TRUE(code.ok()) << code.status().ToString() << "\n" << ReadFile(command.output);
  EXPECT_EQ(*code, 0) << GetParam().ids << "\n" << ReadFile(command.output);
  EXPECT_NE(ReadFile(directory.path() + "/report/report.json"), "");
}

#ifdef MUSTER_LONG
INSTANTIATE_TEST_SUITE_P(
    Long, LabTest,
    testing::Values(Case{"coordinator-restart", "M04 O03"}, Case{"link-reset", "O03 O01"},
                    Case{"launcher-killed", "C15"}, Case{"node-loss", "C08 T13"},
                    Case{"short-pause", "M01 M20 H02"}, Case{"pause-and-wake", "M01 M08 M16"},
                    Case{"rolling-restart", "M03 O14 T02"}, Case{"coordinator-store-lost", "M04"},
                    Case{"coordinator-away-at-a-death", "M04"},
                    Case{"split-between-workers", "M11"}, Case{"one-way-loss", "M23"},
                    Case{"link-down", "M23 M22"}, Case{"slow-link", "O05 O04"},
                    Case{"checkpoint-disk-full", "S03"}, Case{"index-disk-full", "S03"},
                    Case{"kill-during-save", "S01 S02"}, Case{"stop-with-deadline", "O14 O12"},
                    Case{"starvation", "M20"}, Case{"kill-storm", "M24 C08"},
                    Case{"drill", "L03 S20"}),
    NameOf);
#else
INSTANTIATE_TEST_SUITE_P(
    Short, LabTest,
    testing::Values(Case{"single-kill", "M22 C08"}, Case{"kill-during-reform", "C08 M08"},
                    Case{"coordinator-restart", "M04 O03"},
                    Case{"split-from-coordinator", "M11 M23"}, Case{"link-reset", "O03 O01"},
                    Case{"damaged-checkpoint", "L11 S16"}, Case{"spot-notice", "O15"},
                    Case{"launcher-killed", "C15"}),
    NameOf);
#endif

}  // namespace
}  // namespace muster::chaos
