// The smallest real elastic training program: a character-level language model, trained on the
// licence texts of a Debian system by any number of workers, which may die and come back.
//
//   muster run --standalone -n 4 -- char_lm --min-workers 2 --max-workers 4
//
// With --device cuda each worker computes on a GPU: cuda_trainer.cc then takes the place of
// HostTrainer, and the loop stays the same.
//
// What makes it elastic is marked (1) to (5); all else is what a program without Muster would hold.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "protocol/prng.h"
#include "worker/client/worker.h"
#include "worker/collective/gpu_backend.h"
#include "worker/examples/char_lm_model.h"
#include "worker/examples/text_corpus.h"
#include "worker/examples/trainer.h"

namespace char_lm {
namespace {

using muster::Cut;
using muster::Device;
using muster::DType;
using muster::Fill;
using muster::MicroBatch;
using muster::Outcome;
using muster::Result;
using muster::ShardedTensor;
using muster::Status;
using muster::TrainingState;
using muster::TrainingStep;
using muster::Worker;
using muster::WorkerOptions;

struct Flags {
  std::int64_t steps = 400;
  std::int32_t min_workers = 1;
  std::int32_t max_workers = 4;
  std::uint64_t seed = 1;
  std::int64_t batch = 256;
  std::int32_t micro_batches = 16;
  int context = 16;
  int embedding = 16;
  int hidden = 128;
  float learning_rate = 2e-3F;
  bool sharded = false;
  std::string device = "cpu";
  int gpu = 0;
  std::string backend;
  std::string checkpoint_dir;
  std::int64_t checkpoint_every = 0;
  std::int32_t checkpoint_keep = 3;
  std::int64_t checkpoint_keep_every = 0;
  std::int64_t failure_timeout_ms = muster::kDefaultFailureTimeout.millis();
  std::int64_t report_every = 10;
  std::vector<std::string> text;
};

// The optimizer's state is either whole on every worker, or cut over them, each updating its part.
// (1) Registering a tensor is all it takes to have it saved, restored and moved.
class HostTrainer final : public Trainer {
 public:
  HostTrainer(const TrainerOptions& options, const TextCorpus& corpus, TrainingState& state)
      : corpus_(corpus), model_(options.shape), adam_(options.adam), sharded_(options.sharded) {
    weights_.resize(static_cast<std::size_t>(model_.parameter_count()));
    gradient_.resize(weights_.size());
    model_.Initialize(options.seed, weights_);
    const muster::Shape shape = {std::ssize(weights_)};
    if (sharded_) {
      master_ = state.AddSharded("model", DType::kFloat32, shape, Cut::Even(0),
                                 std::as_bytes(std::span(weights_)));
      m_ = state.AddSharded("adam.m", DType::kFloat32, shape, Cut::Even(0), Fill(0));
      v_ = state.AddSharded("adam.v", DType::kFloat32, shape, Cut::Even(0), Fill(0));
      // The forward pass needs all weights: gathered from their owners before each step.
      state.AddDerived("model.full", master_, std::span(weights_));
    } else {
      whole_m_.resize(weights_.size());
      whole_v_.resize(weights_.size());
      state.AddReplicated("model", weights_);
      state.AddReplicated("adam.m", whole_m_);
      state.AddReplicated("adam.v", whole_v_);
    }
  }

  Status Add(TrainingStep& step, const MicroBatch& batch) override {
    std::ranges::fill(gradient_, 0.F);
    double loss = 0;
    for (const std::int64_t sample : batch.samples()) {
      loss +=
          model_.AddGradient(weights_, corpus_.Window(sample, model_.shape().context), gradient_);
    }
    const auto count = static_cast<double>(batch.samples().size());
    step.Add(batch, gradient_, {.loss = loss, .weight = count});
    return {};
  }

  void Apply(TrainingStep& step) override {
    // The mean gradient is the same on every worker, and so is its norm.
    const float scale = ClippingScale(step.gradient_norm());
    const std::int64_t number = step.number().value();
    if (!sharded_) {
      adam_.Apply(number, scale, step.gradient(), weights_, whole_m_, whole_v_);
      return;
    }
    const muster::Range mine = master_.box().ranges.at(0);
    const std::span<float> gradient = step.gradient().subspan(
        static_cast<std::size_t>(mine.lo), static_cast<std::size_t>(mine.size()));
    adam_.Apply(number, scale, gradient, master_.data<float>(), m_.data<float>(), v_.data<float>());
  }

  Result<std::vector<float>> Weights() override { return weights_; }

 private:
  const TextCorpus& corpus_;
  CharModel model_;
  Adam adam_;
  bool sharded_;
  std::vector<float> weights_;
  std::vector<float> gradient_;
  std::vector<float> whole_m_;
  std::vector<float> whole_v_;
  ShardedTensor master_;
  ShardedTensor m_;
  ShardedTensor v_;
};

// A number that two workers share only if their weights are equal bit for bit.
std::string DigestOf(std::span<const float> weights) {
  std::uint64_t digest = 0;
  for (const float w : weights) digest = muster::Mix64(digest ^ std::bit_cast<std::uint32_t>(w));
  return muster::ToHex(digest);
}

int Fail(const Status& status) {
  std::fprintf(stderr, "char_lm: %s\n", status.message().c_str());
  return 1;
}

// (2) Who we are comes from the launcher, through the environment; what the job is, from here.
WorkerOptions OptionsOf(const Flags& flags, const TextCorpus& corpus, const ModelShape& shape) {
  WorkerOptions options = WorkerOptions::FromEnvironment();
  options.min_workers = flags.min_workers;
  options.max_workers = flags.max_workers;
  options.steps = flags.steps;
  options.seed = flags.seed;
  options.samples = corpus.samples(flags.context);
  options.global_batch = flags.batch;
  options.micro_batches = flags.micro_batches;
  options.gradient_elements = ModelLayout(shape).parameter_count;
  options.failure_timeout = muster::Duration::Millis(flags.failure_timeout_ms);
  if (!flags.checkpoint_dir.empty()) {
    options.checkpoint_directory = std::filesystem::absolute(flags.checkpoint_dir).string();
  }
  options.checkpoint_every = flags.checkpoint_every;
  options.checkpoint_keep = flags.checkpoint_keep;
  options.checkpoint_keep_every = flags.checkpoint_keep_every;
  if (!flags.backend.empty()) options.backend = flags.backend;
  options.leave_on_sigterm = true;
  return options;
}

// The GPU to train on; null: the CPU.
Result<std::shared_ptr<Device>> DeviceOf(const Flags& flags) {
  if (flags.device == "cpu") return std::shared_ptr<Device>();
  Result<std::shared_ptr<Device>> device = muster::OpenDevice(flags.gpu);
  if (device.ok()) return device;
  if (flags.device == "cuda") {
    return Status(device.status().code(), "--device cuda: " + device.status().message() +
                                              "; --device cpu trains without a GPU");
  }
  std::fprintf(stderr, "char_lm: trains on the CPU: %s\n", device.status().message().c_str());
  return std::shared_ptr<Device>();
}

Result<std::unique_ptr<Trainer>> TrainerOf(const Flags& flags, const ModelShape& shape,
                                           std::shared_ptr<Device> device, const TextCorpus& corpus,
                                           TrainingState& state) {
  TrainerOptions options;
  options.shape = shape;
  options.seed = flags.seed;
  options.adam.learning_rate = flags.learning_rate;
  options.sharded = flags.sharded;
  options.samples_at_once = std::clamp<std::int64_t>(
      flags.batch / std::max(1, flags.micro_batches) + 1, 1, corpus.samples(flags.context));
  if (device != nullptr) return MakeCudaTrainer(std::move(device), options, corpus, state);
  return std::unique_ptr<Trainer>(std::make_unique<HostTrainer>(options, corpus, state));
}

int Train(const Flags& flags) {
  Result<std::vector<std::string>> files = flags.text;
  if (flags.text.empty()) files = TextCorpus::LicenceFiles();
  if (!files.ok()) return Fail(files.status());
  const Result<TextCorpus> corpus = TextCorpus::Load(*files);
  if (!corpus.ok()) return Fail(corpus.status());
  if (corpus->samples(flags.context) == 0) {
    return Fail(muster::InvalidArgument("the text has " + std::to_string(corpus->size()) +
                                        " characters, which --context leaves no sample of"));
  }

  const ModelShape shape{.vocabulary = corpus->vocabulary(),
                         .context = flags.context,
                         .embedding = flags.embedding,
                         .hidden = flags.hidden};
  const Result<std::shared_ptr<Device>> device = DeviceOf(flags);
  if (!device.ok()) return Fail(device.status());
  WorkerOptions options = OptionsOf(flags, *corpus, shape);
  options.device = *device;
  TrainingState state;
  const Result<std::unique_ptr<Trainer>> trainer = TrainerOf(flags, shape, *device, *corpus, state);
  if (!trainer.ok()) return Fail(trainer.status());
  Result<Worker> worker = Worker::Join(options, state);  // (3)
  if (!worker.ok()) return Fail(worker.status());

  double loss = 0;
  while (TrainingStep* step = worker->BeginStep()) {  // (4) a failure is a step that comes again
    for (const MicroBatch& batch : step->micro_batches()) {
      const Status added = (*trainer)->Add(*step, batch);
      if (!added.ok()) return Fail(added);
    }
    if (!step->Reduce()) continue;
    const Outcome outcome = step->Commit();
    if (outcome == Outcome::kApply) (*trainer)->Apply(*step);
    if (outcome == Outcome::kVoid) continue;

    loss = step->loss();
    const std::int64_t number = step->number().value();
    if (worker->rank().value() == 0 && number % flags.report_every == 0) {
      std::printf("step %lld of %lld, loss %.4f, %d workers\n", static_cast<long long>(number),
                  static_cast<long long>(flags.steps), loss, worker->world_size());
      std::fflush(stdout);
    }
  }
  const Status end = worker->Finish();  // (5) says why it ended
  if (!end.ok()) return Fail(end);
  if (worker->committed().value() == 0) {
    std::printf("done: the job ended without a step of this worker\n");
    return 0;
  }
  const Result<std::vector<float>> weights = (*trainer)->Weights();
  if (!weights.ok()) return Fail(weights.status());
  std::printf("done at step %lld, loss %.4f, weights %s\n",
              static_cast<long long>(worker->committed().value()), loss,
              DigestOf(*weights).c_str());
  return 0;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app(
      "Trains a small character-level language model on several workers, which may die and come "
      "back.\nStart it with `muster run`; every worker of a job needs the same flags.");
  app.option_defaults()->always_capture_default();
  app.add_option("--steps", flags.steps, "Updates until the job ends")->check(CLI::PositiveNumber);
  app.add_option("--min-workers", flags.min_workers, "Training waits while there are fewer");
  app.add_option("--max-workers", flags.max_workers, "More are kept as spares");
  app.add_option("--seed", flags.seed, "Of the initial weights and the order of the samples");
  app.add_option("--batch", flags.batch, "Samples of one update, over all workers");
  app.add_option("--micro-batches", flags.micro_batches, "Parts of a batch; >= max-workers");
  app.add_option("--context", flags.context, "Characters that a prediction is made from")
      ->check(CLI::Range(1, 4096));
  app.add_option("--embedding", flags.embedding, "Values per character")
      ->check(CLI::Range(1, 4096));
  app.add_option("--hidden", flags.hidden, "Units of each of the two hidden layers")
      ->check(CLI::Range(1, 65536));
  app.add_option("--learning-rate", flags.learning_rate, "Of Adam")->check(CLI::PositiveNumber);
  std::string optimizer = "replicated";
  app.add_option("--optimizer", optimizer, "Its state: whole on every worker, or cut over them")
      ->check(CLI::IsMember({"replicated", "sharded"}));
  app.add_option("--device", flags.device, "What computes; auto: a GPU if there is one")
      ->check(CLI::IsMember({"cpu", "cuda", "auto"}));
  app.add_option("--gpu", flags.gpu, "The number of its GPU among those that a worker sees")
      ->envname("LOCAL_RANK")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--backend", flags.backend,
                 "What carries gradients between GPUs: auto, nccl or tcp; MUSTER_BACKEND otherwise")
      ->check(CLI::IsMember({"auto", "nccl", "tcp"}));
  app.add_option("--checkpoint-dir", flags.checkpoint_dir, "Needed by --optimizer sharded");
  app.add_option("--checkpoint-every", flags.checkpoint_every, "Steps; 0: only the needed ones");
  app.add_option("--checkpoint-keep", flags.checkpoint_keep, "The newest ones, that stay")
      ->check(CLI::PositiveNumber);
  app.add_option("--checkpoint-keep-every", flags.checkpoint_keep_every,
                 "Those of steps that are multiples of this stay too; 0: none");
  app.add_option("--failure-timeout", flags.failure_timeout_ms,
                 "How long a worker may be silent before it is taken for dead, as 500ms or 2s")
      ->transform(CLI::AsNumberWithUnit(std::map<std::string, std::int64_t>{{"ms", 1}, {"s", 1000}},
                                        CLI::AsNumberWithUnit::UNIT_REQUIRED))
      ->default_str(std::to_string(flags.failure_timeout_ms) + "ms");
  app.add_option("--report-every", flags.report_every, "Steps between two lines of progress")
      ->check(CLI::PositiveNumber);
  app.add_option("--text", flags.text, "Files to train on instead of the licence texts");
  CLI11_PARSE(app, argc, argv);
  flags.sharded = optimizer == "sharded";
  return Train(flags);
}

}  // namespace
}  // namespace char_lm

int main(int argc, char** argv) { return char_lm::Main(argc, argv); }
