#include "coordinator/core/rank_plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace muster::coordinator {
namespace {

Candidate Make(const char* name, int rank, bool holds, std::int64_t order, const char* node = "n") {
  return {{WorkerId(name), Incarnation(1)}, NodeName(node), "", Rank(rank), holds, order};
}

std::string Names(const std::vector<Candidate>& candidates) {
  std::string text;
  for (const Candidate& c : candidates) text += c.member.worker.value();
  return text;
}

// "a0 c2" is: rank 0 is a, which held rank 0; "d-" held nothing.
std::string Show(const std::vector<MemberEntry>& members) {
  std::string text;
  for (std::size_t i = 0; i < members.size(); ++i) {
    EXPECT_EQ(members[i].rank, Rank(static_cast<std::int32_t>(i)));
    const int previous = members[i].previous_rank.value();
    text += fmt::format("{}{}{}", i == 0 ? "" : " ", members[i].member.worker.value(),
                        previous < 0 ? "-" : std::to_string(previous));
  }
  return text;
}

TEST(ChooseMembers, HoldersFirstThenTheEarliest) {
  const std::vector<Candidate> all = {Make("d", -1, false, 1), Make("c", 2, true, 9),
                                      Make("b", 1, false, 3), Make("a", 0, true, 8)};
  EXPECT_EQ(Names(ChooseMembers(all, 8)), "acdb");
  EXPECT_EQ(Names(ChooseMembers(all, 2)), "ac");  // a spare never displaces one that holds state
  EXPECT_EQ(Names(ChooseMembers(all, 3)), "acd");
  EXPECT_EQ(Names(ChooseMembers({}, 3)), "");
}

TEST(PlanRanks, SurvivorsKeepTheirRanks) {
  EXPECT_EQ(Show(PlanRanks({Make("a", 0, true, 1), Make("b", 1, true, 2), Make("c", 2, true, 3)})),
            "a0 b1 c2");
}

TEST(PlanRanks, TheHoleIsFilled) {
  // Rank 1 of 4 died: the last one moves into the hole, the others stay.
  EXPECT_EQ(Show(PlanRanks({Make("a", 0, true, 1), Make("c", 2, true, 3), Make("d", 3, true, 4)})),
            "a0 d3 c2");
  // Its replacement gets the hole, and nobody moves.
  EXPECT_EQ(Show(PlanRanks({Make("a", 0, true, 1), Make("c", 2, true, 3), Make("d", 3, true, 4),
                            Make("e", -1, false, 5)})),
            "a0 e- c2 d3");
}

TEST(PlanRanks, NeighboursOfOneNode) {
  EXPECT_EQ(Show(PlanRanks({Make("a", 0, true, 1, "n1"), Make("x", -1, false, 2, "n2"),
                            Make("y", -1, false, 3, "n1")})),
            "a0 y- x-");
}

TEST(PlanRanks, ASurvivorWithoutStateKeepsItsRankButIsNoSource) {
  EXPECT_EQ(Show(PlanRanks({Make("a", 0, true, 1), Make("b", 1, false, 2)})), "a0 b-");
}

TEST(PlanRanks, TwoThatClaimOneRank) {
  EXPECT_EQ(Show(PlanRanks({Make("a", 0, true, 1), Make("b", 0, true, 2)})), "a0 b0");
  EXPECT_TRUE(PlanRanks({}).empty());
}

}  // namespace
}  // namespace muster::coordinator
