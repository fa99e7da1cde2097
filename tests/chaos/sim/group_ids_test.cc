// The checker of the ids by which the members of a generation meet over NCCL convicts each wrong
// use of one, and nothing else.
#include "chaos/sim/checkers/group_ids.h"

#include <gtest/gtest.h>

#include <string>

namespace muster::sim {
namespace {

const Member kA{WorkerId("a"), Incarnation(1)};
const Member kB{WorkerId("b"), Incarnation(2)};
const Lineage kLineage(7);

// Two members that meet by one id: nothing to complain about.
class GroupIdsTest : public testing::Test {
 protected:
  GroupIdsTest() { spec_.backend = Backend::kNccl; }
  static GenerationRecord RecordOf(std::int64_t generation) {
    GenerationRecord record;
    record.generation = Generation(generation);
    record.lineage = kLineage;
    record.members = {{kA, Rank(0), {}, "", Rank(-1)}, {kB, Rank(1), {}, "", Rank(-1)}};
    return record;
  }
  void Meet(std::int64_t generation, const std::string& id) {
    ids_.OnMinted(RecordOf(generation), kA, id, verdict_);
    EXPECT_EQ(ids_.OnUsed(RecordOf(generation), kA, id, verdict_),
              ids_.OnUsed(RecordOf(generation), kB, id, verdict_));
  }

  JobSpec spec_;
  GroupIds ids_;
  Verdict verdict_;
};

TEST_F(GroupIdsTest, OneForEachGeneration) {
  Meet(1, "one");
  ids_.OnStarted(spec_, RecordOf(1), verdict_);
  Meet(2, "two");
  ids_.OnStarted(spec_, RecordOf(2), verdict_);
  ids_.OnStarted(spec_, RecordOf(1), verdict_);  // stored once more
  EXPECT_TRUE(verdict_.ok()) << verdict_.violation();
}

TEST_F(GroupIdsTest, OfAnEarlierGeneration) {
  Meet(1, "one");
  ids_.OnMinted(RecordOf(2), kA, "two", verdict_);
  ids_.OnUsed(RecordOf(2), kA, "two", verdict_);
  EXPECT_TRUE(verdict_.ok()) << verdict_.violation();
  ids_.OnUsed(RecordOf(2), kB, "one", verdict_);
  EXPECT_FALSE(verdict_.ok());
}

TEST_F(GroupIdsTest, OfAnotherLineage) {
  Meet(1, "one");
  GenerationRecord other = RecordOf(1);
  other.lineage = Lineage(8);
  ids_.OnUsed(other, kB, "one", verdict_);
  EXPECT_FALSE(verdict_.ok());
}

TEST_F(GroupIdsTest, MintedTwice) {
  Meet(1, "one");
  ids_.OnMinted(RecordOf(2), kA, "one", verdict_);
  EXPECT_FALSE(verdict_.ok());
}

TEST_F(GroupIdsTest, MintedByAnotherRank) {
  ids_.OnMinted(RecordOf(1), kB, "one", verdict_);
  EXPECT_FALSE(verdict_.ok());
}

TEST_F(GroupIdsTest, OfNobody) {
  ids_.OnUsed(RecordOf(1), kB, "one", verdict_);
  EXPECT_FALSE(verdict_.ok());
}

TEST_F(GroupIdsTest, StartedWithTwo) {
  Meet(1, "one");
  ids_.OnMinted(RecordOf(1), kA, "another", verdict_);
  ids_.OnUsed(RecordOf(1), kB, "another", verdict_);
  EXPECT_TRUE(verdict_.ok()) << verdict_.violation();  // they do not meet, and that is all
  ids_.OnStarted(spec_, RecordOf(1), verdict_);
  EXPECT_FALSE(verdict_.ok());
}

TEST_F(GroupIdsTest, StartedWithout) {
  ids_.OnMinted(RecordOf(1), kA, "one", verdict_);
  ids_.OnUsed(RecordOf(1), kA, "one", verdict_);
  spec_.backend = Backend::kTcp;
  ids_.OnStarted(spec_, RecordOf(1), verdict_);
  EXPECT_TRUE(verdict_.ok()) << verdict_.violation();
  spec_.backend = Backend::kNccl;
  ids_.OnStarted(spec_, RecordOf(1), verdict_);
  EXPECT_FALSE(verdict_.ok());
}

}  // namespace
}  // namespace muster::sim
