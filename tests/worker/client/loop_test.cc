// The training loop as a user writes it, against a real coordinator, with workers that are threads.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/worker/client/local_cluster.h"
#include "tests/worker/client/toy_job.h"
#include "worker/collective/flight_file.h"

namespace muster {
namespace {

class Loop : public ::testing::TestWithParam<ToyState> {};

TEST_P(Loop, ThreeWorkersEndWithTheWeightsOfOneAndEachSampleIsUsedOnce) {
  LocalCluster cluster;
  WorkerOptions options = cluster.Options(13, 3, 3);
  if (GetParam().sharded) options.checkpoint_directory = cluster.directory() + "/checkpoints";
  options.checkpoint_every = GetParam().sharded ? 4 : 0;
  const auto worker = [&] { return Train(options, GetParam()); };
  const auto outcomes = TrainAll({worker, worker, worker});
  const std::vector<float> expected = Undisturbed(13);
  for (const Outcomes& one : outcomes) {
    EXPECT_TRUE(one.end.ok()) << one.end.ToString();
    EXPECT_EQ(one.applied, 13);
    EXPECT_EQ(one.weights, expected);
  }
  const Records records = ReadRecords(cluster.directory());
  ExpectExactChain(records, 13);
  EXPECT_EQ(records.finals.size(), 1U);
}

// The others go on in the same process; the state of a shard that died comes from a checkpoint; a
// fourth worker comes later.
TEST_P(Loop, ADeathAndAGrowthChangeNothingInTheResult) {
  LocalCluster cluster;
  WorkerOptions options = cluster.Options(60, 2, 3);
  if (GetParam().sharded) options.checkpoint_directory = cluster.directory() + "/checkpoints";
  options.checkpoint_every = GetParam().sharded ? 5 : 0;
  Event died;
  Event grown;
  const auto survivor = [&] {
    return Train(options, GetParam(), [&](Worker& worker, TrainingStep& step) {
      if (died.is_set() && worker.world_size() == 3 && step.number().value() > 12) grown.Set();
      // The last steps give the newcomer time, so that it comes on every machine.
      if (step.number().value() > 30) {
        const auto phase = worker.Phase("wait for the newcomer", Duration::Seconds(60));
        grown.Await(std::chrono::milliseconds(200));
      }
      return true;
    });
  };
  const auto victim = [&] {
    return Train(
        options, GetParam(),
        [&](Worker&, TrainingStep& step) {
          if (step.number().value() < 12) return true;
          died.Set();
          return false;
        },
        true);
  };
  const auto newcomer = [&] {
    EXPECT_TRUE(died.Await());
    return Train(options, GetParam());
  };
  const auto outcomes = TrainAll({survivor, survivor, victim, newcomer});
  const std::vector<float> expected = Undisturbed(60);
  for (const std::size_t i : {0U, 1U, 3U}) {
    EXPECT_TRUE(outcomes[i].end.ok()) << outcomes[i].end.ToString();
    EXPECT_EQ(outcomes[i].weights, expected) << i;
  }
  EXPECT_TRUE(grown.is_set());
  const Records records = ReadRecords(cluster.directory());
  ExpectExactChain(records, 60);
  EXPECT_EQ(records.finals.size(), 1U);
}

INSTANTIATE_TEST_SUITE_P(State, Loop,
                         ::testing::Values(ToyState(false), ToyState(true), ToyState(false, true),
                                           ToyState(true, true)),
                         [](const auto& param) {
                           return std::string(param.param.sharded ? "Sharded" : "Replicated") +
                                  (param.param.on_device ? "OnDevice" : "");
                         });

TEST(LoopEnds, AWorkerThatIsAskedToLeaveEndsWellAndTheOthersGoOn) {
  LocalCluster cluster;
  const WorkerOptions options = cluster.Options(40, 2, 3);
  Event left;
  const auto stays = [&] {
    return Train(options, false, [&](Worker&, TrainingStep& step) {
      if (step.number().value() > 20) left.Await(std::chrono::milliseconds(200));
      return true;
    });
  };
  const auto leaves = [&] {
    const Outcomes outcomes = Train(options, false, [](Worker& worker, TrainingStep& step) {
      if (step.number().value() == 5) worker.RequestLeave();
      return true;
    });
    left.Set();
    return outcomes;
  };
  const auto outcomes = TrainAll({stays, leaves, stays});
  for (const Outcomes& one : outcomes) EXPECT_TRUE(one.end.ok()) << one.end.ToString();
  EXPECT_LT(outcomes[1].applied, 40);
  EXPECT_EQ(outcomes[0].last_world_size, 2);
  EXPECT_EQ(outcomes[0].weights, Undisturbed(40));
}

TEST(LoopEnds, WithoutANumberOfStepsTheJobEndsWhenAllFinish) {
  LocalCluster cluster;
  const auto worker = [&] {
    return Train(cluster.Options(0, 2, 2), false,
                 [](Worker&, TrainingStep& step) { return step.number().value() <= 7; });
  };
  for (const Outcomes& one : TrainAll({worker, worker})) {
    EXPECT_TRUE(one.end.ok()) << one.end.ToString();
    EXPECT_EQ(one.applied, 7);
  }
}

TEST(LoopEnds, OneThatFinishesEarlyDoesNotHoldUpTheOthers) {
  LocalCluster cluster;
  WorkerOptions options = cluster.Options(20, 1, 2);
  options.failure_timeout = Duration::Millis(500);
  const auto stays = [&] { return Train(options); };
  const auto ends = [&] {
    return Train(options, false,
                 [](Worker&, TrainingStep& step) { return step.number().value() <= 7; });
  };
  const auto outcomes = TrainAll({stays, ends});
  EXPECT_TRUE(outcomes[0].end.ok()) << outcomes[0].end.ToString();
  EXPECT_EQ(outcomes[0].applied, 20);
  EXPECT_TRUE(outcomes[1].end.ok()) << outcomes[1].end.ToString();
}

TEST(LoopSteps, AGradientThatIsNotFiniteIsSkippedByAll) {
  LocalCluster cluster;
  const WorkerOptions options = cluster.Options(4, 2, 2);
  const auto worker = [&] {
    Outcomes outcomes;
    TrainingState state;
    Toy toy;
    toy.Register(state, false);
    Result<Worker> joined = Worker::Join(options, state);
    EXPECT_TRUE(joined.ok()) << joined.status().ToString();
    while (TrainingStep* step = joined->BeginStep()) {
      for (const MicroBatch& batch : step->micro_batches()) {
        (void)toy.Compute(batch);
        // One bad micro-batch, on one rank only.
        if (step->number() == Step(2) && batch.index() == 0) {
          toy.gradient[3] = std::numeric_limits<float>::quiet_NaN();
        }
        step->Add(batch, toy.gradient, {.loss = 1, .weight = 1});
      }
      if (!step->Reduce()) continue;
      const Outcome outcome = step->Commit();
      EXPECT_EQ(outcome, step->number() == Step(2) ? Outcome::kSkip : Outcome::kApply);
      if (outcome == Outcome::kApply) toy.Apply(*step);
      ++(outcome == Outcome::kApply ? outcomes.applied : outcomes.skipped);
    }
    outcomes.end = joined->Finish();
    outcomes.weights = toy.weights;
    return outcomes;
  };
  const auto outcomes = TrainAll({worker, worker});
  for (const Outcomes& one : outcomes) {
    EXPECT_TRUE(one.end.ok());
    EXPECT_EQ(one.applied, 3);
    EXPECT_EQ(one.skipped, 1);
    EXPECT_EQ(one.weights, outcomes[0].weights);
  }
}

TEST(LoopSteps, UpcomingIsWhatTheNextStepsThenBring) {
  LocalCluster cluster;
  std::vector<std::vector<std::int64_t>> promised;
  std::vector<std::vector<std::int64_t>> brought;
  const auto samples = [](const MicroBatch& batch) {
    return std::vector<std::int64_t>(batch.samples().begin(), batch.samples().end());
  };
  const Outcomes one =
      Train(cluster.Options(6, 1, 1), false, [&](Worker& worker, TrainingStep& step) {
        if (step.number() == Step(1)) {
          for (const MicroBatch& batch : worker.Upcoming(100)) promised.push_back(samples(batch));
        } else {
          for (const MicroBatch& batch : step.micro_batches()) brought.push_back(samples(batch));
        }
        return true;
      });
  EXPECT_TRUE(one.end.ok());
  EXPECT_FALSE(promised.empty());
  EXPECT_EQ(promised, brought);
}

// Each breaks the rules in its first step.
struct MisuseRow {
  const char* name;
  const char* expected;
  void (*body)(Worker&, TrainingStep&);
};

const std::vector<float> kRight(kElements);

void AddAll(TrainingStep& step) {
  for (const MicroBatch& batch : step.micro_batches()) step.Add(batch, kRight, {1, 1});
}

// Another attempt with it would go no better: it is the worker that goes, and not the job.
TEST(LoopDevices, AWorkerWhoseDeviceIsLostLeavesAndTheOthersGoOn) {
  LocalCluster cluster;
  const WorkerOptions plain = cluster.Options(20, 1, 2);
  const auto on_device = [&](bool breaks) {
    const auto device = testing::HostDevice::Make();
    WorkerOptions options = plain;
    options.device = device;
    options.backend = "tcp";
    TrainingState state;
    std::vector<float> weights(kElements);
    state.AddReplicated("weights", weights);
    const std::unique_ptr<DeviceStream> stream = device->MakeStream().value();
    const DeviceMemory gradient = device->Allocate(kElements * sizeof(float)).value();
    stream->Fill(gradient.data(), 0, gradient.size());
    Outcomes outcomes;
    Result<Worker> worker = Worker::Join(options, state);
    if (!worker.ok()) return Outcomes{.end = worker.status(), .weights = {}};
    while (TrainingStep* step = worker->BeginStep()) {
      if (breaks && step->number().value() == 5) device->Break("fell off the bus");
      for (const MicroBatch& batch : step->micro_batches()) {
        step->Add(batch, gradient.as<float>(), {.loss = 1, .weight = 1}, *stream);
      }
      if (step->Reduce() && step->Commit() == Outcome::kApply) ++outcomes.applied;
    }
    outcomes.end = worker->Finish();
    return outcomes;
  };
  const auto outcomes =
      TrainAll({[&] { return on_device(false); }, [&] { return on_device(true); }});
  EXPECT_TRUE(outcomes[0].end.ok()) << outcomes[0].end.ToString();
  EXPECT_EQ(outcomes[1].end.code(), Code::kInternal);
  EXPECT_NE(outcomes[1].end.message().find("fell off the bus"), std::string::npos);
}

TEST(LoopMisuse, IsSaidAndEndsTheLoopWithoutHarm) {
  const MisuseRow rows[] = {
      {"commit without reduce", "Commit() needs a Reduce()",
       [](Worker&, TrainingStep& s) {
         AddAll(s);
         EXPECT_EQ(s.Commit(), Outcome::kVoid);
       }},
      {"wrong size", "33",
       [](Worker&, TrainingStep& s) {
         s.Add(s.micro_batches()[0], std::span(kRight).first(5), {1, 1});
       }},
      {"twice", "it is the turn of 1",
       [](Worker&, TrainingStep& s) {
         for (int i = 0; i < 2; ++i) s.Add(s.micro_batches()[0], kRight, {1, 1});
       }},
      {"missing", "0 of 6 micro-batches",
       [](Worker&, TrainingStep& s) { EXPECT_FALSE(s.Reduce()); }},
      {"add after reduce", "Add() after Reduce()",
       [](Worker&, TrainingStep& s) {
         AddAll(s);
         EXPECT_TRUE(s.Reduce());
         s.Add(s.micro_batches()[0], kRight, {1, 1});
       }},
      {"reduce twice", "called twice",
       [](Worker&, TrainingStep& s) {
         AddAll(s);
         EXPECT_TRUE(s.Reduce());
         EXPECT_FALSE(s.Reduce());
       }},
      {"one too many", "all have been added",
       [](Worker&, TrainingStep& s) {
         AddAll(s);
         s.Add(s.micro_batches()[0], kRight, {1, 1});
       }},
      {"bad weight", "weight -1",
       [](Worker&, TrainingStep& s) {
         s.Add(s.micro_batches()[0], kRight, {1, -1});
       }},
      {"no commit", "without Commit()",
       [](Worker& w, TrainingStep& s) {
         AddAll(s);
         EXPECT_TRUE(s.Reduce());
         EXPECT_EQ(w.BeginStep(), nullptr);
       }},
  };
  for (const MisuseRow& row : rows) {
    SCOPED_TRACE(row.name);
    LocalCluster cluster;
    WorkerOptions options = cluster.Options(5, 1, 1);
    TrainingState state;
    Toy toy;
    toy.Register(state, false);
    Result<Worker> worker = Worker::Join(options, state);
    ASSERT_TRUE(worker.ok()) << worker.status().ToString();
    TrainingStep* step = worker->BeginStep();
    ASSERT_NE(step, nullptr);
    row.body(*worker, *step);
    EXPECT_NE(worker->status().message().find(row.expected), std::string::npos)
        << worker->status().message();
    EXPECT_EQ(worker->BeginStep(), nullptr);
    EXPECT_EQ(worker->Finish(), worker->status());
    EXPECT_FALSE(worker->Finish().ok());
  }
}

TEST(LoopJoin, BadOptionsAreNamedWithTheRemedy) {
  LocalCluster cluster;
  struct Row {
    const char* expected;
    Code code;
    void (*change)(WorkerOptions&);
  };
  const Row rows[] = {
      {"MUSTER_JOB", Code::kInvalidArgument, [](WorkerOptions& o) { o.job = ""; }},
      {"samples (0)", Code::kInvalidArgument, [](WorkerOptions& o) { o.samples = 0; }},
      {"max-workers", Code::kInvalidArgument, [](WorkerOptions& o) { o.micro_batches = 1; }},
      {"absolute", Code::kInvalidArgument, [](WorkerOptions& o) { o.checkpoint_directory = "x"; }},
      {"/no/such", Code::kNotFound,
       [](WorkerOptions& o) { o.checkpoint_directory = "/no/such/parent/directory"; }},
      {"MUSTER_RECORD_DIR", Code::kNotFound,
       [](WorkerOptions& o) { o.record_directory = "/no/such/directory"; }},
      {"http://127.0.0.1:1", Code::kUnavailable,
       [](WorkerOptions& o) {
         o.coordinator = "http://127.0.0.1:1";
         o.connect_timeout = Duration::Millis(100);
       }},
      {"MUSTER_ABORT_TIMEOUT_MS", Code::kInvalidArgument,
       [](WorkerOptions& o) { o.abort_timeout = Duration::Seconds(1'000'000'000); }},
      {"ftp", Code::kInvalidArgument, [](WorkerOptions& o) { o.coordinator = "ftp://x"; }},
      {"longer than", Code::kInvalidArgument,
       [](WorkerOptions& o) { o.worker = std::string(300, 'w'); }},
  };
  for (const Row& row : rows) {
    WorkerOptions options = cluster.Options(5, 1, 2);
    row.change(options);
    const Status status = Train(options).end;
    EXPECT_EQ(status.code(), row.code) << row.expected << ": " << status.ToString();
    EXPECT_NE(status.message().find(row.expected), std::string::npos) << status.message();
  }
  EXPECT_EQ(Train(cluster.Options(5, 1, 2), true).end.code(), Code::kFailedPrecondition);
}

// The ring of a worker is there from Join to the end in order, and training does without it.
TEST(LoopJoin, TheFlightRingStaysUnlessTheEndIsInOrder) {
  LocalCluster cluster;
  WorkerOptions options = cluster.Options(3, 1, 1);
  options.flight_directory = cluster.directory() + "/flights";
  options.worker = "w0";
  const auto rings = [&] {
    const auto folder = ReadFlights(options.flight_directory);
    return folder.ok() ? folder->flights : std::vector<FoundFlight>();
  };
  const Status end = Train(options, false, [&](Worker&, TrainingStep&) {
                       const auto found = rings();
                       EXPECT_EQ(found.size(), 1U);
                       EXPECT_TRUE(found.empty() || found[0].log.identity.worker == "w0");
                       return true;
                     }).end;
  EXPECT_TRUE(end.ok()) << end.ToString();
  EXPECT_EQ(rings().size(), 0U);
  // A job that has ended gives no step; another one it is.
  options.job = "abandoned";
  (void)Train(
      options, false, [](Worker&, TrainingStep&) { return false; }, true);
  EXPECT_EQ(rings().size(), 1U);
  for (const char* without_ring : {"/no/such/directory", "off"}) {
    options.flight_directory = without_ring;
    options.job += "-2";
    const Outcomes without = Train(options);
    EXPECT_TRUE(without.end.ok()) << without.end.ToString();
    EXPECT_EQ(without.applied, 3);
  }
}

TEST(LoopJoin, AContradictingSpecAndATakenNameAreRefused) {
  LocalCluster cluster;
  WorkerOptions options = cluster.Options(5, 2, 2);  // waits for a second one, which never comes
  options.worker = "w0";
  TrainingState state;
  Toy toy;
  toy.Register(state, false);
  Result<Worker> first = Worker::Join(options, state);
  ASSERT_TRUE(first.ok());
  options.node = "another";  // on the same one it could be the same process, come again
  const Status twin = Train(options).end;
  EXPECT_EQ(twin.code(), Code::kAlreadyExists) << twin.ToString();
  WorkerOptions other = cluster.Options(6, 2, 2);
  const Status contradiction = Train(other).end;
  EXPECT_EQ(contradiction.code(), Code::kInvalidArgument);
  EXPECT_NE(contradiction.message().find("steps: 5 there, 6 here"), std::string::npos)
      << contradiction.message();
  std::vector<float> late(3);
  state.AddReplicated("late", late);
  EXPECT_NE(state.status().message().find("before it"), std::string::npos);
}

}  // namespace
}  // namespace muster
