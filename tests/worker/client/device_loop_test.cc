// Gradients that lie on a device, over TCP: against a real coordinator, with workers that are
// threads and a device that is ordinary memory.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "tests/worker/client/local_cluster.h"
#include "tests/worker/client/toy_job.h"

namespace muster {
namespace {

// A device with a stream of the loop's, and memory for gradients.
struct Gpu {
  std::shared_ptr<testing::HostDevice> device = testing::HostDevice::Make();
  std::unique_ptr<DeviceStream> stream = device->MakeStream().value();
  std::vector<float> values = std::vector<float>(kElements, 1.F);
  DeviceMemory weights = device->Allocate(kElements * sizeof(float)).value();
  DeviceMemory gradient = device->Allocate(kElements * sizeof(float)).value();

  // Weights that nothing changes, and the options to train them.
  WorkerOptions Register(WorkerOptions options, TrainingState& state) {
    state.UseDevice(device, *stream);
    stream->Copy(weights.data(), values.data(), weights.size());
    state.AddReplicated("weights", weights.as<float>());
    options.device = device;
    options.backend = "tcp";
    return options;
  }
  void AddAll(TrainingStep& step) {
    for (const MicroBatch& batch : step.micro_batches()) {
      std::vector<float> made(kElements, static_cast<float>(step.number().value()));
      stream->Copy(gradient.data(), made.data(), gradient.size());
      // What is copied from ordinary memory must last until it has been.
      EXPECT_EQ(stream->Wait(Duration::Seconds(60), nullptr), Status());
      step.Add(batch, gradient.as<const float>(), {.loss = 1, .weight = 1}, *stream);
    }
  }
};

// The loop may still read the gradient of a step when the next step begins, also on a rank that has
// no micro-batch in that one: each epoch ends with a step of a single one.
TEST(DeviceLoop, WhatReadsAGradientRunsBeforeTheNextOneIsThere) {
  constexpr std::size_t kSteps = 15;
  LocalCluster cluster;
  const WorkerOptions options = cluster.Options(kSteps, 2, 2);
  std::atomic<int> without = 0;
  const auto worker = [&] {
    Outcomes outcomes;
    Gpu gpu;
    TrainingState state;
    Result<Worker> joined = Worker::Join(gpu.Register(options, state), state);
    EXPECT_TRUE(joined.ok()) << joined.status().ToString();
    DeviceMemory seen = gpu.device->Allocate(kSteps * sizeof(float)).value();
    while (TrainingStep* step = joined->BeginStep()) {
      if (step->micro_batches().empty()) ++without;
      gpu.AddAll(*step);
      EXPECT_TRUE(step->Reduce());
      EXPECT_EQ(step->Commit(), Outcome::kApply);
      // Put on the stream, and not waited for.
      const auto at = static_cast<std::size_t>(step->number().value() - 1);
      gpu.stream->Copy(seen.as<float>().data() + at, step->device_gradient().data(), sizeof(float));
    }
    outcomes.end = joined->Finish();
    outcomes.weights.resize(kSteps);
    gpu.stream->Copy(outcomes.weights.data(), seen.data(), seen.size());
    EXPECT_EQ(gpu.stream->Wait(Duration::Seconds(60), nullptr), Status());
    return outcomes;
  };
  std::vector<float> expected;
  for (std::size_t step = 1; step <= kSteps; ++step) expected.push_back(static_cast<float>(step));
  for (const Outcomes& one : TrainAll({worker, worker})) {
    EXPECT_TRUE(one.end.ok()) << one.end.ToString();
    EXPECT_EQ(one.weights, expected);
  }
  EXPECT_GT(without, 0);
}

// One worker's device is lost. It ends with the reason; the others go on without it.
TEST(DeviceLoop, AWorkerWhoseDeviceIsLostEnds) {
  LocalCluster cluster;
  const WorkerOptions options = cluster.Options(30, 1, 2);
  const auto worker = [&](bool breaks) {
    Outcomes outcomes;
    Gpu gpu;
    TrainingState state;
    Result<Worker> joined = Worker::Join(gpu.Register(options, state), state);
    EXPECT_TRUE(joined.ok()) << joined.status().ToString();
    while (TrainingStep* step = joined->BeginStep()) {
      gpu.AddAll(*step);
      if (breaks && step->number().value() == 5) gpu.device->Break("it fell off the bus");
      if (!step->Reduce()) continue;
      if (step->Commit() == Outcome::kApply) ++outcomes.applied;
    }
    outcomes.end = joined->Finish();
    return outcomes;
  };
  const auto outcomes = TrainAll({[&] { return worker(false); }, [&] { return worker(true); }});
  EXPECT_TRUE(outcomes[0].end.ok()) << outcomes[0].end.ToString();
  EXPECT_EQ(outcomes[0].applied, 30);
  EXPECT_EQ(outcomes[1].end.code(), Code::kInternal) << outcomes[1].end.ToString();
  EXPECT_NE(outcomes[1].end.message().find("it fell off the bus"), std::string::npos)
      << outcomes[1].end.ToString();
}

TEST(DeviceLoop, MisuseIsNamed) {
  struct Row {
    const char* expected;
    void (*body)(Gpu&, TrainingStep&);
  };
  const Row rows[] = {
      {"of which some came before",
       [](Gpu& gpu, TrainingStep& step) {
         const auto part = gpu.gradient.as<const float>().subspan(0, 10);
         step.AddPart(step.micro_batches()[0], 3, part, *gpu.stream);
         step.AddPart(step.micro_batches()[0], 12, part, *gpu.stream);
       }},
      {"elements [30, 40) of a gradient of 33",
       [](Gpu& gpu, TrainingStep& step) {
         const auto part = gpu.gradient.as<const float>().subspan(0, 10);
         step.AddPart(step.micro_batches()[0], 30, part, *gpu.stream);
       }},
      {"does not lie in the memory of",
       [](Gpu& gpu, TrainingStep& step) {
         const DeviceSpan<const float> host(gpu.values.data(), gpu.values.size());
         step.Add(step.micro_batches()[0], host, {1, 1}, *gpu.stream);
       }},
      {"add device memory",
       [](Gpu& gpu, TrainingStep& step) {
         step.Add(step.micro_batches()[0], gpu.values, {1, 1});
       }},
      {"0 of the 33 elements",
       [](Gpu&, TrainingStep& step) {
         step.Add(step.micro_batches()[0], {1, 1});
       }},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.expected);
    LocalCluster cluster;
    Gpu gpu;
    TrainingState state;
    Result<Worker> joined = Worker::Join(gpu.Register(cluster.Options(5, 1, 1), state), state);
    ASSERT_TRUE(joined.ok()) << joined.status().ToString();
    TrainingStep* step = joined->BeginStep();
    ASSERT_NE(step, nullptr);
    row.body(gpu, *step);
    EXPECT_NE(joined->status().message().find(row.expected), std::string::npos)
        << joined->status().message();
    EXPECT_EQ(joined->Finish(), joined->status());
  }
}

}  // namespace
}  // namespace muster
