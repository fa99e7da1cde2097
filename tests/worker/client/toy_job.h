// A toy training job in a few lines, as a user would write it, and what its records say.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/host_device.h"
#include "tests/worker/client/local_cluster.h"

namespace muster {

// Something that happens once.
class Event {
 public:
  void Set() {
    const std::lock_guard lock(mutex_);
    set_ = true;
    changed_.notify_all();
  }
  [[nodiscard]] bool is_set() const {
    const std::lock_guard lock(mutex_);
    return set_;
  }
  // True once it has happened; false when it did not within `limit`.
  bool Await(std::chrono::milliseconds limit = std::chrono::seconds(60)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [this] { return set_; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
};

inline constexpr auto kElements = static_cast<std::size_t>(LocalCluster::kElements);

// What a worker does besides training: called at the start of each step it gets; false ends its
// loop.
using EachStep = std::function<bool(Worker&, TrainingStep&)>;

struct Outcomes {
  Status end;
  std::vector<float> weights;
  int applied = 0;
  int skipped = 0;
  std::int32_t last_world_size = 0;
};

// How the toy's weights are held.
struct ToyState {
  // Implicit, for most tests need no device.
  ToyState(bool is_sharded = false, bool is_on_device = false)
      : sharded(is_sharded), on_device(is_on_device) {}
  bool sharded;
  bool on_device;
};

// A toy model: each sample pulls the weights towards values of its own.
struct Toy {
  std::vector<float> weights = std::vector<float>(kElements, 1.F);
  std::vector<float> gradient = std::vector<float>(kElements);
  ShardedTensor part;  // of the weights, when sharded

  // Where the weights are on a device: nothing but reading them is waited for.
  std::shared_ptr<testing::HostDevice> device;
  std::unique_ptr<DeviceStream> stream;
  DeviceMemory on_device;
  std::deque<std::vector<float>> uploads;  // are read when the work runs

  Toy() = default;
  // What was put on the stream last may not have run yet.
  ~Toy() {
    if (stream == nullptr) return;
    EXPECT_EQ(stream->Wait(Duration::Seconds(60), nullptr), Status());
  }
  Toy(const Toy&) = delete;
  Toy& operator=(const Toy&) = delete;

  void Register(TrainingState& state, ToyState kind) {
    if (kind.on_device) {
      RegisterOnDevice(state, kind.sharded);
    } else if (!kind.sharded) {
      state.AddReplicated("weights", weights);
    } else {
      part = state.AddSharded("weights", DType::kFloat32, {std::ssize(weights)}, Cut::Even(0),
                              std::as_bytes(std::span(weights)));
      state.AddDerived("weights.full", part, std::span<float>(weights));
    }
  }
  void RegisterOnDevice(TrainingState& state, bool sharded) {
    testing::HostDevice::Options options;
    options.guarded = true;
    device = testing::HostDevice::Make(options);
    stream = device->MakeStream().value();
    on_device = device->Allocate(kElements * sizeof(float)).value();
    state.UseDevice(device, *stream);
    if (sharded) {
      part = state.AddSharded("weights", DType::kFloat32, {std::ssize(weights)}, Cut::Even(0),
                              std::as_bytes(std::span(weights)), MemoryKind::kDevice);
      state.AddDerived("weights.full", part, on_device.as<float>());
    } else {
      state.AddReplicated("weights", on_device.as<float>());
      Upload(on_device.as<float>(), weights);
    }
  }
  void Upload(DeviceSpan<float> to, std::vector<float> values) {
    ASSERT_EQ(to.size(), values.size());
    stream->Copy(to.data(), uploads.emplace_back(std::move(values)).data(), to.size_bytes());
  }
  // Brings the weights to where they are computed with.
  void Fetch() {
    if (device == nullptr) return;
    stream->Copy(weights.data(), on_device.data(), on_device.size());
    EXPECT_EQ(stream->Wait(Duration::Seconds(60), nullptr), Status());
  }
  double Compute(const MicroBatch& batch) {
    std::ranges::fill(gradient, 0.F);
    double loss = 0;
    for (const std::int64_t sample : batch.samples()) {
      for (std::size_t i = 0; i < kElements; ++i) {
        const float target = std::sin(static_cast<float>(sample * 7 + static_cast<int>(i)));
        const float d = weights[i] - target;
        gradient[i] += d;
        loss += static_cast<double>(d * d) / 2;
      }
    }
    return loss;
  }
  void Apply(TrainingStep& step) {
    if (device != nullptr) return ApplyOnDevice(step);
    if (part.name().empty()) {
      for (std::size_t i = 0; i < kElements; ++i) weights[i] -= 0.1F * step.gradient()[i];
      return;
    }
    const Range mine = part.box().ranges.at(0);
    const std::span<float> held = part.data<float>();
    for (std::size_t i = 0; i < held.size(); ++i) {
      held[i] -= 0.1F * step.gradient()[static_cast<std::size_t>(mine.lo) + i];
    }
  }
  void ApplyOnDevice(TrainingStep& step) {
    const bool sharded = !part.name().empty();
    const auto lo = sharded ? static_cast<std::size_t>(part.box().ranges.at(0).lo) : 0;
    const DeviceSpan<float> mine = sharded ? part.device_data<float>() : on_device.as<float>();
    std::vector<float> updated(mine.size());
    for (std::size_t i = 0; i < updated.size(); ++i) {
      updated[i] = weights[lo + i] - 0.1F * step.gradient()[lo + i];
    }
    Upload(mine, std::move(updated));
  }
};

// A worker from Join to Finish. With `abandon`, a loop that `each` ended is left like a dead
// process.
inline Outcomes Train(const WorkerOptions& options, ToyState kind = {}, const EachStep& each = {},
                      bool abandon = false) {
  Outcomes outcomes;
  TrainingState state;
  Toy toy;
  toy.Register(state, kind);
  Result<Worker> worker = Worker::Join(options, state);
  if (!worker.ok()) return {.end = worker.status(), .weights = {}};
  while (TrainingStep* step = worker->BeginStep()) {
    if (each && !each(*worker, *step)) {
      if (abandon) return outcomes;
      break;
    }
    toy.Fetch();
    for (const MicroBatch& batch : step->micro_batches()) {
      const double loss = toy.Compute(batch);
      step->Add(batch, toy.gradient,
                {.loss = loss, .weight = static_cast<double>(batch.samples().size())});
    }
    if (!step->Reduce()) continue;
    const Outcome outcome = step->Commit();
    outcomes.last_world_size = worker->world_size();
    if (outcome == Outcome::kApply) {
      toy.Apply(*step);
      ++outcomes.applied;
    }
    if (outcome == Outcome::kSkip) ++outcomes.skipped;
  }
  outcomes.end = worker->Finish();
  EXPECT_EQ(worker->Finish(), outcomes.end);  // the same again
  toy.Fetch();
  outcomes.weights = toy.weights;
  return outcomes;
}

inline std::vector<Outcomes> TrainAll(const std::vector<std::function<Outcomes()>>& workers) {
  std::vector<Outcomes> outcomes(workers.size());
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    threads.emplace_back([&, i] { outcomes[i] = workers[i](); });
  }
  threads.clear();
  return outcomes;
}

// The records of a directory: for each step the positions that were consumed under the last
// generation that committed it; and the digests of the final states.
struct Records {
  std::map<std::int64_t, std::multiset<std::pair<std::int64_t, std::int64_t>>> samples;
  std::set<std::string> finals;
};

inline Records ReadRecords(const std::string& directory) {
  Records records;
  std::map<std::int64_t, std::int64_t> newest;
  const std::regex field(R"re("(generation|step|epoch)":(\d+))re");
  const std::regex range(R"(\[(\d+),(\d+)\])");
  const std::regex digest(R"re("digest":"([0-9a-f]{16})")re");
  for (const auto& file : std::filesystem::directory_iterator(directory)) {
    if (file.path().extension() != ".jsonl") continue;
    std::ifstream in(file.path());
    for (std::string line; std::getline(in, line);) {
      std::smatch match;
      EXPECT_TRUE(std::regex_search(line, match, digest)) << line;
      if (line.find("\"final\":true") != std::string::npos) {
        records.finals.insert(match[1]);
        continue;
      }
      std::map<std::string, std::int64_t> values;
      for (std::sregex_iterator it(line.begin(), line.end(), field), end; it != end; ++it) {
        values[(*it)[1]] = std::stoll((*it)[2]);
      }
      const std::int64_t step = values["step"];
      if (values["generation"] < newest[step]) continue;
      if (values["generation"] > newest[step]) records.samples[step].clear();
      newest[step] = values["generation"];
      for (std::sregex_iterator it(line.begin(), line.end(), range), end; it != end; ++it) {
        for (std::int64_t p = std::stoll((*it)[1]); p < std::stoll((*it)[2]); ++p) {
          records.samples[step].insert({values["epoch"], p});
        }
      }
    }
  }
  return records;
}

inline void ExpectExactChain(const Records& records, std::int64_t steps) {
  std::multiset<std::pair<std::int64_t, std::int64_t>> all;
  ASSERT_EQ(records.samples.size(), static_cast<std::size_t>(steps));
  for (const auto& [step, samples] : records.samples) all.insert(samples.begin(), samples.end());
  // 50 samples in batches of 12: five steps an epoch, the last one of 2.
  std::multiset<std::pair<std::int64_t, std::int64_t>> expected;
  for (std::int64_t step = 0; step < steps; ++step) {
    const std::int64_t lo = step % 5 * 12;
    for (std::int64_t p = lo; p < std::min<std::int64_t>(lo + 12, 50); ++p) {
      expected.insert({step / 5, p});
    }
  }
  EXPECT_EQ(all, expected);
}

// What any run of the toy must end with, bit for bit.
inline std::vector<float> Undisturbed(std::int64_t steps) {
  LocalCluster cluster;
  return Train(cluster.Options(steps, 1, 1)).weights;
}

}  // namespace muster
