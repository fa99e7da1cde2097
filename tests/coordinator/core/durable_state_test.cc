#include "coordinator/core/durable_state.h"

#include <gtest/gtest.h>

namespace muster::coordinator {
namespace {

CheckpointKey Key(std::int64_t step, std::int64_t generation) {
  return {Step(step), Generation(generation)};
}

TEST(Generations, GoUpOnly) {
  JobRecord record;
  EXPECT_EQ(NextGeneration(record), Generation(1));
  EXPECT_EQ(NextGeneration(record), Generation(2));
  RaiseHighest(record, Generation(9));
  EXPECT_EQ(NextGeneration(record), Generation(10));
  RaiseHighest(record, Generation(4));  // never lowers it
  EXPECT_EQ(NextGeneration(record), Generation(11));
}

struct VoidRow {
  const char* name;
  CheckpointKey key;
  bool is_void;
};

// Generation 5 went back to step 50.
TEST(Rollbacks, VoidEverythingAboveOfEarlierGenerations) {
  JobRecord record;
  AddRollback(record, Generation(5), Step(50));
  for (const VoidRow& row : {
           VoidRow{"at the step", Key(50, 4), false},
           VoidRow{"above it", Key(51, 4), true},
           VoidRow{"far above it: known or not", Key(1'000'000, 1), true},
           VoidRow{"below it", Key(20, 3), false},
           VoidRow{"the generation itself takes them again", Key(51, 5), false},
           VoidRow{"a later one too", Key(51, 6), false},
       }) {
    EXPECT_EQ(IsVoid(record, row.key), row.is_void) << row.name;
  }
}

TEST(Rollbacks, AnImpliedOneIsDroppedAndAnotherKept) {
  JobRecord record;
  AddRollback(record, Generation(5), Step(50));
  AddRollback(record, Generation(7), Step(60));
  EXPECT_EQ(record.rollbacks.size(), 2U);
  EXPECT_TRUE(IsVoid(record, Key(51, 4)));
  EXPECT_FALSE(IsVoid(record, Key(60, 6)));
  EXPECT_TRUE(IsVoid(record, Key(61, 6)));
  AddRollback(record, Generation(9), Step(50));
  EXPECT_EQ(record.rollbacks.size(), 1U);
  EXPECT_TRUE(IsVoid(record, Key(51, 4)));
  EXPECT_TRUE(IsVoid(record, Key(51, 8)));
  EXPECT_FALSE(IsVoid(record, Key(51, 9)));
}

TEST(Rollbacks, ThoseThatNoWriterCanMeetAreDropped) {
  JobRecord record;
  AddRollback(record, Generation(5), Step(50));
  AddRollback(record, Generation(7), Step(60));
  DropMootRollbacks(record, Generation(6));
  ASSERT_EQ(record.rollbacks.size(), 1U);
  EXPECT_TRUE(IsVoid(record, Key(61, 6)));  // what generation 6 may still report
  DropMootRollbacks(record, Generation(7));
  EXPECT_TRUE(record.rollbacks.empty());
}

TEST(Members, FoundByIncarnation) {
  GenerationRecord record;
  const Member old{WorkerId("a"), Incarnation(1)};
  const Member fresh{WorkerId("a"), Incarnation(2)};
  record.members.push_back({old, Rank(0), NodeName("n"), "", Rank(-1)});
  EXPECT_NE(Find(record, old), nullptr);
  EXPECT_EQ(Find(record, fresh), nullptr);  // the name alone is not the member
  JobRecord job;
  job.gone = {old};
  EXPECT_TRUE(IsGone(job, old));
  EXPECT_FALSE(IsGone(job, fresh));
}

}  // namespace
}  // namespace muster::coordinator
