// Runs the scenarios in golden/*.txt against a real Coordinator: blocks of commands, a line "----",
// and the effects that are expected. With MUSTER_REWRITE=1 in the environment the files are
// rewritten with what came out; review the difference then.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/coordinator/core/scenario.h"

namespace muster::coordinator {
namespace {

std::vector<std::string> Files() {
  std::vector<std::string> files;
  const std::string folder = std::string(MUSTER_SOURCE_DIR) + "/tests/coordinator/core/golden";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path().string());
  }
  std::ranges::sort(files);
  return files;
}

// The file as it should be: commands and comments as they are, each block's output as it came.
std::string Replay(std::istream& in) {
  Scenario scenario;
  std::ostringstream out;
  bool expected = false;  // between "----" and the next empty line
  for (std::string line; std::getline(in, line);) {
    if (expected && !line.empty()) continue;
    expected = line == "----";
    out << line << "\n";
    if (expected) {
      out << scenario.Take();
    } else if (!line.empty() && line[0] != '#') {
      scenario.Run(line);
    }
  }
  // What no block has shown must not go unseen.
  if (const std::string rest = scenario.Take(); !rest.empty()) out << "unseen:\n" << rest;
  return out.str();
}

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, Scenario) {
  std::ostringstream text;
  text << std::ifstream(GetParam()).rdbuf();
  std::istringstream in(text.str());
  const std::string now = Replay(in);
  EXPECT_EQ(now.find("VIOLATION"), std::string::npos) << now;
  if (std::getenv("MUSTER_REWRITE") != nullptr) {
    std::ofstream(GetParam()) << now;
    return;
  }
  EXPECT_EQ(now, text.str()) << "MUSTER_REWRITE=1 rewrites " << GetParam();
}

INSTANTIATE_TEST_SUITE_P(Files, Golden, testing::ValuesIn(Files()), [](const auto& param) {
  return std::filesystem::path(param.param).stem().string();
});

}  // namespace
}  // namespace muster::coordinator
