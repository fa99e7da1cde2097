#include "checkpoint/match.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace muster::checkpoint {
namespace {

const std::vector<TensorSpec> kStored = {{"w", DType::kFloat32, {4, 2}, 0},
                                         {"exp_avg", DType::kFloat32, {4, 2}, kFlat},
                                         {"step", DType::kI64, {}, kReplicated}};

std::string Problem(const std::vector<TensorSpec>& wanted) {
  const Status status = CheckStrictMatch(MatchTensors(kStored, wanted));
  EXPECT_TRUE(status.ok() || status.code() == Code::kFailedPrecondition);
  return status.message();
}

TEST(Match, HowATensorIsCutPlaysNoPart) {
  std::vector<TensorSpec> wanted = {kStored[2], kStored[0], kStored[1]};
  wanted[1].cut_dimension = kReplicated;
  const TensorMatch match = MatchTensors(kStored, wanted);
  EXPECT_TRUE(CheckStrictMatch(match).ok());
  ASSERT_EQ(match.pairs.size(), 3U);
  EXPECT_EQ(match.pairs[0].wanted, 0U);
  EXPECT_EQ(match.pairs[0].stored, 2U);
}

// L09: what is missing and what is extra are both said, also when it is one of the optimizer alone.
TEST(Match, MissingAndExtraAreBothNamed) {
  EXPECT_NE(Problem({kStored[0], kStored[2]}).find("1 not wanted: exp_avg"), std::string::npos);
  std::vector<TensorSpec> wanted = kStored;
  wanted.push_back({"exp_avg_sq", DType::kFloat32, {4, 2}, 0});
  EXPECT_NE(Problem(wanted).find("1 missing: exp_avg_sq"), std::string::npos);
  wanted = kStored;
  wanted[1].name = "m";
  EXPECT_NE(Problem(wanted).find("1 missing: m; 1 not wanted: exp_avg"), std::string::npos);
  EXPECT_NE(Problem({}).find("3 not wanted: w, exp_avg, step"), std::string::npos);
}

// L06, L07, L17: another type or shape is refused with both, be it narrower, wider, or () and (1).
TEST(Match, AnotherTypeOrShapeIsNamed) {
  std::vector<TensorSpec> wanted = kStored;
  wanted[0].dtype = DType::kBFloat16;
  EXPECT_NE(Problem(wanted).find("w: F32 [4,2] is stored, and BF16 [4,2] wanted"),
            std::string::npos)
      << Problem(wanted);
  wanted = kStored;
  wanted[2].shape = {1};
  EXPECT_NE(Problem(wanted).find("step: I64 [] is stored, and I64 [1] wanted"), std::string::npos);
  wanted = kStored;
  wanted[2].logical_dtype = "MXFP8";
  EXPECT_NE(Problem(wanted).find("I64 as MXFP8 []"), std::string::npos);
}

TEST(Match, ManyNamesAreCut) {
  std::vector<TensorSpec> wanted = kStored;
  for (int i = 0; i < 20; ++i) {
    wanted.push_back({"new" + std::to_string(i), DType::kU8, {1}, kReplicated});
  }
  const std::string problem = Problem(wanted);
  EXPECT_NE(problem.find("20 missing: new0, new1"), std::string::npos);
  EXPECT_EQ(problem.find("new19"), std::string::npos);
}

// L08: tied on one side and not on the other.
TEST(Match, TiesAreSaid) {
  std::vector<TensorSpec> apart = {{"a", DType::kU8, {2}, 0}, {"b", DType::kU8, {2}, 0}};
  std::vector<TensorSpec> tied = apart;
  tied[1].alias_of = "a";
  EXPECT_TRUE(MatchTensors(tied, tied).tied_now.empty());
  EXPECT_TRUE(MatchTensors(tied, tied).tied_before.empty());
  const TensorMatch now = MatchTensors(apart, tied);
  ASSERT_EQ(now.tied_now.size(), 1U);
  EXPECT_EQ(now.tied_now[0].name, "b");
  EXPECT_EQ(now.tied_now[0].of, "a");
  const TensorMatch before = MatchTensors(tied, apart);
  ASSERT_EQ(before.tied_before.size(), 1U);
  EXPECT_EQ(before.tied_before[0].of, "a");
}

}  // namespace
}  // namespace muster::checkpoint
