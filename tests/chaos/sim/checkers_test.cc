// Each checker convicts what it is there for, and nothing else.
#include <gtest/gtest.h>

#include "chaos/sim/checkers/autonomy.h"
#include "chaos/sim/checkers/chain.h"
#include "chaos/sim/checkers/durable_decisions.h"
#include "chaos/sim/checkers/exact_data.h"
#include "chaos/sim/checkers/healthy_workers.h"
#include "chaos/sim/checkers/liveness.h"
#include "chaos/sim/checkers/one_generation.h"
#include "chaos/sim/checkers/reforming.h"
#include "chaos/sim/checkers/restored_state.h"
#include "chaos/sim/checkers/safe_checkpoints.h"
#include "chaos/sim/checkers/step_chain.h"

namespace muster::sim {
namespace {

const Member kA{WorkerId("a"), Incarnation(1)};
const Member kB{WorkerId("b"), Incarnation(2)};
const Lineage kLineage(7);

Commit CommitOf(const Member& member, std::int64_t generation, std::int64_t step,
                std::uint64_t before, Outcome outcome = Outcome::kApply) {
  return {member, kLineage, Generation(generation), Step(step), outcome, before};
}

// The chain and the two checkers that watch it grow.
class ChainTest : public testing::Test {
 protected:
  void Take(const Commit& commit) {
    one_.OnCommit(commit, chain_, verdict_);
    steps_.OnCommit(commit, chain_, verdict_);
    if (chain_.Voided(commit.lineage, commit.generation, commit.step)) return;
    chain_.Add(commit.lineage, commit.generation, commit.step, commit.outcome, commit.before);
  }
  void Note(const JobRecord& record) {
    chain_.OnRecord(record);
    one_.OnRecord(record, verdict_);
    steps_.OnRecord(record, chain_, verdict_);
  }
  static JobRecord RecordOf(std::int64_t generation, std::int64_t step) {
    JobRecord record;
    record.lineage = kLineage;
    record.latest.emplace();
    record.latest->generation = Generation(generation);
    record.latest->restore.step = Step(step);
    return record;
  }
  // Two workers, two steps of generation 1: nothing to complain about.
  void TwoSteps() {
    Note(RecordOf(1, 0));
    Take(CommitOf(kA, 1, 1, 0));
    Take(CommitOf(kB, 1, 1, 0));
    Take(CommitOf(kA, 1, 2, NextState(0, Step(1)), Outcome::kSkip));
    ASSERT_TRUE(verdict_.ok()) << verdict_.violation();
  }

  Chain chain_;
  OneGeneration one_;
  StepChain steps_;
  Verdict verdict_;
};

TEST_F(ChainTest, SkipLeavesTheState) {
  TwoSteps();
  EXPECT_EQ(chain_.StateAt(kLineage, Step(2)), chain_.StateAt(kLineage, Step(1)));
  EXPECT_EQ(chain_.last(), Step(2));
}

TEST_F(ChainTest, Gap) {
  TwoSteps();
  Take(CommitOf(kA, 1, 4, 7));
  EXPECT_FALSE(verdict_.ok());
}

TEST_F(ChainTest, OtherOutcome) {
  TwoSteps();
  Take(CommitOf(kB, 1, 2, NextState(0, Step(1))));
  EXPECT_FALSE(verdict_.ok());
}

TEST_F(ChainTest, OtherState) {
  TwoSteps();
  Take(CommitOf(kA, 1, 3, 12345));
  EXPECT_FALSE(verdict_.ok());
}

TEST_F(ChainTest, StepTakenInTwoGenerations) {
  TwoSteps();
  Take(CommitOf(kB, 2, 2, NextState(0, Step(1)), Outcome::kSkip));
  EXPECT_FALSE(verdict_.ok());
}

TEST_F(ChainTest, OlderGenerationAboveANewerOne) {
  TwoSteps();
  Note(RecordOf(2, 2));
  Take(CommitOf(kA, 2, 3, *chain_.StateAt(kLineage, Step(2))));
  ASSERT_TRUE(verdict_.ok()) << verdict_.violation();
  Take(CommitOf(kB, 1, 4, *chain_.StateAt(kLineage, Step(3))));
  EXPECT_TRUE(verdict_.violation().starts_with("S1")) << verdict_.violation();
}

TEST_F(ChainTest, ACommittedStepIsForgotten) {
  TwoSteps();
  Note(RecordOf(2, 1));
  EXPECT_TRUE(verdict_.violation().starts_with("S2")) << verdict_.violation();
}

TEST_F(ChainTest, AStepAboveTheOneThatANewGenerationGoesOnFrom) {
  TwoSteps();
  Note(RecordOf(2, 2));
  Take(CommitOf(kA, 1, 3, *chain_.StateAt(kLineage, Step(2))));
  EXPECT_TRUE(verdict_.violation().starts_with("S2")) << verdict_.violation();
}

TEST_F(ChainTest, RollbackCutsTheChainAndVoidsWhatOlderGenerationsDo) {
  TwoSteps();
  JobRecord record = RecordOf(2, 1);
  record.rollbacks.push_back({Generation(2), Step(1)});
  Note(record);
  EXPECT_EQ(chain_.last(), Step(1));
  Take(CommitOf(kA, 2, 2, *chain_.StateAt(kLineage, Step(1))));
  // A worker that no one can reach shows its user a step that counts for nothing.
  Take(CommitOf(kB, 1, 5, 77));
  EXPECT_TRUE(verdict_.ok()) << verdict_.violation();
  EXPECT_EQ(chain_.last(), Step(2));
}

TEST_F(ChainTest, ADecidedStepJoinsTheChain) {
  TwoSteps();
  JobRecord record = RecordOf(2, 3);
  record.latest->decision = {Generation(1), Step(3), Outcome::kApply, {}};
  Note(record);
  EXPECT_EQ(chain_.last(), Step(3));
  Take(CommitOf(kB, 1, 3, *chain_.StateAt(kLineage, Step(2))));
  EXPECT_TRUE(verdict_.ok()) << verdict_.violation();
}

TEST_F(ChainTest, AnIncarnationThatWasLeftOutMakesANewStep) {
  TwoSteps();
  JobRecord record = RecordOf(1, 0);
  record.gone.push_back(kB);
  Note(record);
  Take(CommitOf(kB, 1, 3, *chain_.StateAt(kLineage, Step(2))));
  EXPECT_TRUE(verdict_.violation().starts_with("S1")) << verdict_.violation();
}

TEST(RestoredStateTest, MustBeCompleteAndOfOneStepOfTheChain) {
  Chain chain;
  chain.Add(kLineage, Generation(1), Step(1), Outcome::kApply, 0);
  const std::uint64_t one = NextState(0, Step(1));
  const auto judge = [&](const std::vector<Piece>& pieces, std::int64_t step) {
    Verdict verdict;
    RestoredState::OnRestored(kA, kLineage, Step(step), 2, 8, pieces, chain, verdict);
    return verdict.violation();
  };
  EXPECT_EQ(judge({{5, 8, one, Step(1)}, {2, 5, one, Step(1)}}, 1), "");
  EXPECT_NE(judge({{2, 5, one, Step(1)}, {6, 8, one, Step(1)}}, 1), "") << "a hole";
  EXPECT_NE(judge({{2, 6, one, Step(1)}, {5, 8, one, Step(1)}}, 1), "") << "twice";
  EXPECT_NE(judge({{2, 7, one, Step(1)}}, 1), "") << "the end is missing";
  EXPECT_NE(judge({{2, 5, one, Step(1)}, {5, 8, 0, Step(0)}}, 1), "") << "two steps";
  EXPECT_NE(judge({{2, 8, 99, Step(1)}}, 1), "") << "another state";
  EXPECT_NE(judge({{2, 8, one, Step(2)}}, 2), "") << "no step of the chain";
}

class CheckpointsTest : public testing::Test {
 protected:
  CheckpointsTest() {
    JobRecord record;
    record.lineage = kLineage;
    chain_.OnRecord(record);
    chain_.Add(kLineage, Generation(1), Step(1), Outcome::kApply, 0);
    entry_.record.key = {Step(1), Generation(1)};
    entry_.record.world_size = 2;
    entry_.record.lineage = kLineage;
    entry_.state = CheckpointState::kAnnounced;
    for (int rank = 0; rank < 2; ++rank) {
      disk_.shards[{entry_.record.key, rank}] =
          ShardFile{{rank * 4, rank * 4 + 4, NextState(0, Step(1)), Step(1)}, kLineage, false};
    }
    disk_.manifests[entry_.record.key] = entry_.record;
  }
  std::string Announce() {
    Verdict verdict;
    checker_.OnAnnounced(entry_, chain_, disk_, verdict);
    return verdict.violation();
  }

  SafeCheckpoints checker_{8};
  Chain chain_;
  CheckpointEntry entry_;
  Disk disk_;
};

TEST_F(CheckpointsTest, CompleteOne) {
  EXPECT_EQ(Announce(), "");
  Verdict verdict;
  checker_.OnLess({entry_}, chain_, disk_, verdict);
  EXPECT_TRUE(verdict.ok()) << verdict.violation();
}

TEST_F(CheckpointsTest, AFileIsMissing) {
  disk_.shards.erase({entry_.record.key, 1});
  EXPECT_NE(Announce(), "");
}

TEST_F(CheckpointsTest, ItHoldsAnotherState) {
  for (auto& [key, file] : disk_.shards) file.piece.state = 5;
  EXPECT_NE(Announce(), "");
}

TEST_F(CheckpointsTest, TwoStepsAreMixed) {
  disk_.shards.begin()->second.piece.step = Step(2);
  EXPECT_NE(Announce(), "");
}

TEST_F(CheckpointsTest, ARollbackMadeItVoid) {
  JobRecord record;
  record.lineage = kLineage;
  record.rollbacks.push_back({Generation(2), Step(0)});
  chain_.OnRecord(record);
  EXPECT_NE(Announce(), "");
}

TEST_F(CheckpointsTest, ItsManifestIsMissing) {
  disk_.manifests.clear();
  EXPECT_NE(Announce(), "");
}

TEST_F(CheckpointsTest, RecordedWithoutAFile) {
  Verdict good;
  checker_.OnComplete(entry_.record, chain_, disk_, good);
  EXPECT_TRUE(good.ok()) << good.violation();
  disk_.shards.erase({entry_.record.key, 1});
  Verdict bad;
  checker_.OnComplete(entry_.record, chain_, disk_, bad);
  EXPECT_FALSE(bad.ok());
}

TEST_F(CheckpointsTest, SweptAlthoughTheIndexHasIt) {
  Verdict unknown;
  SafeCheckpoints::OnSwept(entry_.record.key, {}, unknown);
  EXPECT_TRUE(unknown.ok());
  Verdict known;
  SafeCheckpoints::OnSwept(entry_.record.key, {entry_}, known);
  EXPECT_FALSE(known.ok());
}

TEST_F(CheckpointsTest, StartedOverBesideACheckpoint) {
  Verdict there;
  checker_.OnStartedOver(entry_.record, disk_, there);
  EXPECT_FALSE(there.ok());
  disk_.shards.begin()->second.damaged = true;
  Verdict damaged;
  checker_.OnStartedOver(entry_.record, disk_, damaged);
  EXPECT_TRUE(damaged.ok());
}

// A job that begins anew goes on from what led to the checkpoint that was found.
TEST_F(CheckpointsTest, GoesOnFromAFoundOne) {
  chain_.OnSaved(entry_.record);
  JobRecord record;
  record.lineage = Lineage(99);
  chain_.OnRecord(record);
  EXPECT_FALSE(chain_.StateAt(Lineage(99), Step(1)));
  chain_.OnFound(entry_.record);
  record.latest.emplace();
  record.latest->generation = Generation(2);
  record.latest->restore.source = RestoreSource::kCheckpoint;
  record.latest->restore.step = Step(1);
  record.latest->restore.checkpoint = entry_.record.key;
  chain_.OnRecord(record);
  EXPECT_EQ(chain_.StateAt(Lineage(99), Step(1)), NextState(0, Step(1)));
  EXPECT_EQ(chain_.last(), Step(1));
}

TEST_F(CheckpointsTest, TheLastOneIsDeleted) {
  ASSERT_EQ(Announce(), "");
  entry_.state = CheckpointState::kDeleting;
  Verdict verdict;
  checker_.OnLess({entry_}, chain_, disk_, verdict);
  EXPECT_FALSE(verdict.ok());
}

TEST(ExactDataTest, EachMicroBatchOnce) {
  JobSpec spec;
  spec.samples = 100;
  spec.global_batch = 10;
  spec.micro_batches = 4;
  const OpKey key{kLineage, Generation(1), OpKind::kReduce, Step(1)};
  const auto judge = [&](std::vector<Range> parts) {
    ExactData checker(spec);
    Verdict verdict;
    checker.OnReduced(key, std::move(parts), verdict);
    return verdict.violation();
  };
  EXPECT_EQ(judge({{2, 4}, {0, 2}, {4, 4}}), "");
  EXPECT_NE(judge({{0, 2}, {1, 4}}), "");
  EXPECT_NE(judge({{0, 2}, {3, 4}}), "");
  EXPECT_NE(judge({{0, 3}}), "");
}

TEST(DurableDecisionsTest, SentBeforeItWasDurable) {
  GenerationRecord record;
  record.generation = Generation(3);
  const Assign assign{record};
  JobRecord stored;
  stored.highest = Generation(3);
  stored.latest = record;
  DurableDecisions checker;
  Verdict good;
  checker.OnSend(assign, &stored, {}, good);
  EXPECT_TRUE(good.ok()) << good.violation();
  stored.latest->generation = Generation(2);
  Verdict bad;
  checker.OnSend(assign, &stored, {}, bad);
  EXPECT_FALSE(bad.ok());
  Verdict end;
  checker.OnSend(muster::Ended{}, &stored, {}, end);
  EXPECT_FALSE(end.ok());
}

TEST(DurableDecisionsTest, TwoRecordsOfOneGeneration) {
  GenerationRecord record;
  record.generation = Generation(3);
  JobRecord stored;
  stored.highest = Generation(3);
  stored.latest = record;
  DurableDecisions checker;
  Verdict verdict;
  checker.OnSend(Assign{record}, &stored, {}, verdict);
  record.restore.step = Step(9);
  checker.OnSend(Assign{record}, &stored, {}, verdict);
  EXPECT_FALSE(verdict.ok());
}

TEST(HealthyWorkersTest, OnlyTheTroubledAreGivenUpAndWaitedFor) {
  HealthyWorkers checker(Duration::Seconds(5));
  const Instant start = Instant::FromNanos(0);
  const Instant later = start + Duration::Seconds(10);
  Verdict verdict;
  checker.OnFenced({"w1", false, start}, later, verdict);
  checker.OnFenced({"w1", true, start + Duration::Seconds(8)}, later, verdict);
  checker.OnWaiting("worker w12 has not answered", {{"w1", true, start}}, later, verdict);
  EXPECT_TRUE(verdict.ok()) << verdict.violation();
  Verdict fenced;
  checker.OnFenced({"w1", true, start}, later, fenced);
  EXPECT_FALSE(fenced.ok());
  Verdict waiting;
  checker.OnWaiting("worker w1 last heard 1 s ago", {{"w1", true, start}}, later, waiting);
  EXPECT_TRUE(waiting.ok()) << "it has said so for a moment only";
  checker.OnWaiting("worker w1 last heard 9 s ago", {{"w1", true, start}},
                    later + Duration::Seconds(8), waiting);
  EXPECT_FALSE(waiting.ok());
}

TEST(HealthyWorkersTest, OnlyWhoWasLostOftenCoolsDown) {
  Verdict verdict;
  HealthyWorkers::OnCooling("w1", 3, 3, verdict);
  EXPECT_TRUE(verdict.ok()) << verdict.violation();
  HealthyWorkers::OnCooling("w1", 2, 3, verdict);
  EXPECT_FALSE(verdict.ok());
}

// A member that forms, votes or is counted without having answered, been prepared or reported.
TEST(OneGenerationTest, MembersHaveAnsweredAndReported) {
  JobRecord record;
  record.lineage = kLineage;
  GenerationRecord one;
  one.generation = Generation(1);
  one.members = {{kA, Rank(0), NodeName("n"), "", Rank(-1)}};
  record.started = record.latest = one;
  OneGeneration checker;
  Verdict first;
  checker.OnDecision(record, {}, false, false, first);
  EXPECT_TRUE(first.ok()) << first.violation();
  record.latest->generation = Generation(2);
  OneGeneration::Standing standing;
  standing.member = kA;
  standing.may_train = true;
  standing.ready_for = Generation(2);
  Verdict answered;
  OneGeneration(checker).OnDecision(record, {standing}, false, false, answered);
  EXPECT_TRUE(answered.ok()) << answered.violation();
  standing.ready_for = Generation(1);
  Verdict not_answered;
  OneGeneration(checker).OnDecision(record, {standing}, false, false, not_answered);
  EXPECT_FALSE(not_answered.ok());
  // Nobody of generation 1 is in it, and its member may still train.
  record.latest->members[0].member = kB;
  Verdict without;
  OneGeneration(checker).OnDecision(record, {standing}, false, false, without);
  EXPECT_FALSE(without.ok());
  // Adopted before it had reported.
  Verdict adopted;
  OneGeneration(checker).OnDecision(record, {standing}, true, false, adopted);
  EXPECT_FALSE(adopted.ok());
}

TEST_F(ChainTest, DecisionsAreFinalAndNeedEveryGradient) {
  TwoSteps();
  JobRecord record = RecordOf(2, 3);
  GenerationRecord one;
  one.generation = Generation(1);
  one.lineage = kLineage;
  one.members = {{kA, Rank(0), NodeName("n"), "", Rank(-1)}};
  record.started = one;
  record.latest->members = one.members;
  record.latest->decision = {Generation(1), Step(3), Outcome::kApply, {}};
  steps_.OnPrepared(CommitOf(kA, 1, 3, 0, Outcome::kNone));
  Note(record);
  EXPECT_TRUE(verdict_.ok()) << verdict_.violation();
  record.latest->generation = Generation(3);
  record.latest->restore.step = Step(2);
  record.latest->decision.outcome = Outcome::kVoid;
  Note(record);
  EXPECT_TRUE(verdict_.violation().starts_with("S2")) << verdict_.violation();
}

TEST(ReformingTest, TooFewMembersAndStateGivenUp) {
  JobRecord record;
  record.spec.min_workers = 1;
  record.spec.max_workers = 2;
  record.started.emplace();
  record.started->generation = Generation(1);
  record.latest.emplace();
  record.latest->generation = Generation(2);
  record.latest->restore.source = RestoreSource::kCheckpoint;
  record.latest->restore.step = Step(4);
  const Reforming fresh(Duration::Seconds(1), Duration::Seconds(1));
  Verdict empty;
  Reforming(fresh).OnRecord(record, {}, 8, empty);
  EXPECT_FALSE(empty.ok()) << "no member at all";
  record.latest->members = {{kA, Rank(0), NodeName("n"), "", Rank(-1)}};
  Verdict lost;
  Reforming(fresh).OnRecord(record, {{kA, {0, 4, 1, Step(9)}}}, 8, lost);
  EXPECT_TRUE(lost.ok()) << lost.violation();
  Verdict needless;
  Reforming(fresh).OnRecord(record, {{kA, {0, 4, 1, Step(9)}}, {kB, {4, 8, 1, Step(9)}}}, 8,
                            needless);
  EXPECT_FALSE(needless.ok());
  Verdict waiting;
  Reforming watch(fresh);
  const Instant start = Instant::FromNanos(0);
  const std::string text = "waiting a moment for failures that belong together";
  watch.OnWaiting(Generation(2), text, start, waiting);
  watch.OnWaiting(Generation(3), text, start + Duration::Seconds(2), waiting);
  EXPECT_TRUE(waiting.ok()) << "another attempt";
  watch.OnWaiting(Generation(3), text, start + Duration::Seconds(4), waiting);
  EXPECT_FALSE(waiting.ok());
}

TEST(ContactTest, NoOutcomeOutOfTouch) {
  const Instant start = Instant::FromNanos(0);
  Contact contact;
  contact.OnHello(start);
  contact.OnWelcome();
  contact.OnBeat(1, start + Duration::Seconds(1));
  contact.OnAck(1);
  const auto judge = [&](Duration after, bool connected) {
    Verdict verdict;
    contact.OnCommit("w", Duration::Seconds(2), Duration::Seconds(10), connected, start + after,
                     verdict);
    return verdict.violation();
  };
  EXPECT_EQ(judge(Duration::Seconds(2), true), "");
  EXPECT_NE(judge(Duration::Seconds(4), true), "") << "its lease has run out, and it has not asked";
  EXPECT_EQ(judge(Duration::Seconds(4), false), "") << "it cannot ask";
  EXPECT_NE(judge(Duration::Seconds(12), false), "");
}

TEST(LivenessTest, TwentyStepsWithoutARollback) {
  Liveness checker;
  Chain chain;
  const Instant peace = Instant::FromNanos(0);
  for (int i = 0; i < 30; ++i) checker.OnStep(chain);
  EXPECT_FALSE(checker.satisfied()) << "the faults go on";
  checker.OnPeace(peace);
  for (int i = 0; i < 19; ++i) checker.OnStep(chain);
  JobRecord record;
  record.rollbacks.push_back({Generation(2), Step(0)});
  chain.OnRecord(record);
  checker.OnStep(chain);
  EXPECT_FALSE(checker.satisfied());
  Verdict verdict;
  checker.AtDeadline(peace + Duration::Seconds(60), "worker w1", verdict);
  EXPECT_NE(verdict.violation().find("worker w1"), std::string::npos);
  for (int i = 0; i < 19; ++i) checker.OnStep(chain);
  EXPECT_TRUE(checker.satisfied());
}

}  // namespace
}  // namespace muster::sim
