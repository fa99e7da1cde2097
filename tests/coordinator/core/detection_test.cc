#include "coordinator/core/detection.h"

#include <gtest/gtest.h>

namespace muster::coordinator {
namespace {

constexpr Instant At(std::int64_t ms) { return Instant::FromNanos(ms * 1'000'000); }
Member M(const char* name) { return {WorkerId(name), Incarnation(1)}; }

SilenceView View(std::int64_t now_ms) {
  SilenceView view;
  view.now = At(now_ms);
  view.connected = true;
  view.last_heard = At(1000);
  view.timing = {Duration::Millis(2000), Duration::Millis(500), Duration::Millis(200)};
  return view;
}

SilenceView ClosedView(std::int64_t now_ms, std::int64_t closed_ms = 1200) {
  SilenceView view = View(now_ms);
  view.connected = false;
  view.closed_at = At(closed_ms);
  return view;
}

struct SilenceRow {
  const char* name;
  SilenceView view;
  bool suspect;
  Cause cause;
  std::int64_t look_again_ms;
};

TEST(JudgeSilence, Rows) {
  SilenceView alive = ClosedView(1700);
  alive.launcher_says_alive = true;
  SilenceView alive_late = ClosedView(3000);
  alive_late.launcher_says_alive = true;
  SilenceView mass = ClosedView(1700);
  mass.mass_close = true;
  for (const SilenceRow& row : {
           SilenceRow{"within the lease", View(2999), false, Cause::kLeaseExpired, 3000},
           SilenceRow{"the lease is over", View(3000), true, Cause::kLeaseExpired, 3000},
           SilenceRow{"closed, within the grace", ClosedView(1699), false, Cause::kConnectionLost,
                      1700},
           SilenceRow{"closed, grace over", ClosedView(1700), true, Cause::kConnectionLost, 1700},
           SilenceRow{"closed late: the lease ends it", ClosedView(3000, 2900), true,
                      Cause::kConnectionLost, 3000},
           SilenceRow{"the launcher says it lives", alive, false, Cause::kLeaseExpired, 3000},
           SilenceRow{"lives, but silent for a lease", alive_late, true, Cause::kLeaseExpired,
                      3000},
           SilenceRow{"many closed together", mass, false, Cause::kLeaseExpired, 3000},
       }) {
    const SilenceVerdict got = JudgeSilence(row.view);
    EXPECT_EQ(got.suspect, row.suspect) << row.name;
    if (row.suspect) {
      EXPECT_EQ(got.cause, row.cause) << row.name;
    }
    EXPECT_EQ(got.look_again, At(row.look_again_ms)) << row.name;
    if (!got.suspect) {
      EXPECT_GT(got.look_again, row.view.now) << row.name;
    }
  }
}

ProgressView P(const char* name, std::uint64_t operations, bool waiting, std::int64_t unchanged_ms,
               bool phase = false) {
  return {M(name), operations, waiting, Stage::kReduce, Duration::Millis(unchanged_ms), phase};
}

std::string Stragglers(const std::vector<ProgressView>& members) {
  std::string text;
  for (const Straggler& s : FindStragglers(members, Duration::Seconds(10))) {
    EXPECT_GE(s.behind, Duration::Seconds(10));
    text += s.member.worker.value() + std::to_string(s.missing_operation);
  }
  return text;
}

TEST(FindStragglers, ArrivalOrderDecides) {
  EXPECT_EQ(Stragglers({}), "");
  EXPECT_EQ(Stragglers({P("a", 7, true, 12000), P("b", 6, false, 12000)}), "b7");
  // Others have not waited long enough.
  EXPECT_EQ(Stragglers({P("a", 7, true, 9999), P("b", 6, false, 60000)}), "");
  // All are inside the same operation: nobody is late, however long it takes.
  EXPECT_EQ(Stragglers({P("a", 7, true, 60000), P("b", 7, true, 60000)}), "");
  // Nobody waits: a long step is no failure.
  EXPECT_EQ(Stragglers({P("a", 7, false, 60000), P("b", 6, false, 60000)}), "");
  // It said that it would be long.
  EXPECT_EQ(Stragglers({P("a", 7, true, 60000), P("b", 6, false, 60000, true)}), "");
  // The longest wait at the newest operation counts, and both that are missing are named.
  EXPECT_EQ(Stragglers({P("a", 7, true, 1), P("b", 7, true, 11000), P("c", 6, true, 11000),
                        P("d", 5, false, 11000)}),
            "c7d7");
}

std::string Cover(std::vector<std::pair<Member, Member>> pairs) {
  std::string text;
  for (const Member& member : CoverBadPairs(std::move(pairs))) text += member.worker.value();
  return text;
}

TEST(CoverBadPairs, SmallestSetFirst) {
  EXPECT_EQ(Cover({}), "");
  EXPECT_EQ(Cover({{M("a"), M("b")}}), "b");
  EXPECT_EQ(Cover({{M("a"), M("b")}, {M("a"), M("c")}, {M("a"), M("d")}}), "a");
  EXPECT_EQ(Cover({{M("a"), M("b")}, {M("c"), M("d")}}), "db");
}

}  // namespace
}  // namespace muster::coordinator
