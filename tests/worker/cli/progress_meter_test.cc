#include "worker/cli/progress_meter.h"

#include <gtest/gtest.h>

namespace muster::cli {
namespace {

TEST(ProgressText, SaysRateAndTimeLeft) {
  EXPECT_EQ(ProgressText("reading x", 1 << 20, 4 << 20, Duration::Seconds(2)),
            "reading x: 1.0 MiB of 4.0 MiB (25 %), 512.0 KiB/s, 6.0 s left");
}

TEST(ProgressText, HoldsAtTheEdges) {
  EXPECT_EQ(ProgressText("x", 0, 100, Duration()), "x: 0 B of 100 B (0 %), 0 B/s, ? left");
  // Neighbouring blocks may be counted twice.
  EXPECT_EQ(ProgressText("x", 120, 100, Duration::Seconds(1)),
            "x: 100 B of 100 B (100 %), 100 B/s, 0 ms left");
  EXPECT_EQ(ProgressText("x", 0, 0, Duration::Seconds(1)), "x: 0 B of 0 B (0 %), 0 B/s, ? left");
}

// What is done at once shows nothing.
TEST(ProgressMeter, IsSilentAtFirst) {
  testing::internal::CaptureStderr();
  {
    ProgressMeter meter("x", 100);
    meter.Add(50);
    meter.Remove();
    meter.Add(50);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace muster::cli
