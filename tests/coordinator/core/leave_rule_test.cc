#include "coordinator/core/leave_rule.h"

#include <gtest/gtest.h>

namespace muster::coordinator {
namespace {

struct Row {
  std::int64_t notice;
  std::int64_t hurry;  // after so many seconds, with 30 s for a re-form
};

TEST(LeaveRule, HalfOfAShortNoticeAndAllButTheFormingTimeOfALongOne) {
  const Instant asked = Instant::FromNanos(7'000'000'000);
  for (const Row& row : {Row{2, 1}, Row{30, 15}, Row{60, 30}, Row{120, 90}, Row{600, 570}}) {
    EXPECT_EQ(HurryAt(asked, asked + Duration::Seconds(row.notice), Duration::Seconds(30)),
              asked + Duration::Seconds(row.hurry))
        << row.notice;
  }
}

}  // namespace
}  // namespace muster::coordinator
