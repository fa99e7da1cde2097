// The small values of the protocol: ids, time, status, random numbers.
#include <gtest/gtest.h>

#include <cerrno>
#include <type_traits>
#include <vector>

#include "protocol/ids.h"
#include "protocol/prng.h"
#include "protocol/status.h"
#include "protocol/time.h"

namespace muster {
namespace {

TEST(Ids, DoNotConvert) {
  static_assert(!std::is_convertible_v<std::int64_t, Step>);
  static_assert(!std::is_convertible_v<Step, std::int64_t>);
  static_assert(!std::is_constructible_v<Step, Generation>);
  static_assert(!std::is_convertible_v<std::string, WorkerId>);
  EXPECT_EQ(Step(3).Next(), Step(4));
  EXPECT_LT(Generation(1), Generation(2));
  EXPECT_LT((Member{WorkerId("a"), Incarnation(2)}), (Member{WorkerId("b"), Incarnation(1)}));
}

TEST(Ids, HexRoundTrip) {
  EXPECT_EQ(ToHex(0), "0000000000000000");
  EXPECT_EQ(ToHex(0x0123456789abcdefULL), "0123456789abcdef");
  for (const std::uint64_t value : {0ULL, 1ULL, 0xdeadbeefULL, ~0ULL}) {
    std::uint64_t back = 7;
    EXPECT_TRUE(FromHex(ToHex(value), &back));
    EXPECT_EQ(back, value);
  }
}

TEST(Ids, HexRefusesAnythingElse) {
  std::uint64_t value = 7;
  for (const char* text : {"", "0", "0123456789ABCDEF", "0123456789abcdeg", "0123456789abcdef0",
                           " 123456789abcdef", "0x23456789abcdef"}) {
    EXPECT_FALSE(FromHex(text, &value)) << text;
  }
  EXPECT_EQ(value, 7U);
}

TEST(Time, NeverIsNeverPassed) {
  EXPECT_EQ(Instant::Never() + Duration::Seconds(1), Instant::Never());
  EXPECT_EQ(Instant::FromNanos(1) + Duration::Max(), Instant::Never());
  EXPECT_EQ(Instant::FromNanos(5) + Duration::Nanos(7), Instant::FromNanos(12));
  EXPECT_EQ(Instant::FromNanos(5) + Duration::Nanos(-7), Instant::FromNanos(-2));
  EXPECT_EQ(Instant::FromNanos(12) - Instant::FromNanos(5), Duration::Nanos(7));
}

TEST(Time, Units) {
  EXPECT_EQ(Duration::Seconds(2), Duration::Millis(2'000));
  EXPECT_EQ(Duration::Millis(3), Duration::Micros(3'000));
  EXPECT_EQ(Duration::Micros(4), Duration::Nanos(4'000));
  EXPECT_EQ(Duration::Millis(10) / 4 * 2 + Duration::Millis(1) - Duration::Micros(500),
            Duration::Micros(5'500));
  EXPECT_EQ(Duration::Micros(2'900).millis(), 2);
  EXPECT_DOUBLE_EQ(Duration::Micros(2'500).ToMillis(), 2.5);
}

TEST(StatusValue, SaysCodeAndMessage) {
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ(Status().ToString(), "ok");
  EXPECT_EQ(DataLoss("block 3 of a.safetensors").ToString(), "data_loss: block 3 of a.safetensors");
  EXPECT_EQ(Fenced("x").code(), Code::kFenced);
}

TEST(StatusValue, EachErrnoHasItsCode) {
  EXPECT_EQ(FromErrno(ENOSPC, "write a").code(), Code::kResourceExhausted);
  EXPECT_EQ(FromErrno(EDQUOT, "write a").code(), Code::kResourceExhausted);
  EXPECT_EQ(FromErrno(ENOENT, "open a").code(), Code::kNotFound);
  EXPECT_EQ(FromErrno(EROFS, "open a").code(), Code::kPermissionDenied);
  EXPECT_EQ(FromErrno(ECONNREFUSED, "connect").code(), Code::kUnavailable);
  EXPECT_EQ(FromErrno(EXDEV, "rename").code(), Code::kInternal);
  EXPECT_EQ(FromErrno(ENOENT, "open a").message(), "open a: No such file or directory");
}

Status LeaveEarly(bool* reached, Status status) {
  MUSTER_RETURN_IF_ERROR(status);
  *reached = true;
  return Status();
}

TEST(StatusValue, ReturnIfError) {
  bool reached = false;
  EXPECT_EQ(LeaveEarly(&reached, NotFound("x")).code(), Code::kNotFound);
  EXPECT_FALSE(reached);
  EXPECT_TRUE(LeaveEarly(&reached, Status()).ok());
  EXPECT_TRUE(reached);
}

TEST(ResultValue, HoldsAValueOrAnError) {
  const Result<int> good = 3;
  EXPECT_TRUE(good.ok());
  EXPECT_EQ(*good, 3);
  const Result<int> bad = NotFound("no such job");
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().code(), Code::kNotFound);
  EXPECT_DEATH((void)bad.value(), "no such job");
  EXPECT_DEATH((void)Result<int>(Status()), "needs an error");
}

TEST(PrngValue, GoldenSequence) {
  Prng prng(0);
  const std::vector<std::uint64_t> expected = {0xe220a8397b1dcdafULL, 0x6e789e6aa1b965f4ULL,
                                               0x06c45d188009454fULL, 0xf88bb8a8724c81ecULL,
                                               0x1b39896a51a8749bULL};
  for (const std::uint64_t value : expected) EXPECT_EQ(prng.Next(), value);
}

TEST(PrngValue, BelowIsInRangeAndReachesAll) {
  Prng prng(9);
  std::vector<int> seen(7, 0);
  for (int i = 0; i < 7'000; ++i) ++seen.at(prng.Below(7));
  for (const int count : seen) EXPECT_GT(count, 800);
  EXPECT_EQ(prng.Below(1), 0U);
  EXPECT_DEATH((void)prng.Below(0), "empty range");
}

TEST(PrngValue, ChanceAndUnit) {
  Prng prng(4);
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(prng.Chance(0, 5));
    EXPECT_TRUE(prng.Chance(5, 5));
    const double unit = prng.Unit();
    EXPECT_GE(unit, 0.0);
    EXPECT_LT(unit, 1.0);
  }
}

}  // namespace
}  // namespace muster
