// That a job of many workers costs the coordinator no more for each message than one of few. What
// is counted is the basic blocks that its core runs through, and not the time.
#include "chaos/sim/scale.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace {
std::int64_t blocks = 0;
}  // namespace

// The copy of the core that this test is linked with calls this at each basic block, those of the
// standard library's templates included (-fsanitize-coverage=trace-pc).
extern "C" void __sanitizer_cov_trace_pc();
extern "C" void __sanitizer_cov_trace_pc() { ++blocks; }

namespace muster::sim {
namespace {

ScaleResult Measure(std::int32_t workers) {
  ScaleOptions options;
  options.workers = workers;
  options.rack = 64;
  options.growth = 64;
  options.quiet = Duration::Seconds(2);
  options.meter = [] { return blocks; };
  return MeasureScale(options);
}

double PerMessage(const ScaleCost& cost) {
  return static_cast<double>(cost.spent) / static_cast<double>(cost.messages());
}

TEST(Scale, AMessageCostsAsMuchAmongManyWorkersAsAmongFew) {
  const ScaleResult few = Measure(400);
  const ScaleResult many = Measure(6400);
  ASSERT_EQ(few.problem, "");
  ASSERT_EQ(many.problem, "");
  ASSERT_EQ(few.phases.size(), 5U);
  ASSERT_EQ(many.phases.size(), 5U);
  // Sixteen times the workers: trees are 1.5 times as deep. One walk over the workers for each
  // message would make it many times as much.
  constexpr double kMost = 1.5;
  for (std::size_t i = 0; i < few.phases.size(); ++i) {
    const ScalePhase& small = few.phases[i];
    const ScalePhase& large = many.phases[i];
    if (small.protocol.messages() > 0) {
      ASSERT_GT(small.protocol.spent, 0);
      EXPECT_LE(PerMessage(large.protocol), PerMessage(small.protocol) * kMost) << large.name;
    }
    ASSERT_GT(small.heartbeats.spent, 0);
    EXPECT_LE(PerMessage(large.heartbeats), PerMessage(small.heartbeats) * kMost) << large.name;
    // No heartbeat costs more than a fixed amount, and no call more than those that send to all.
    EXPECT_LE(large.heartbeats.most_sent, 1) << large.name;
    EXPECT_LE(static_cast<double>(large.protocol.most_spent),
              static_cast<double>(small.protocol.most_spent) * 16 * kMost)
        << large.name;
  }
}

TEST(Scale, NoMoreMessagesThanMustBe) {
  const ScaleResult result = Measure(400);
  ASSERT_EQ(result.problem, "");
  ASSERT_EQ(result.phases.size(), 5U);
  const ScalePhase& form = result.phases[0];
  const ScalePhase& node = result.phases[1];
  const ScalePhase& rack = result.phases[2];
  const ScalePhase& grow = result.phases[3];
  for (const ScalePhase* phase : {&form, &node, &rack, &grow}) EXPECT_EQ(phase->decisions, 1);
  EXPECT_EQ(form.world_size, 400);
  EXPECT_EQ(node.world_size, 392);
  EXPECT_EQ(rack.world_size, 328);
  EXPECT_EQ(grow.world_size, 392);
  // A welcome to each worker and to the launcher of each node; interrupt, assign and start.
  EXPECT_EQ(form.protocol.sent, 400 + 50 + 3 * 400);
  EXPECT_EQ(node.protocol.sent, 3 * 392);
  // Those that are silent are interrupted too, nobody knows better yet, and refused in the end.
  EXPECT_EQ(rack.protocol.sent, 392 + 2 * 328 + 64);
  // The wish to stop at a boundary goes to the members alone.
  EXPECT_EQ(grow.protocol.sent, 64 + 8 + 328 + 3 * 392);
}

}  // namespace
}  // namespace muster::sim
