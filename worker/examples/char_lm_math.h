// The arithmetic of the model, one result at a time, in the order of char_lm_model.cc: what each
// thread of a kernel in char_lm_kernels.cu computes. A host compiles it too, to do without a GPU in
// tests. All matrices are row-major; a layer is a matrix [inputs][outputs], then `outputs` biases.
#pragma once

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define CHAR_LM_BOTH __host__ __device__ inline
#else
#define CHAR_LM_BOTH inline
#endif

namespace char_lm {

using Index = std::int64_t;
using DeviceSymbol = std::uint8_t;  // Symbol, whose header is not for devices

// Windows lie one behind another, each of `context` symbols and the one to predict.
struct WindowShape {
  Index samples;
  Index context;
  Index embedding;
};

// Element i of [samples][context * embedding].
CHAR_LM_BOTH float Embedded(const float* table, const DeviceSymbol* windows, WindowShape shape,
                            Index i) {
  const Index width = shape.context * shape.embedding;
  const Index place = i % width / shape.embedding;
  const Index symbol = windows[i / width * (shape.context + 1) + place];
  return table[symbol * shape.embedding + i % shape.embedding];
}

// Element i of [samples][outputs]: in * matrix + bias.
CHAR_LM_BOTH float DenseOutput(const float* layer, const float* in, Index inputs, Index outputs,
                               bool with_tanh, Index i) {
  const float* const row = in + i / outputs * inputs;
  const Index output = i % outputs;
  float sum = layer[inputs * outputs + output];
  for (Index k = 0; k < inputs; ++k) sum += row[k] * layer[k * outputs + output];
  return with_tanh ? tanhf(sum) : sum;
}

// Makes one sample's logits into the derivatives of its loss by them, and returns that loss.
CHAR_LM_BOTH double SoftmaxLoss(float* logits, Index vocabulary, Index target) {
  float largest = logits[0];
  for (Index k = 1; k < vocabulary; ++k) largest = largest < logits[k] ? logits[k] : largest;
  const float logit = logits[target];
  float sum = 0;
  for (Index k = 0; k < vocabulary; ++k) {
    logits[k] = expf(logits[k] - largest);
    sum += logits[k];
  }
  for (Index k = 0; k < vocabulary; ++k) logits[k] /= sum;
  logits[target] -= 1;
  return static_cast<double>(largest) - static_cast<double>(logit) + log(static_cast<double>(sum));
}

// Element i of [samples][inputs]: the derivative by a layer's input, and through the tanh that made
// it where one did.
CHAR_LM_BOTH float InputGradient(const float* layer, const float* in, const float* out_gradient,
                                 Index inputs, Index outputs, bool with_tanh, Index i) {
  const float* const row = layer + i % inputs * outputs;
  const float* const by = out_gradient + i / inputs * outputs;
  float lanes[8] = {};
  Index k = 0;
  for (; k + 8 <= outputs; k += 8) {
    for (Index lane = 0; lane < 8; ++lane) lanes[lane] += row[k + lane] * by[k + lane];
  }
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  for (; k < outputs; ++k) sum += row[k] * by[k];
  return with_tanh ? sum * (1 - in[i] * in[i]) : sum;
}

// Element i of a layer's gradient, summed over the samples in their order.
CHAR_LM_BOTH float LayerGradient(const float* in, const float* out_gradient, Index samples,
                                 Index inputs, Index outputs, Index i) {
  const Index input = i / outputs;
  const Index output = i % outputs;
  float sum = 0;
  for (Index s = 0; s < samples; ++s) {
    const float by = out_gradient[s * outputs + output];
    sum += input < inputs ? in[s * inputs + input] * by : by;
  }
  return sum;
}

// Element i of the embeddings' gradient, [vocabulary][embedding], summed over the samples and the
// places in them.
CHAR_LM_BOTH float EmbeddingGradient(const DeviceSymbol* windows, const float* in_gradient,
                                     WindowShape shape, Index i) {
  const Index symbol = i / shape.embedding;
  float sum = 0;
  for (Index s = 0; s < shape.samples; ++s) {
    for (Index place = 0; place < shape.context; ++place) {
      if (windows[s * (shape.context + 1) + place] != symbol) continue;
      sum += in_gradient[(s * shape.context + place) * shape.embedding + i % shape.embedding];
    }
  }
  return sum;
}

struct AdamNumbers {
  float learning_rate;
  float beta1;
  float beta2;
  float epsilon;
  float correction1;  // 1 - beta1^step
  float correction2;
};

// One weight's update; `gradient` is scaled already.
CHAR_LM_BOTH void AdamUpdate(const AdamNumbers& numbers, float gradient, float& weight, float& m,
                             float& v) {
  m = numbers.beta1 * m + (1 - numbers.beta1) * gradient;
  v = numbers.beta2 * v + (1 - numbers.beta2) * gradient * gradient;
  weight -= numbers.learning_rate * (m / numbers.correction1) /
            (sqrtf(v / numbers.correction2) + numbers.epsilon);
}

}  // namespace char_lm
