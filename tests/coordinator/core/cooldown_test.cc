#include "coordinator/core/cooldown.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "protocol/limits.h"

namespace muster::coordinator {
namespace {

const CooldownRules kRules{3, Duration::Seconds(10), Duration::Seconds(60), Duration::Seconds(100)};
const Slot kSlot{WorkerId("b"), NodeName("n1")};

Instant At(std::int64_t seconds) { return Instant::FromNanos(seconds * 1'000'000'000); }

TEST(Cooldown, DoublesUpToItsBound) {
  const std::int64_t want[] = {0, 0, 0, 10, 20, 40, 60, 60};
  for (int n = 0; n < 8; ++n) {
    EXPECT_EQ(CooldownAfter(n, kRules), Duration::Seconds(want[n])) << n;
  }
  EXPECT_EQ(CooldownAfter(1'000'000, kRules), Duration::Seconds(60));
  CooldownRules endless = kRules;
  endless.longest = Duration::Max();
  EXPECT_GT(CooldownAfter(1'000'000, endless), Duration::Seconds(1'000'000));
}

TEST(Cooldown, BeginsWithTheThirdFailureAndNamesIt) {
  CooldownTable table;
  EXPECT_FALSE(table.NoteFailure(kSlot, 1, true, kRules, At(0)));
  EXPECT_FALSE(table.NoteFailure(kSlot, 2, true, kRules, At(1)));
  const auto cooling = table.NoteFailure(kSlot, 3, true, kRules, At(2));
  ASSERT_TRUE(cooling);
  EXPECT_EQ(cooling->until, At(12));
  EXPECT_EQ(cooling->failures, 3);
  EXPECT_TRUE(table.Of(kSlot, At(11)));
  EXPECT_FALSE(table.Of(kSlot, At(12)));
  EXPECT_EQ(table.NextEnd(At(2)), At(12));
  EXPECT_EQ(table.NextEnd(At(12)), Instant::Never());
}

TEST(Cooldown, LeavesOtherSlotsOfTheNodeAndTheNameElsewhereAlone) {
  CooldownTable table;
  for (int i = 0; i < 5; ++i) (void)table.NoteFailure(kSlot, i, true, kRules, At(i));
  EXPECT_TRUE(table.Of(kSlot, At(5)));
  EXPECT_FALSE(table.Of({WorkerId("c"), NodeName("n1")}, At(5)));
  EXPECT_FALSE(table.Of({WorkerId("b"), NodeName("n2")}, At(5)));
}

TEST(Cooldown, IsForgivenAfterATimeWithoutFailure) {
  CooldownTable table;
  for (int i = 0; i < 3; ++i) (void)table.NoteFailure(kSlot, i, true, kRules, At(0));
  // Not a second too early: the time counts from the end of the cool-down.
  CooldownTable early = table;
  EXPECT_TRUE(early.NoteFailure(kSlot, 9, true, kRules, At(109)));
  EXPECT_FALSE(table.NoteFailure(kSlot, 9, true, kRules, At(110)));
}

TEST(Cooldown, AProcessThatOutlivedItsLossIsPardonedOnce) {
  CooldownTable table;
  (void)table.NoteFailure(kSlot, 1, true, kRules, At(0));
  (void)table.NoteFailure(kSlot, 2, true, kRules, At(0));
  EXPECT_TRUE(table.NoteFailure(kSlot, 7, false, kRules, At(0)));
  table.NoteReturn(kSlot, 7, kRules, At(1));
  EXPECT_FALSE(table.Of(kSlot, At(1)));
  EXPECT_TRUE(table.NoteFailure(kSlot, 7, false, kRules, At(2)));
  table.NoteReturn(kSlot, 7, kRules, At(3));
  EXPECT_TRUE(table.Of(kSlot, At(3)));
}

TEST(Cooldown, AnotherProcessIsNoPardon) {
  CooldownTable table;
  for (int i = 1; i <= 3; ++i) (void)table.NoteFailure(kSlot, i, false, kRules, At(0));
  table.NoteReturn(kSlot, 4, kRules, At(1));
  EXPECT_TRUE(table.Of(kSlot, At(1)));
  table.NoteReturn(kSlot, 3, kRules, At(1));  // too late: another one has come since
  EXPECT_TRUE(table.Of(kSlot, At(1)));
}

TEST(Cooldown, RemembersABoundedNumberOfSlots) {
  CooldownTable table;
  const auto slot = [](std::size_t i) {
    return Slot{WorkerId(fmt::format("w{}", i)), NodeName("n")};
  };
  for (std::size_t i = 0; i < 3 * kMaxCooldownSlots; ++i) {
    (void)table.NoteFailure(slot(i), 0, true, kRules, At(0));
    ASSERT_LE(table.size(), kMaxCooldownSlots);
  }
  (void)table.NoteFailure(slot(0), 0, true, kRules, At(1000));
  EXPECT_EQ(table.size(), 1U);  // the others are forgiven by then
}

TEST(Cooldown, HoldsNothingAgainstASlotThatTheCoordinatorChose) {
  EXPECT_TRUE(HeldAgainstSlot(Cause::kProcessDied, true));
  EXPECT_TRUE(HeldAgainstSlot(Cause::kLeaseExpired, false));
  EXPECT_TRUE(HeldAgainstSlot(Cause::kConnectionLost, false));
  EXPECT_FALSE(HeldAgainstSlot(Cause::kConnectionLost, true));
  EXPECT_FALSE(HeldAgainstSlot(Cause::kOperationFailed, false));
  EXPECT_FALSE(HeldAgainstSlot(Cause::kLeave, false));
}

}  // namespace
}  // namespace muster::coordinator
