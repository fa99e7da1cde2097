// A small character-level language model, written plainly:
//
//   embedding of each of the last `context` characters  (concatenated: context * embedding values)
//   -> dense, tanh  (hidden)  -> dense, tanh  (hidden)  -> dense  (vocabulary)  -> softmax
//
// All weights lie in one flat float32 array, so that they are one tensor to whoever keeps them.
// Everything is computed by one thread in a fixed order: the same input gives the same bits.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "worker/examples/char_lm_math.h"
#include "worker/examples/text_corpus.h"

namespace char_lm {

struct ModelShape {
  int vocabulary = 96;  // different characters
  int context = 16;     // characters that the prediction is made from
  int embedding = 16;   // values per character
  int hidden = 128;     // units of each of the two hidden layers
};

// Where the weights lie in the flat array: the embeddings [vocabulary][embedding], then the layers
// in the order of the forward pass.
struct ModelLayout {
  // A matrix [inputs][outputs], then `outputs` biases.
  struct Dense {
    std::size_t offset = 0;
    std::size_t inputs = 0;
    std::size_t outputs = 0;
    [[nodiscard]] std::size_t size() const { return (inputs + 1) * outputs; }
  };

  // REQUIRES: all extents are at least 1.
  explicit ModelLayout(const ModelShape& shape);

  std::array<Dense, 3> layers;
  std::int64_t parameter_count = 0;
};

// One thread at a time per model: it keeps the activations of the sample at hand.
class CharModel {
 public:
  // REQUIRES: all extents are at least 1.
  explicit CharModel(const ModelShape& shape);

  [[nodiscard]] const ModelShape& shape() const { return shape_; }
  // Length of the flat array of weights.
  [[nodiscard]] std::int64_t parameter_count() const { return layout_.parameter_count; }

  // Random weights, scaled so that activations keep their size; biases are zero. A pure function of
  // `seed`. REQUIRES: weights.size() == parameter_count()
  void Initialize(std::uint64_t seed, std::span<float> weights) const;

  // Adds the gradient of the cross-entropy of one sample to `gradient` and returns that loss in
  // nats. `window` is the context and then the character to predict.
  // REQUIRES: both arrays have parameter_count() elements, `window` context + 1.
  double AddGradient(std::span<const float> weights, std::span<const Symbol> window,
                     std::span<float> gradient);

  // The loss alone.
  double Loss(std::span<const float> weights, std::span<const Symbol> window);

 private:
  // The part of a flat array that belongs to the embedding of `symbol`.
  template <class T>
  std::span<T> Embedding(std::span<T> flat, Symbol symbol) const;
  // Fills the activations; returns the loss and leaves its derivative by the logits in output_.
  double Forward(std::span<const float> weights, std::span<const Symbol> window);

  ModelShape shape_;
  ModelLayout layout_;

  // Activations of the sample at hand: the input of each layer, and the logits.
  std::array<std::vector<float>, 3> input_;
  std::vector<float> output_;
  // Derivatives of the loss by `input_`.
  std::array<std::vector<float>, 3> input_gradient_;
};

// Adam (Kingma and Ba 2015). Elementwise, so a slice of the arrays gives that slice of the result,
// bit for bit.
struct Adam {
  float learning_rate = 2e-3F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float epsilon = 1e-8F;

  // What is the same for all elements of the update `step`, which counts from 1.
  [[nodiscard]] AdamNumbers Numbers(std::int64_t step) const;

  // One update; `step` counts from 1, `scale` is applied to the gradient first.
  // REQUIRES: all spans have the same size.
  void Apply(std::int64_t step, float scale, std::span<const float> gradient,
             std::span<float> weights, std::span<float> m, std::span<float> v) const;
};

}  // namespace char_lm
