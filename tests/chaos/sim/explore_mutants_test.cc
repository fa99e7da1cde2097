// The explorer can fail: with one bug planted in the cores it finds a way to a broken promise, and
// without it none.
#include <gtest/gtest.h>

#include <algorithm>

#include "chaos/sim/hunt.h"
#include "protocol/mutants.h"

namespace muster::sim {
namespace {

struct Planting {
  Mutant mutant;
  const char* search;  // of SmallSearches
};

ExploreOptions SearchNamed(const std::string& name) {
  for (const SmallSearch& search : SmallSearches()) {
    if (search.name == name) return search.options;
  }
  ADD_FAILURE() << "no search is called " << name;
  return {};
}

class ExploreMutantsTest : public testing::TestWithParam<Planting> {
 protected:
  ~ExploreMutantsTest() override { Plant(std::nullopt); }
};

TEST_P(ExploreMutantsTest, IsFound) {
  ExploreOptions options = SearchNamed(GetParam().search);
  options.max_shorten = 20'000;
  Plant(GetParam().mutant);
  const ExploreResult result = Explorer(options).Run();
  EXPECT_NE(result.violation, "");
  EXPECT_FALSE(result.complete);
  const auto steps = std::ranges::count_if(
      result.path, [](const std::string& line) { return line.starts_with("> "); });
  EXPECT_GT(steps, 0) << "a violation comes with the way to it";
}

INSTANTIATE_TEST_SUITE_P(
    Decision, ExploreMutantsTest,
    testing::Values(Planting{Mutant::kNeverCommitOpen, "1 kill"},
                    Planting{Mutant::kVoteBeforePrepared, "1 kill"},
                    Planting{Mutant::kSkipAppliedAfterDecision, "1 kill"},
                    Planting{Mutant::kAppliedNotPrepared, "1 failed call"},
                    Planting{Mutant::kLeastCommitted, "1 failed call"},
                    Planting{Mutant::kReadyBeforeAbort, "1 failed call"},
                    Planting{Mutant::kCommitAnyPrepared, "sharded, 1 failed call"},
                    Planting{Mutant::kGroupIdStale, "nccl, 1 failed call, 1 kill"}),
    [](const auto& param) {
      std::string name(MutantTable()[static_cast<std::size_t>(param.param.mutant)].name);
      std::erase(name, '-');
      return name;
    });

}  // namespace
}  // namespace muster::sim
