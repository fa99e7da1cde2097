#include "tests/support/char_lm_twins.h"

#include <array>
#include <type_traits>
#include <utility>

#include "worker/examples/char_lm_math.h"

namespace muster::testing {
namespace {

using char_lm::DeviceSymbol;
using char_lm::Index;

// `function` with its parameters read from the 8 bytes of each.
template <class... Parameters, std::size_t... I>
void Call(void (*function)(Parameters...), const std::uint64_t* arguments,
          std::index_sequence<I...>) {
  function(KernelArgument<Parameters>(arguments[I])...);
}
template <auto Function>
void Run(const std::uint64_t* arguments) {
  [&]<class... Parameters>(void (*function)(Parameters...)) {
    Call(function, arguments, std::index_sequence_for<Parameters...>());
  }(Function);
}
template <class... Parameters>
constexpr std::size_t Count(void (*)(Parameters...)) {
  return sizeof...(Parameters);
}
template <auto Function>
constexpr KernelTwin Twin(std::string_view name) {
  return {name, Count(Function), Run<Function>};
}

void Embed(const float* table, const DeviceSymbol* windows, float* inputs, Index samples,
           Index context, Index embedding) {
  for (Index i = 0; i < samples * context * embedding; ++i) {
    inputs[i] = char_lm::Embedded(table, windows, {samples, context, embedding}, i);
  }
}

void Dense(const float* layer, const float* in, float* out, Index samples, Index inputs,
           Index outputs, Index with_tanh) {
  for (Index i = 0; i < samples * outputs; ++i) {
    out[i] = char_lm::DenseOutput(layer, in, inputs, outputs, with_tanh != 0, i);
  }
}

void SoftmaxLoss(float* logits, const DeviceSymbol* windows, double* losses, Index samples,
                 Index context, Index vocabulary) {
  for (Index s = 0; s < samples; ++s) {
    losses[s] = char_lm::SoftmaxLoss(logits + s * vocabulary, vocabulary,
                                     windows[s * (context + 1) + context]);
  }
}

void InputGradient(const float* layer, const float* in, const float* out_gradient,
                   float* in_gradient, Index samples, Index inputs, Index outputs,
                   Index with_tanh) {
  for (Index i = 0; i < samples * inputs; ++i) {
    in_gradient[i] =
        char_lm::InputGradient(layer, in, out_gradient, inputs, outputs, with_tanh != 0, i);
  }
}

void LayerGradient(const float* in, const float* out_gradient, float* gradient, Index samples,
                   Index inputs, Index outputs) {
  for (Index i = 0; i < (inputs + 1) * outputs; ++i) {
    gradient[i] = char_lm::LayerGradient(in, out_gradient, samples, inputs, outputs, i);
  }
}

void EmbeddingGradient(const DeviceSymbol* windows, const float* in_gradient, float* gradient,
                       Index samples, Index context, Index embedding, Index vocabulary) {
  for (Index i = 0; i < vocabulary * embedding; ++i) {
    gradient[i] =
        char_lm::EmbeddingGradient(windows, in_gradient, {samples, context, embedding}, i);
  }
}

void Adam(float* weights, float* m, float* v, const float* gradient, Index size, double scale,
          double learning_rate, double beta1, double beta2, double epsilon, double correction1,
          double correction2) {
  const char_lm::AdamNumbers numbers = {
      static_cast<float>(learning_rate), static_cast<float>(beta1),
      static_cast<float>(beta2),         static_cast<float>(epsilon),
      static_cast<float>(correction1),   static_cast<float>(correction2)};
  for (Index i = 0; i < size; ++i) {
    char_lm::AdamUpdate(numbers, gradient[i] * static_cast<float>(scale), weights[i], m[i], v[i]);
  }
}

constexpr std::array<KernelTwin, 7> kTwins = {Twin<Embed>("char_lm_embed"),
                                              Twin<Dense>("char_lm_dense"),
                                              Twin<SoftmaxLoss>("char_lm_softmax_loss"),
                                              Twin<InputGradient>("char_lm_input_gradient"),
                                              Twin<LayerGradient>("char_lm_layer_gradient"),
                                              Twin<EmbeddingGradient>("char_lm_embedding_gradient"),
                                              Twin<Adam>("char_lm_adam")};

}  // namespace

std::span<const KernelTwin> CharLmKernelTwins() { return kTwins; }

}  // namespace muster::testing
