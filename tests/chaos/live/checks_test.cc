// Each verdict first passes a sound history and then finds the violation planted in it.
#include "chaos/live/checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace muster::chaos {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kEpoch = 20;
constexpr std::int64_t kBatch = 8;  // so that the third step of each epoch is short: 4 samples

// Workers w0, w1 … are ranks 0, 1 … of whatever generation they are in.
class History {
 public:
  // Appends step `step` of `generation` as `world` ranks record it.
  History& Step(std::int64_t generation, std::int64_t step, std::int64_t world) {
    const std::int64_t steps_in_epoch = (kEpoch + kBatch - 1) / kBatch;
    const std::int64_t epoch = (step - 1) / steps_in_epoch;
    const std::int64_t lo = (step - 1) % steps_in_epoch * kBatch;
    const std::int64_t hi = std::min(lo + kBatch, kEpoch);
    for (std::int64_t rank = 0; rank < world; ++rank) {
      StepRecord record;
      record.t_ns = ++clock_;
      record.pid = 100 + rank;
      record.worker = "w" + std::to_string(rank);
      record.incarnation = "00000000000000a" + std::to_string(rank);
      record.generation = generation;
      record.step = step;
      record.rank = rank;
      record.world_size = world;
      record.epoch = epoch;
      record.samples = {{lo + (hi - lo) * rank / world, lo + (hi - lo) * (rank + 1) / world}};
      record.outcome = "apply";
      record.loss = 4.0 / static_cast<double>(step);
      record.digest = "f" + std::to_string(step);
      facts_.records.push_back(record);
    }
    facts_.steps = std::max(facts_.steps, step);
    return *this;
  }

  // Four workers take steps 1 to 3, one dies, three take 4 and 5, four take 6.
  static History Sound() {
    History history;
    history.Step(1, 1, 4).Step(1, 2, 4).Step(1, 3, 4);
    history.Step(2, 4, 3).Step(2, 5, 3).Step(3, 6, 4);
    history.facts_.epoch_samples = kEpoch;
    history.facts_.global_batch = kBatch;
    for (std::int64_t rank = 0; rank < 4; ++rank) {
      StepRecord record;
      record.pid = 100 + rank;
      record.worker = "w" + std::to_string(rank);
      record.step = 6;
      record.digest = "aa";
      record.final = true;
      history.facts_.records.push_back(record);
    }
    history.facts_.survivors = {{"w0", 100, 100, 7, 7}, {"w1", 101, 101, 8, 8}};
    return history;
  }

  StepRecord& At(std::int64_t generation, std::int64_t step, std::int64_t rank) {
    return *std::find_if(facts_.records.begin(), facts_.records.end(), [&](const StepRecord& r) {
      return r.generation == generation && r.step == step && r.rank == rank;
    });
  }
  StepRecord& Final(const std::string& worker) {
    return *std::find_if(facts_.records.begin(), facts_.records.end(),
                         [&](const StepRecord& r) { return r.final && r.worker == worker; });
  }
  template <class Predicate>
  History& Erase(Predicate predicate) {
    std::erase_if(facts_.records, predicate);
    return *this;
  }
  RunFacts& facts() { return facts_; }

 private:
  RunFacts facts_;
  std::int64_t clock_ = 0;
};

void ExpectViolation(const Finding& finding, const std::string& text) {
  EXPECT_FALSE(finding.ok) << finding.name;
  EXPECT_THAT(finding.evidence, HasSubstr(text));
}

TEST(Checks, ASoundHistoryPassesAll) {
  History history = History::Sound();
  const RunFacts& facts = history.facts();
  for (const Finding& finding :
       {CheckOneGeneration(facts), CheckChain(facts), CheckOutcomes(facts), CheckSamples(facts),
        CheckWeights(facts, 4), CheckSameResult(facts, facts), CheckSurvivors(facts),
        CheckLoss(facts)}) {
    EXPECT_TRUE(finding.ok) << finding.name << ": " << finding.evidence;
    EXPECT_FALSE(finding.evidence.empty()) << finding.name;
  }
  EXPECT_EQ(StepsRedone(facts), 0);
}

TEST(Checks, NothingRecordedIsNoPass) {
  const RunFacts facts{.steps = 3, .epoch_samples = kEpoch, .global_batch = kBatch};
  EXPECT_FALSE(CheckChain(facts).ok);
  EXPECT_FALSE(CheckSamples(facts).ok);
  EXPECT_FALSE(CheckWeights(facts, 4).ok);
  EXPECT_FALSE(CheckSameResult(facts, facts).ok);
  EXPECT_FALSE(CheckSurvivors(facts).ok);
  EXPECT_FALSE(CheckLoss(facts).ok);
}

TEST(CheckChainTest, Gap) {
  History history = History::Sound();
  history.Erase([](const StepRecord& r) { return r.step == 3; });
  ExpectViolation(CheckChain(history.facts()), "steps 3 to 3 are missing");
}

TEST(CheckChainTest, EndMissing) {
  History history = History::Sound();
  history.facts().steps = 7;
  ExpectViolation(CheckChain(history.facts()), "ends at step 6, not 7");
}

TEST(CheckChainTest, RepeatInALaterGeneration) {
  History history = History::Sound();
  history.Step(2, 3, 3);
  ExpectViolation(CheckChain(history.facts()), "step 3 stands twice");
  ExpectViolation(CheckOneGeneration(history.facts()),
                  "step 3 was committed in generation 1 and again in 2");
}

TEST(CheckChainTest, RepeatByOneProcess) {
  History history = History::Sound();
  history.facts().records.push_back(history.At(1, 2, 1));
  ExpectViolation(CheckChain(history.facts()), "process 101 committed step 2");
}

TEST(CheckChainTest, ARollbackThatIsNamedExplainsRepeats) {
  History history = History::Sound();
  history.Step(2, 2, 3).Step(2, 3, 3);  // steps 2 and 3 of generation 1 are taken again
  EXPECT_FALSE(CheckChain(history.facts()).ok);
  history.facts().rollbacks = {{2, 1}};
  const Finding chain = CheckChain(history.facts());
  EXPECT_TRUE(chain.ok) << chain.evidence;
  EXPECT_THAT(chain.evidence, HasSubstr("generation 2 went back to step 1"));
  EXPECT_EQ(StepsRedone(history.facts()), 2);
  EXPECT_TRUE(CheckOneGeneration(history.facts()).ok);
  EXPECT_TRUE(CheckSamples(history.facts()).ok) << CheckSamples(history.facts()).evidence;
}

TEST(CheckChainTest, ARollbackThatGoesTooFarLeavesAGap) {
  History history = History::Sound();
  history.Step(2, 3, 3);
  history.facts().rollbacks = {{2, 1}};  // step 2 is voided and never taken again
  ExpectViolation(CheckChain(history.facts()), "steps 2 to 2 are missing");
}

TEST(CheckOneGenerationTest, OlderGenerationGoesOn) {
  History history = History::Sound();
  history.Step(1, 7, 4);
  ExpectViolation(CheckOneGeneration(history.facts()),
                  "step 7 was committed in generation 1 after one of generation 3");
}

TEST(CheckOneGenerationTest, FencedIncarnationCommits) {
  History history = History::Sound();
  history.facts().evictions = {{"w3", history.At(1, 1, 3).incarnation, 2}};
  // In generation 3 it has to have a new incarnation.
  ExpectViolation(CheckOneGeneration(history.facts()), "w3 (00000000000000a3) was declared dead");
  history.At(3, 6, 3).incarnation = "00000000000000ff";
  EXPECT_TRUE(CheckOneGeneration(history.facts()).ok);
}

TEST(CheckOutcomesTest, DivergentOutcome) {
  History history = History::Sound();
  history.At(1, 2, 3).outcome = "skip";
  ExpectViolation(CheckOutcomes(history.facts()), "rank 3 says skip");
}

TEST(CheckOutcomesTest, DivergentLoss) {
  History history = History::Sound();
  history.At(1, 2, 3).loss += 1e-15;
  ExpectViolation(CheckOutcomes(history.facts()), "step 2 of generation 1");
}

TEST(CheckOutcomesTest, ARankMayBeCutOffOnlyInTheLastStep) {
  History last = History::Sound();
  last.Erase([](const StepRecord& r) { return r.step == 3 && r.rank == 3; });
  EXPECT_TRUE(CheckOutcomes(last.facts()).ok);
  EXPECT_TRUE(CheckSamples(last.facts()).ok);
  History middle = History::Sound();
  middle.Erase([](const StepRecord& r) { return r.step == 2 && r.rank == 3; });
  ExpectViolation(CheckOutcomes(middle.facts()), "1 of 4 ranks recorded nothing");
}

TEST(CheckOutcomesTest, TwoProcessesWithOneRank) {
  History history = History::Sound();
  StepRecord twin = history.At(1, 2, 1);
  twin.pid = 999;
  history.facts().records.push_back(twin);
  ExpectViolation(CheckOutcomes(history.facts()), "two processes were rank 1");
}

TEST(CheckSamplesTest, TakenTwice) {
  History history = History::Sound();
  history.At(1, 2, 1).samples[0].lo -= 1;
  ExpectViolation(CheckSamples(history.facts()), "step 2: samples [9, 10) were taken twice");
}

TEST(CheckSamplesTest, TakenByNoRank) {
  History history = History::Sound();
  history.At(1, 2, 1).samples[0].lo += 1;
  ExpectViolation(CheckSamples(history.facts()), "step 2: 1 samples");
}

TEST(CheckSamplesTest, MoreGapsThanRanksCutOff) {
  History history = History::Sound();
  history.Erase([](const StepRecord& r) { return r.step == 3 && r.rank == 3; });
  history.At(1, 3, 1).samples.clear();
  ExpectViolation(CheckSamples(history.facts()), "step 3");
}

TEST(CheckSamplesTest, BeyondTheBatch) {
  History history = History::Sound();
  history.At(1, 2, 3).samples[0].hi += 1;
  ExpectViolation(CheckSamples(history.facts()), "samples [16, 17) are beyond its batch");
}

TEST(CheckSamplesTest, WrongEpoch) {
  History history = History::Sound();
  history.At(2, 4, 0).epoch = 0;
  ExpectViolation(CheckSamples(history.facts()), "step 4: rank 0 read epoch 0, expected 1");
}

TEST(CheckWeightsTest, DivergentFinalsAndGradients) {
  History finals = History::Sound();
  finals.Final("w2").digest = "bb";
  ExpectViolation(CheckWeights(finals.facts(), 4), "w2 at step 6 with bb");
  History missing = History::Sound();
  missing.Erase([](const StepRecord& r) { return r.final && r.worker == "w2"; });
  ExpectViolation(CheckWeights(missing.facts(), 4), "3 workers reported");
  History gradients = History::Sound();
  gradients.At(1, 2, 1).digest = "02";
  ExpectViolation(CheckWeights(gradients.facts(), 4), "step 2: rank 0 had gradient f2");
}

TEST(CheckSameResultTest, OtherWeightsLossesOrGradients) {
  History undisturbed = History::Sound();
  History weights = History::Sound();
  for (const char* worker : {"w0", "w1", "w2", "w3"}) weights.Final(worker).digest = "bb";
  ExpectViolation(CheckSameResult(weights.facts(), undisturbed.facts()),
                  "final weights bb, undisturbed aa");
  History losses = History::Sound();
  for (std::int64_t rank = 0; rank < 3; ++rank) losses.At(2, 5, rank).loss += 1e-15;
  ExpectViolation(CheckSameResult(losses.facts(), undisturbed.facts()), "the loss of step 5");
  History gradients = History::Sound();
  for (std::int64_t rank = 0; rank < 3; ++rank) gradients.At(2, 5, rank).digest = "00";
  ExpectViolation(CheckSameResult(gradients.facts(), undisturbed.facts()),
                  "the gradient of step 5");
}

TEST(CheckSurvivorsTest, OtherProcess) {
  History restarted = History::Sound();
  restarted.facts().survivors[0].pid_after = 555;
  ExpectViolation(CheckSurvivors(restarted.facts()), "w0 was process 100 and is 555 now");
  History gone = History::Sound();
  gone.facts().survivors[0].ticks_after.reset();
  ExpectViolation(CheckSurvivors(gone.facts()), "not in the process table");
  History reused = History::Sound();
  reused.facts().survivors[0].ticks_after = 9;
  ExpectViolation(CheckSurvivors(reused.facts()), "pid 100 is another process");
  History records = History::Sound();
  records.At(2, 5, 1).pid = 555;
  ExpectViolation(CheckSurvivors(records.facts()), "w1 committed step 5 as process 555");
}

TEST(CheckLossTest, Rises) {
  History history = History::Sound();
  for (std::int64_t rank = 0; rank < 4; ++rank) history.At(3, 6, rank).loss = 9;
  ExpectViolation(CheckLoss(history.facts()), "loss 4.0000 at the start, 9.0000 at the end");
}

}  // namespace
}  // namespace muster::chaos
