// Data, backoff, transfers, the step transaction.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "worker/core/backoff.h"
#include "worker/core/micro_batch_plan.h"
#include "worker/core/step_transaction.h"
#include "worker/core/transfer_plan.h"

namespace muster::worker {
namespace {

TEST(SampleOrder, IsAPermutationForEverySize) {
  for (std::int64_t size : {1, 2, 3, 4, 5, 16, 17, 100, 1023, 1025}) {
    for (std::int64_t epoch : {0, 1, 1000000}) {
      const SampleOrder order(42, epoch, size);
      std::vector<bool> seen(static_cast<std::size_t>(size));
      for (std::int64_t p = 0; p < size; ++p) {
        const std::int64_t sample = order.At(p);
        ASSERT_TRUE(sample >= 0 && sample < size);
        ASSERT_FALSE(seen[static_cast<std::size_t>(sample)]);
        seen[static_cast<std::size_t>(sample)] = true;
      }
    }
  }
}

TEST(SampleOrder, DependsOnSeedAndEpochAndOnNothingElse) {
  const auto first = [](std::uint64_t seed, std::int64_t epoch) {
    const SampleOrder order(seed, epoch, 1000);
    std::vector<std::int64_t> samples;
    for (std::int64_t p = 0; p < 5; ++p) samples.push_back(order.At(p));
    return samples;
  };
  EXPECT_EQ(first(1, 0), first(1, 0));
  EXPECT_NE(first(1, 0), first(1, 1));
  EXPECT_NE(first(1, 0), first(2, 0));
  // The order of a running job must not change with the version of Muster.
  EXPECT_EQ(first(1, 0), (std::vector<std::int64_t>{851, 751, 843, 490, 448}));
}

TEST(SampleOrder, WorksForHugeEpochs) {
  const SampleOrder order(1, 0, std::int64_t{1} << 62);
  std::set<std::int64_t> seen;
  for (std::int64_t p = 0; p < 1000; ++p) seen.insert(order.At(p));
  EXPECT_EQ(seen.size(), 1000U);
}

JobSpec Spec(std::int64_t samples, std::int64_t batch, std::int32_t micro_batches) {
  JobSpec spec;
  spec.samples = samples;
  spec.global_batch = batch;
  spec.micro_batches = micro_batches;
  return spec;
}

TEST(MicroBatchPlan, StepsWalkThroughTheEpochs) {
  struct Row {
    std::int64_t samples, batch, step, epoch, lo, hi;
    std::int32_t micro_batches;
  };
  for (const Row& row : {Row{100, 8, 1, 0, 0, 8, 4}, Row{100, 8, 12, 0, 88, 96, 4},
                         Row{100, 8, 13, 0, 96, 100, 2},  // short: micro-batches of the same size
                         Row{100, 8, 14, 1, 0, 8, 4}, Row{8, 8, 3, 2, 0, 8, 4},
                         Row{5, 8, 1, 0, 0, 5, 3}, Row{5, 8, 2, 1, 0, 5, 3}}) {
    const StepBatch batch = BatchOf(Spec(row.samples, row.batch, 4), Step(row.step));
    EXPECT_EQ(batch.epoch, row.epoch);
    EXPECT_EQ(batch.positions, (Range{row.lo, row.hi}));
    EXPECT_EQ(batch.micro_batches, row.micro_batches) << row.step;
  }
}

// S3: whatever the sequence of world sizes, each sample of an epoch exactly once.
TEST(MicroBatchPlan, EachSampleOfAnEpochIsDealtExactlyOnceForAnyWorldSizes) {
  const JobSpec spec = Spec(1003, 37, 11);
  const std::int64_t steps = (1003 + 36) / 37;
  std::vector<int> seen(1003);
  for (std::int64_t step = 1; step <= steps; ++step) {
    const StepBatch batch = BatchOf(spec, Step(step));
    const auto world_size = static_cast<std::int32_t>(1 + step % 14);
    const SampleOrder order(spec.seed, batch.epoch, spec.samples);
    std::int64_t next = 0;
    for (std::int32_t rank = 0; rank < world_size; ++rank) {
      const Range dealt = DealTo(batch, Rank(rank), world_size);
      EXPECT_EQ(dealt.lo, next);
      next = dealt.hi;
      for (std::int64_t m = dealt.lo; m < dealt.hi; ++m) {
        const Range positions = PositionsOf(batch, static_cast<std::int32_t>(m));
        EXPECT_GT(positions.size(), 0);
        for (std::int64_t p = positions.lo; p < positions.hi; ++p) {
          ++seen[static_cast<std::size_t>(order.At(p))];
        }
      }
    }
    EXPECT_EQ(next, batch.micro_batches);
  }
  EXPECT_TRUE(std::ranges::all_of(seen, [](int count) { return count == 1; }));
}

TEST(MicroBatchPlan, SeedsDifferByStepAndIndex) {
  const JobSpec spec = Spec(100, 8, 4);
  std::set<std::uint64_t> seeds;
  for (std::int64_t step = 1; step < 50; ++step) {
    for (std::int32_t m = 0; m < 4; ++m) seeds.insert(SeedOf(spec, Step(step), m));
  }
  EXPECT_EQ(seeds.size(), 49U * 4U);
}

TEST(Backoff, DoublesUpToItsBoundWithJitterAndStartsOverAfterASuccess) {
  Prng prng(3);
  Backoff backoff(Duration::Millis(50), Duration::Seconds(1));
  Duration most = Duration::Millis(50);
  for (int i = 0; i < 10; ++i) {
    const Duration wait = backoff.Next(prng);
    EXPECT_GE(wait, most / 2);
    EXPECT_LE(wait, most);
    most = std::min(most * 2, Duration::Seconds(1));
  }
  backoff.Reset();
  EXPECT_LE(backoff.Next(prng), Duration::Millis(50));
}

TEST(StepTransaction, IsDecidedOnce) {
  StepTransaction step;
  EXPECT_FALSE(step.Prepare(Step(1), Outcome::kApply, {}));  // nothing is open
  step.Open(Generation(1), Step(1));
  EXPECT_FALSE(step.Prepare(Step(2), Outcome::kApply, {}));
  EXPECT_TRUE(step.Prepare(Step(1), Outcome::kApply, {}));
  EXPECT_FALSE(step.Prepare(Step(1), Outcome::kSkip, {}));
  EXPECT_EQ(step.vote(), Outcome::kApply);
  EXPECT_TRUE(step.Decide(Outcome::kSkip, {}));
  EXPECT_FALSE(step.Decide(Outcome::kApply, {}));
  EXPECT_EQ(step.outcome(), Outcome::kSkip);
  EXPECT_FALSE(step.Report());
}

TEST(StepTransaction, FrozenItIsNotPreparedAnyMoreUntilTheNextOne) {
  StepTransaction step;
  step.Open(Generation(1), Step(1));
  step.Freeze();
  EXPECT_FALSE(step.Prepare(Step(1), Outcome::kApply, {}));
  ASSERT_TRUE(step.Report());
  EXPECT_FALSE(step.Report()->prepared);
  step.Decide(Outcome::kVoid, {});
  step.Open(Generation(2), Step(1));
  EXPECT_TRUE(step.Prepare(Step(1), Outcome::kApply, {}));
}

TensorSpec Cut(Shape shape, int dimension) {
  TensorSpec tensor;
  tensor.name = "t";
  tensor.shape = std::move(shape);
  tensor.cut_dimension = dimension;
  return tensor;
}

// previous[r]: the rank that new rank r had before.
GenerationRecord Live(const std::vector<std::int32_t>& previous, std::int32_t base_size) {
  GenerationRecord record;
  record.generation = Generation(2);
  record.restore.source = RestoreSource::kLive;
  record.restore.base_world_size = base_size;
  for (std::size_t r = 0; r < previous.size(); ++r) {
    MemberEntry entry;
    entry.rank = Rank(static_cast<std::int32_t>(r));
    entry.previous_rank = Rank(previous[r]);
    record.members.push_back(entry);
  }
  return record;
}

TEST(TransferPlan, BothEndsDeriveTheSameBoxesAndEveryElementComesExactlyOnce) {
  const std::vector<std::vector<std::int32_t>> cases = {{0, 1, 2, 3},   {0, 1, 2, -1},    {2, 0, 1},
                                                        {0, -1, -1, 1}, {3, 2, 1, 0, -1}, {0}};
  for (const auto& previous : cases) {
    const auto base =
        static_cast<std::int32_t>(std::ranges::count_if(previous, [](int p) { return p >= 0; }));
    const GenerationRecord record = Live(previous, base);
    const std::int32_t size = record.world_size();
    for (const TensorSpec& tensor : {Cut({10}, 0), Cut({3, 7}, 1), Cut({2, 5, 3}, 1), Cut({2}, 0),
                                     Cut({0, 4}, 0), Cut({3, 5}, kFlat), Cut({2, 3, 4}, kFlat)}) {
      std::vector<TransferPlan> plans;
      for (std::int32_t r = 0; r < size; ++r) {
        auto plan = PlanTransfers(tensor, record, Rank(r));
        ASSERT_TRUE(plan.ok()) << plan.status().ToString();
        plans.push_back(*plan);
      }
      std::vector<Box> all;
      for (std::int32_t r = 0; r < size; ++r) {
        for (const Transfer& in : plans[static_cast<std::size_t>(r)].incoming) {
          all.insert(all.end(), in.boxes.begin(), in.boxes.end());
          const auto& out = plans[static_cast<std::size_t>(in.peer.value())].outgoing;
          EXPECT_NE(std::ranges::find(out, Transfer{Rank(r), in.boxes}), out.end());
        }
      }
      EXPECT_TRUE(TilesExactly(tensor.shape, all).ok());
    }
  }
}

TEST(TransferPlan, APartWithoutALiveHolderIsAnError) {
  const auto plan = PlanTransfers(Cut({12}, 0), Live({0, 1, 2}, 4), Rank(2));
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), Code::kDataLoss);
  EXPECT_NE(plan.status().message().find("'t'"), std::string::npos);
}

TEST(TransferPlan, Holders) {
  EXPECT_EQ(HoldersOf(Live({-1, 2, 0}, 3)).first, Rank(1));
  EXPECT_FALSE(HoldersOf(Live({-1, 2, 0}, 3)).all);
  EXPECT_TRUE(HoldersOf(Live({1, 0}, 2)).all);
  EXPECT_EQ(HoldersOf(Live({-1, -1}, 2)).first, Rank(-1));
}

}  // namespace
}  // namespace muster::worker
