// The kernels of `char_lm --device cuda`: each thread computes results of char_lm_math.h one after
// the other. Nothing is summed in an order that could change, so the same input gives the same
// bits. Every parameter has 8 bytes, every grid one dimension.
#include "worker/examples/char_lm_math.h"

namespace {

using char_lm::DeviceSymbol;
// As int64_t, whatever that is here.
using char_lm::Index;

__device__ Index First() { return blockIdx.x * static_cast<Index>(blockDim.x) + threadIdx.x; }
__device__ Index Stride() { return gridDim.x * static_cast<Index>(blockDim.x); }

}  // namespace

extern "C" __global__ void char_lm_embed(const float* table, const DeviceSymbol* windows,
                                         float* inputs, Index samples, Index context,
                                         Index embedding) {
  const char_lm::WindowShape shape = {samples, context, embedding};
  for (Index i = First(); i < samples * context * embedding; i += Stride()) {
    inputs[i] = char_lm::Embedded(table, windows, shape, i);
  }
}

extern "C" __global__ void char_lm_dense(const float* layer, const float* in, float* out,
                                         Index samples, Index inputs, Index outputs,
                                         Index with_tanh) {
  for (Index i = First(); i < samples * outputs; i += Stride()) {
    out[i] = char_lm::DenseOutput(layer, in, inputs, outputs, with_tanh != 0, i);
  }
}

extern "C" __global__ void char_lm_softmax_loss(float* logits, const DeviceSymbol* windows,
                                                double* losses, Index samples, Index context,
                                                Index vocabulary) {
  for (Index s = First(); s < samples; s += Stride()) {
    losses[s] = char_lm::SoftmaxLoss(logits + s * vocabulary, vocabulary,
                                     windows[s * (context + 1) + context]);
  }
}

extern "C" __global__ void char_lm_input_gradient(const float* layer, const float* in,
                                                  const float* out_gradient, float* in_gradient,
                                                  Index samples, Index inputs, Index outputs,
                                                  Index with_tanh) {
  for (Index i = First(); i < samples * inputs; i += Stride()) {
    in_gradient[i] =
        char_lm::InputGradient(layer, in, out_gradient, inputs, outputs, with_tanh != 0, i);
  }
}

extern "C" __global__ void char_lm_layer_gradient(const float* in, const float* out_gradient,
                                                  float* gradient, Index samples, Index inputs,
                                                  Index outputs) {
  for (Index i = First(); i < (inputs + 1) * outputs; i += Stride()) {
    gradient[i] = char_lm::LayerGradient(in, out_gradient, samples, inputs, outputs, i);
  }
}

extern "C" __global__ void char_lm_embedding_gradient(const DeviceSymbol* windows,
                                                      const float* in_gradient, float* gradient,
                                                      Index samples, Index context, Index embedding,
                                                      Index vocabulary) {
  const char_lm::WindowShape shape = {samples, context, embedding};
  for (Index i = First(); i < vocabulary * embedding; i += Stride()) {
    gradient[i] = char_lm::EmbeddingGradient(windows, in_gradient, shape, i);
  }
}

// The doubles hold floats.
extern "C" __global__ void char_lm_adam(float* weights, float* m, float* v, const float* gradient,
                                        Index size, double scale, double learning_rate,
                                        double beta1, double beta2, double epsilon,
                                        double correction1, double correction2) {
  const char_lm::AdamNumbers numbers = {
      static_cast<float>(learning_rate), static_cast<float>(beta1),
      static_cast<float>(beta2),         static_cast<float>(epsilon),
      static_cast<float>(correction1),   static_cast<float>(correction2)};
  for (Index i = First(); i < size; i += Stride()) {
    char_lm::AdamUpdate(numbers, gradient[i] * static_cast<float>(scale), weights[i], m[i], v[i]);
  }
}
