// char_lm on a GPU. Compare HostTrainer in char_lm.cc: the tensors lie in another memory, and the
// gradient goes to Muster in parts while the backward pass is still at work; nothing else differs.
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <span>
#include <utility>

#include "worker/examples/char_lm_cuda.h"
#include "worker/examples/trainer.h"

namespace char_lm {
namespace {

using muster::Cut;
using muster::Device;
using muster::DeviceMemory;
using muster::DeviceSpan;
using muster::DType;
using muster::Fill;
using muster::MemoryKind;
using muster::MicroBatch;
using muster::Result;
using muster::ShardedTensor;
using muster::Status;
using muster::TrainingState;
using muster::TrainingStep;

constexpr muster::Duration kPatience = muster::Duration::Seconds(60);

class CudaTrainer final : public Trainer {
 public:
  CudaTrainer(std::unique_ptr<CudaModel> model, const TrainerOptions& options,
              const TextCorpus& corpus)
      : options_(options), corpus_(corpus), model_(std::move(model)) {}

  // Brings the initial values to the device, and registers what lies there.
  Status Prepare(const std::shared_ptr<Device>& device, TrainingState& state) {
    const CharModel model(options_.shape);
    initial_.resize(static_cast<std::size_t>(model.parameter_count()));
    model.Initialize(options_.seed, initial_);
    const std::size_t bytes = initial_.size() * sizeof(float);
    for (DeviceMemory* memory : {&weights_, &whole_m_, &whole_v_}) {
      if (options_.sharded && memory != &weights_) continue;
      Result<DeviceMemory> got = device->Allocate(bytes);
      MUSTER_RETURN_IF_ERROR(got.status());
      *memory = std::move(*got);
      model_->stream().Fill(memory->data(), 0, bytes);
    }
    model_->stream().Copy(weights_.data(), initial_.data(), bytes);
    MUSTER_RETURN_IF_ERROR(model_->stream().Wait(kPatience, nullptr));
    state.UseDevice(device, model_->stream());
    Register(state);
    return {};
  }

  Status Add(TrainingStep& step, const MicroBatch& batch) override {
    windows_.clear();
    for (const std::int64_t sample : batch.samples()) {
      std::ranges::copy(corpus_.Window(sample, options_.shape.context),
                        std::back_inserter(windows_));
    }
    const auto add = [&](std::int64_t first, DeviceSpan<const float> part) {
      step.AddPart(batch, first, part, model_->stream());
    };
    const Result<double> loss = model_->Gradient(weights_.as<float>(), windows_, add);
    MUSTER_RETURN_IF_ERROR(loss.status());
    step.Add(batch, {.loss = *loss, .weight = static_cast<double>(batch.samples().size())});
    return {};
  }

  void Apply(TrainingStep& step) override {
    const float scale = ClippingScale(step.gradient_norm());
    const std::int64_t number = step.number().value();
    const DeviceSpan<float> gradient = step.device_gradient();
    if (!options_.sharded) {
      model_->Apply(options_.adam, number, scale, gradient, weights_.as<float>(),
                    whole_m_.as<float>(), whole_v_.as<float>());
      return;
    }
    const muster::Range mine = master_.box().ranges.at(0);
    model_->Apply(
        options_.adam, number, scale,
        gradient.subspan(static_cast<std::size_t>(mine.lo), static_cast<std::size_t>(mine.size())),
        master_.device_data<float>(), m_.device_data<float>(), v_.device_data<float>());
  }

  Result<std::vector<float>> Weights() override {
    std::vector<float> weights(initial_.size());
    model_->stream().Copy(weights.data(), weights_.data(), weights_.size());
    MUSTER_RETURN_IF_ERROR(model_->stream().Wait(kPatience, nullptr));
    return weights;
  }

 private:
  void Register(TrainingState& state) {
    if (!options_.sharded) {
      state.AddReplicated("model", weights_.as<float>());
      state.AddReplicated("adam.m", whole_m_.as<float>());
      state.AddReplicated("adam.v", whole_v_.as<float>());
      return;
    }
    const muster::Shape shape = {std::ssize(initial_)};
    constexpr MemoryKind kHere = MemoryKind::kDevice;
    master_ = state.AddSharded("model", DType::kFloat32, shape, Cut::Even(0),
                               std::as_bytes(std::span(initial_)), kHere);
    m_ = state.AddSharded("adam.m", DType::kFloat32, shape, Cut::Even(0), Fill(0), kHere);
    v_ = state.AddSharded("adam.v", DType::kFloat32, shape, Cut::Even(0), Fill(0), kHere);
    state.AddDerived("model.full", master_, weights_.as<float>());
  }

  TrainerOptions options_;
  const TextCorpus& corpus_;
  std::vector<float> initial_;
  DeviceMemory weights_;
  DeviceMemory whole_m_;
  DeviceMemory whole_v_;
  ShardedTensor master_;
  ShardedTensor m_;
  ShardedTensor v_;
  std::vector<Symbol> windows_;  // of the micro-batch at hand
  std::unique_ptr<CudaModel> model_;
};

}  // namespace

Result<std::unique_ptr<Trainer>> MakeCudaTrainer(std::shared_ptr<Device> device,
                                                 const TrainerOptions& options,
                                                 const TextCorpus& corpus, TrainingState& state) {
  Result<std::unique_ptr<CudaModel>> model =
      CudaModel::Make(device, options.shape, options.samples_at_once);
  MUSTER_RETURN_IF_ERROR(model.status());
  auto trainer = std::make_unique<CudaTrainer>(std::move(*model), options, corpus);
  MUSTER_RETURN_IF_ERROR(trainer->Prepare(device, state));
  return std::unique_ptr<Trainer>(std::move(trainer));
}

}  // namespace char_lm
