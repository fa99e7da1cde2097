// The model of char_lm_model.h on a GPU: weights, gradient and optimizer state stay in its memory.
// By plain kernels (char_lm_kernels.cu), in the order of the sums on the CPU; tanh, exp and log may
// differ from the CPU's in the last bits, all else does not.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "protocol/status.h"
#include "worker/collective/device.h"
#include "worker/examples/char_lm_model.h"
#include "worker/examples/text_corpus.h"

namespace char_lm {

// Threads: confined to one.
class CudaModel {
 public:
  // Some of the gradient: the elements that begin at `first`. They are there for what is put on the
  // model's stream from now on, until Gradient() is called again.
  using Ready = std::function<void(std::int64_t first, muster::DeviceSpan<const float> part)>;

  // For up to `samples` samples at a time. kResourceExhausted when the device has no memory for it.
  [[nodiscard]] static muster::Result<std::unique_ptr<CudaModel>> Make(
      std::shared_ptr<muster::Device> device, const ModelShape& shape, std::int64_t samples);

  [[nodiscard]] const ModelLayout& layout() const { return layout_; }
  // On which all work of the model is put.
  [[nodiscard]] muster::DeviceStream& stream() { return *stream_; }

  // Puts on the stream: the gradient of the sum of the losses of these samples, whose windows lie
  // one behind another. `ready` is called for each part that has been put there, the last elements
  // first, together all of them. Returns that sum of losses. Blocks until the forward pass has run,
  // not for the backward pass.
  // REQUIRES: `weights` are those of this shape, and whole windows of at most `samples`
  // samples, perhaps of none.
  [[nodiscard]] muster::Result<double> Gradient(muster::DeviceSpan<const float> weights,
                                                std::span<const Symbol> windows,
                                                const Ready& ready);

  // Puts one update on the stream: Adam::Apply on the device, with the same bits.
  // REQUIRES: all spans have the same size.
  void Apply(const Adam& adam, std::int64_t step, float scale,
             muster::DeviceSpan<const float> gradient, muster::DeviceSpan<float> weights,
             muster::DeviceSpan<float> m, muster::DeviceSpan<float> v);

 private:
  struct Kernels {
    muster::Kernel embed;
    muster::Kernel dense;
    muster::Kernel softmax_loss;
    muster::Kernel input_gradient;
    muster::Kernel layer_gradient;
    muster::Kernel embedding_gradient;
    muster::Kernel adam;
  };

  CudaModel(const ModelShape& shape, std::int64_t samples)
      : shape_(shape), samples_(samples), layout_(shape) {}
  [[nodiscard]] muster::Status Prepare(muster::Device& device);
  // What precedes the losses; they are on their way to losses_host_ then.
  void PutForward(const float* weights, std::int64_t samples);
  void PutBackward(const float* weights, std::int64_t samples, const Ready& ready);

  ModelShape shape_;
  std::int64_t samples_;
  ModelLayout layout_;
  Kernels kernels_;

  muster::DeviceMemory windows_;
  muster::DeviceMemory windows_host_;
  muster::DeviceMemory losses_;
  muster::DeviceMemory losses_host_;
  // [samples][outputs]: the input of each layer, then the logits; and the derivatives by them. The
  // logits become those by themselves.
  std::array<muster::DeviceMemory, 4> activations_;
  std::array<muster::DeviceMemory, 3> by_activations_;
  muster::DeviceMemory gradient_;

  // Last, so that they are gone before the memory that they work on.
  std::unique_ptr<muster::DeviceStream> stream_;
  // Takes the losses to the host while the backward pass goes on.
  std::unique_ptr<muster::DeviceStream> loss_stream_;
};

}  // namespace char_lm
