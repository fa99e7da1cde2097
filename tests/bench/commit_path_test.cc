// A checkpoint of ten thousand ranks and tensors is committed in seconds at worst, and costs its
// file list.
#include "tests/bench/commit_path.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace muster::bench {
namespace {

TEST(CommitPath, ALargeCommitWritesItsFileListAlone) {
  std::string directory = std::filesystem::temp_directory_path() / "muster-commit-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  constexpr int kRanks = 10'000;
  const Result<CommitCost> cost = MeasureCommit(directory, kRanks, 10'000);
  std::filesystem::remove_all(directory);
  ASSERT_TRUE(cost.ok()) << cost.status().ToString();
  EXPECT_LE(cost->commit_bytes, 200 * kRanks);
  EXPECT_LE(cost->announce_bytes, 1000);
  // Far more than it takes, for machines that do other things: looking at 10^8 boxes takes longer.
  EXPECT_LE(cost->commit_ms, 5000);
}

}  // namespace
}  // namespace muster::bench
