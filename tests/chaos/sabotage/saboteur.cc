// A worker that misbehaves in the way that MUSTER_SABOTAGE names; without it, one that does not.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "protocol/prng.h"
#include "tests/chaos/sabotage/saboteurs.h"
#include "worker/client/worker.h"

namespace {

using muster::MicroBatch;
using muster::Outcome;
using muster::TrainingStep;

constexpr std::int64_t kWeights = 4096;
constexpr std::int64_t kSamples = 100'000;

std::string Variable(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

// Known names are those of the table.
bool Known(const std::string& name) {
  return name.empty() ||
         std::any_of(std::begin(muster::chaos::kSaboteurs), std::end(muster::chaos::kSaboteurs),
                     [&](const auto& saboteur) { return saboteur.name == name; });
}

class Saboteur {
 public:
  explicit Saboteur(std::string name) : name_(std::move(name)) {}

  [[nodiscard]] bool Is(const char* name) const { return name_ == name; }
  // One worker of the job, and one step of the run, for what is done once.
  [[nodiscard]] bool Now(const TrainingStep& step, std::int64_t at) const {
    return Variable("MUSTER_WORKER") == "a-0" && step.number().value() == at;
  }

  // A generation has begun, and it is not the first of this process.
  void AtReform() {
    if (Is("leak-descriptor")) (void)!open("/dev/null", O_RDONLY);
    if (Is("leak-thread")) std::thread([] { pause(); }).detach();
    if (Is("leak-memory")) {
      constexpr std::size_t kBytes = std::size_t{16} << 20U;
      leaked_.emplace_back(kBytes, 'x');
    }
    if (Is("restart-itself")) _exit(3);
    if (Is("dawdle")) poll(nullptr, 0, 12'000);
  }

  void AfterCommit(const TrainingStep& step, const std::string& checkpoints) {
    if (Is("leave-orphan") && Now(step, 20)) LeaveOrphan();
    if (Is("damage-checkpoint") && Variable("MUSTER_WORKER") == "a-0") Damage(checkpoints);
    if (step.number().value() != 30 && !Is("dead-answers")) return;
    Forge();
  }

 private:
  static void LeaveOrphan() {
    if (fork() != 0) return;
    setsid();
    if (fork() != 0) _exit(0);
    for (int descriptor = 0; descriptor < 256; ++descriptor) close(descriptor);
    while (true) pause();
  }

  // The newest of those that have a manifest.
  static void Damage(const std::string& root) {
    for (const auto& entry : std::filesystem::directory_iterator(root)) {
      const std::string path = entry.path().string() + "/r00000.safetensors";
      if (!std::filesystem::exists(entry.path() / "manifest.json")) continue;
      std::error_code ignored;
      const auto size = std::filesystem::file_size(path, ignored);
      if (!ignored && size > 100) std::filesystem::resize_file(path, size / 2, ignored);
    }
  }

  // The last line of this worker's records, once more, with something changed in it.
  void Forge() {
    if (Variable("MUSTER_WORKER") != "a-0") return;
    const std::string path =
        Variable("MUSTER_RECORD_DIR") + "/a-0-" + std::to_string(getpid()) + ".jsonl";
    std::ifstream records(path);
    std::string line;
    for (std::string next; std::getline(records, next);) line = next;
    if (Is("dead-answers")) {
      // What it called itself before it was fenced.
      const std::size_t at = line.find("\"incarnation\":\"") + 15;
      const std::string incarnation = line.substr(at, 16);
      if (first_.empty()) first_ = incarnation;
      if (incarnation == first_) return;
      line.replace(at, 16, first_);
    } else if (Is("commit-alone")) {
      Replace(&line, "\"step\":30", "\"step\":999999");
    } else if (Is("sample-twice")) {
      const std::size_t at = line.find("\"samples\":[[") + 12;
      line.replace(at, line.find(',', at) - at, "0");
    } else if (Is("two-outcomes")) {
      Replace(&line, "\"outcome\":\"apply\"", "\"outcome\":\"skip\"");
    } else if (!Is("commit-twice")) {
      return;
    }
    std::ofstream(path, std::ios::app) << line << '\n';
  }
  static void Replace(std::string* text, const std::string& from, const std::string& to) {
    if (const std::size_t at = text->find(from); at != std::string::npos) {
      text->replace(at, from.size(), to);
    }
  }

  const std::string name_;
  std::string first_;
  std::vector<std::string> leaked_;
};

float Noise(std::int64_t sample, std::int64_t i) {
  const auto mixed = muster::Mix64(static_cast<std::uint64_t>(sample * kWeights + i));
  return static_cast<float>(mixed >> 40U) / static_cast<float>(1U << 24U) - 0.5F;
}

void AddAll(TrainingStep* step, const std::vector<float>& weights, const Saboteur& saboteur) {
  std::vector<float> gradient(kWeights);
  for (const MicroBatch& batch : step->micro_batches()) {
    std::fill(gradient.begin(), gradient.end(), 0.F);
    double loss = 0;
    for (const std::int64_t sample : batch.samples()) {
      if (saboteur.Is("skip-sample") && saboteur.Now(*step, 40) &&
          sample == batch.samples().front()) {
        continue;
      }
      for (std::int64_t i = 0; i < kWeights; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const float miss = weights[at] - Noise(sample, i);
        gradient[at] += miss;
        loss += static_cast<double>(miss) * static_cast<double>(miss);
      }
    }
    step->Add(batch, gradient,
              {.loss = loss, .weight = static_cast<double>(batch.samples().size())});
  }
}

int Train(const std::string& checkpoints) {
  const std::string name = Variable("MUSTER_SABOTAGE");
  if (!Known(name)) {
    for (const auto& saboteur : muster::chaos::kSaboteurs) {
      std::fprintf(stderr, "%s\n", std::string(saboteur.name).c_str());
    }
    return 2;
  }
  Saboteur saboteur(name);
  std::vector<float> weights(kWeights, 0.F);
  muster::TrainingState state;
  state.AddReplicated("weights", weights);
  muster::ShardedTensor sum = state.AddSharded("sum", muster::DType::kFloat32, {kWeights},
                                               muster::Cut::Even(0), muster::Fill(0));
  muster::WorkerOptions options = muster::WorkerOptions::FromEnvironment();
  options.min_workers = 1;
  options.max_workers = 4;
  options.steps = 1'000'000;
  options.samples = kSamples;
  options.global_batch = 64;
  options.micro_batches = 8;
  options.checkpoint_directory = checkpoints;
  options.checkpoint_every = 100;
  options.leave_on_sigterm = !saboteur.Is("ignore-sigterm");
  if (saboteur.Is("ignore-sigterm")) signal(SIGTERM, SIG_IGN);
  muster::Result<muster::Worker> worker = muster::Worker::Join(options, state);
  if (!worker.ok()) {
    std::fprintf(stderr, "%s\n", worker.status().ToString().c_str());
    return 1;
  }
  std::int64_t generation = 0;
  while (TrainingStep* step = worker->BeginStep()) {
    const std::int64_t now = worker->generation().value();
    if (generation != 0 && now != generation) saboteur.AtReform();
    generation = now;
    AddAll(step, weights, saboteur);
    if (!step->Reduce()) continue;
    if (step->Commit() != Outcome::kApply) continue;
    constexpr float kRate = 0.01F;
    const int times = saboteur.Is("apply-twice") && saboteur.Now(*step, 40) ? 2 : 1;
    for (int i = 0; i < times; ++i) {
      for (std::size_t j = 0; j < weights.size(); ++j) weights[j] -= kRate * step->gradient()[j];
    }
    for (float& value : sum.data<float>()) value += 1.F;
    saboteur.AfterCommit(*step, checkpoints);
  }
  const muster::Status end = worker->Finish();
  if (!end.ok()) std::fprintf(stderr, "%s\n", end.ToString().c_str());
  return end.ok() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: muster-saboteur CHECKPOINT_DIRECTORY\n");
    return 2;
  }
  return Train(argv[1]);
}
