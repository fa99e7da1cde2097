#include "worker/examples/char_lm_cuda.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "protocol/check.h"

extern "C" {
extern const unsigned char char_lm_kernels[];
extern const std::size_t char_lm_kernels_size;
}

namespace char_lm {
namespace {

using muster::Device;
using muster::DeviceMemory;
using muster::DeviceSpan;
using muster::DeviceStream;
using muster::Kernel;
using muster::Result;
using muster::Status;

// A forward pass takes microseconds to milliseconds; a device that needs so long hangs.
constexpr muster::Duration kPatience = muster::Duration::Seconds(60);

// Runs `kernel` for so many results, one a thread at a time. Each argument has 8 bytes.
template <class... Arguments>
void Launch(DeviceStream& stream, Kernel kernel, std::int64_t results, Arguments... arguments) {
  static_assert(((sizeof(Arguments) == 8) && ...));
  if (results == 0) return;
  constexpr std::int64_t kThreads = 128;
  constexpr std::int64_t kMaxBlocks = 4096;  // the threads loop
  const std::int64_t blocks = std::min((results + kThreads - 1) / kThreads, kMaxBlocks);
  const std::array<void*, sizeof...(arguments)> pointers = {&arguments...};
  stream.Launch(kernel, static_cast<std::uint32_t>(blocks), kThreads, pointers);
}

std::int64_t Signed(std::size_t size) { return static_cast<std::int64_t>(size); }

float* Floats(const DeviceMemory& memory) { return memory.as<float>().data(); }

}  // namespace

Result<std::unique_ptr<CudaModel>> CudaModel::Make(std::shared_ptr<Device> device,
                                                   const ModelShape& shape, std::int64_t samples) {
  MUSTER_CHECK(samples > 0, "room for at least one sample");
  std::unique_ptr<CudaModel> model(new CudaModel(shape, samples));
  MUSTER_RETURN_IF_ERROR(model->Prepare(*device));
  return model;
}

Status CudaModel::Prepare(Device& device) {
  const std::pair<Kernel*, const char*> kernels[] = {
      {&kernels_.embed, "char_lm_embed"},
      {&kernels_.dense, "char_lm_dense"},
      {&kernels_.softmax_loss, "char_lm_softmax_loss"},
      {&kernels_.input_gradient, "char_lm_input_gradient"},
      {&kernels_.layer_gradient, "char_lm_layer_gradient"},
      {&kernels_.embedding_gradient, "char_lm_embedding_gradient"},
      {&kernels_.adam, "char_lm_adam"}};
  for (const auto& [kernel, name] : kernels) {
    const Result<Kernel> found = device.Find({char_lm_kernels, char_lm_kernels_size}, name);
    MUSTER_RETURN_IF_ERROR(found.status());
    *kernel = *found;
  }
  const auto samples = static_cast<std::size_t>(samples_);
  const std::size_t window_bytes = samples * static_cast<std::size_t>(shape_.context + 1);
  const std::pair<DeviceMemory*, std::size_t> pinned[] = {
      {&windows_host_, window_bytes}, {&losses_host_, samples * sizeof(double)}};
  for (const auto& [memory, bytes] : pinned) {
    Result<DeviceMemory> got = device.AllocatePinned(bytes);
    MUSTER_RETURN_IF_ERROR(got.status());
    *memory = std::move(*got);
  }
  std::vector<std::pair<DeviceMemory*, std::size_t>> wanted = {
      {&windows_, window_bytes},
      {&losses_, samples * sizeof(double)},
      {&activations_[3], samples * layout_.layers[2].outputs * sizeof(float)},
      {&gradient_, static_cast<std::size_t>(layout_.parameter_count) * sizeof(float)}};
  for (std::size_t l = 0; l < layout_.layers.size(); ++l) {
    const std::size_t bytes = samples * layout_.layers[l].inputs * sizeof(float);
    wanted.emplace_back(&activations_[l], bytes);
    wanted.emplace_back(&by_activations_[l], bytes);
  }
  for (const auto& [memory, bytes] : wanted) {
    Result<DeviceMemory> got = device.Allocate(bytes);
    MUSTER_RETURN_IF_ERROR(got.status());
    *memory = std::move(*got);
  }
  for (std::unique_ptr<DeviceStream>* stream : {&stream_, &loss_stream_}) {
    Result<std::unique_ptr<DeviceStream>> made = device.MakeStream();
    MUSTER_RETURN_IF_ERROR(made.status());
    *stream = std::move(*made);
  }
  return {};
}

Result<double> CudaModel::Gradient(DeviceSpan<const float> weights, std::span<const Symbol> windows,
                                   const Ready& ready) {
  const auto window = static_cast<std::size_t>(shape_.context + 1);
  const std::int64_t samples = Signed(windows.size() / window);
  MUSTER_CHECK(Signed(weights.size()) == layout_.parameter_count, "weights of another model");
  MUSTER_CHECK(windows.size() % window == 0 && samples <= samples_,
               "whole windows, and no more than there is room for");
  // The copy before has run: its losses were waited for.
  std::ranges::copy(std::as_bytes(windows), windows_host_.data());
  stream_->Copy(windows_.data(), windows_host_.data(), windows.size_bytes());
  PutForward(weights.data(), samples);
  loss_stream_->After(*stream_->Record());
  std::vector<double> losses(static_cast<std::size_t>(samples));
  loss_stream_->Copy(losses_host_.data(), losses_.data(), losses.size() * sizeof(double));
  PutBackward(weights.data(), samples, ready);
  MUSTER_RETURN_IF_ERROR(stream_->status());
  MUSTER_RETURN_IF_ERROR(loss_stream_->Wait(kPatience, nullptr));
  std::ranges::copy(losses_host_.host().first(losses.size() * sizeof(double)),
                    std::as_writable_bytes(std::span(losses)).begin());
  double sum = 0;
  for (const double loss : losses) sum += loss;
  return sum;
}

void CudaModel::PutForward(const float* weights, std::int64_t samples) {
  const std::int64_t context = shape_.context;
  const std::int64_t embedding = shape_.embedding;
  Launch(*stream_, kernels_.embed, samples * context * embedding, weights, windows_.data(),
         Floats(activations_[0]), samples, context, embedding);
  for (std::size_t l = 0; l < layout_.layers.size(); ++l) {
    const ModelLayout::Dense& layer = layout_.layers[l];
    const std::int64_t with_tanh = l + 1 < layout_.layers.size() ? 1 : 0;
    Launch(*stream_, kernels_.dense, samples * Signed(layer.outputs), weights + layer.offset,
           Floats(activations_[l]), Floats(activations_[l + 1]), samples, Signed(layer.inputs),
           Signed(layer.outputs), with_tanh);
  }
  Launch(*stream_, kernels_.softmax_loss, samples, Floats(activations_[3]), windows_.data(),
         losses_.as<double>().data(), samples, context, std::int64_t{shape_.vocabulary});
}

void CudaModel::PutBackward(const float* weights, std::int64_t samples, const Ready& ready) {
  const DeviceSpan<float> gradient = gradient_.as<float>();
  for (std::size_t l = layout_.layers.size(); l-- > 0;) {
    const ModelLayout::Dense& layer = layout_.layers[l];
    const float* const by_out =
        Floats(l + 1 < by_activations_.size() ? by_activations_[l + 1] : activations_.back());
    const DeviceSpan<float> part = gradient.subspan(layer.offset, layer.size());
    Launch(*stream_, kernels_.layer_gradient, Signed(layer.size()), Floats(activations_[l]), by_out,
           part.data(), samples, Signed(layer.inputs), Signed(layer.outputs));
    ready(Signed(layer.offset), part);
    const std::int64_t with_tanh = l > 0 ? 1 : 0;
    Launch(*stream_, kernels_.input_gradient, samples * Signed(layer.inputs),
           weights + layer.offset, Floats(activations_[l]), by_out, Floats(by_activations_[l]),
           samples, Signed(layer.inputs), Signed(layer.outputs), with_tanh);
  }
  const DeviceSpan<float> table = gradient.subspan(0, layout_.layers[0].offset);
  Launch(*stream_, kernels_.embedding_gradient, Signed(table.size()), windows_.data(),
         Floats(by_activations_[0]), table.data(), samples, std::int64_t{shape_.context},
         std::int64_t{shape_.embedding}, std::int64_t{shape_.vocabulary});
  ready(0, table);
}

void CudaModel::Apply(const Adam& adam, std::int64_t step, float scale,
                      DeviceSpan<const float> gradient, DeviceSpan<float> weights,
                      DeviceSpan<float> m, DeviceSpan<float> v) {
  MUSTER_CHECK(
      gradient.size() == weights.size() && m.size() == weights.size() && v.size() == weights.size(),
      "the optimizer's arrays have one size");
  if (weights.empty()) return;
  const AdamNumbers numbers = adam.Numbers(step);
  const auto wide = [](float number) { return static_cast<double>(number); };
  Launch(*stream_, kernels_.adam, Signed(weights.size()), weights.data(), m.data(), v.data(),
         gradient.data(), Signed(weights.size()), wide(scale), wide(numbers.learning_rate),
         wide(numbers.beta1), wide(numbers.beta2), wide(numbers.epsilon), wide(numbers.correction1),
         wide(numbers.correction2));
}

}  // namespace char_lm
