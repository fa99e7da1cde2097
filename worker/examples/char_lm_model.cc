#include "worker/examples/char_lm_model.h"

#include <algorithm>
#include <cmath>

#include "protocol/check.h"
#include "protocol/prng.h"

namespace char_lm {
namespace {

// y += a * x. The innermost loop of nearly all the work; elements are independent, so the compiler
// may use vector units without changing a bit.
void AddScaled(float a, const float* x, float* y, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) y[i] += a * x[i];
}

// The sum of x * y, over eight interleaved partial sums: a fixed order that vector units can keep.
float Dot(const float* x, const float* y, std::size_t n) {
  constexpr std::size_t kLanes = 8;
  std::array<float, kLanes> lanes{};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t k = 0; k < kLanes; ++k) lanes[k] += x[i + k] * y[i + k];
  }
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  for (; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

// out = in * matrix + bias, with `parameters` as Dense lays them out.
void ForwardDense(const float* parameters, std::span<const float> in, std::span<float> out) {
  const float* bias = parameters + in.size() * out.size();
  std::copy_n(bias, out.size(), out.begin());
  for (std::size_t i = 0; i < in.size(); ++i) {
    AddScaled(in[i], parameters + i * out.size(), out.data(), out.size());
  }
}

// From the derivatives by `out`: adds those by the parameters to `gradient`, writes those by `in`.
void BackwardDense(const float* parameters, std::span<const float> in,
                   std::span<const float> out_gradient, float* gradient,
                   std::span<float> in_gradient) {
  const std::size_t outputs = out_gradient.size();
  for (std::size_t i = 0; i < in.size(); ++i) {
    in_gradient[i] = Dot(parameters + i * outputs, out_gradient.data(), outputs);
    AddScaled(in[i], out_gradient.data(), gradient + i * outputs, outputs);
  }
  AddScaled(1, out_gradient.data(), gradient + in.size() * outputs, outputs);
}

}  // namespace

ModelLayout::ModelLayout(const ModelShape& shape) {
  MUSTER_CHECK(shape.vocabulary > 0 && shape.context > 0 && shape.embedding > 0 && shape.hidden > 0,
               "every extent of the model is at least 1");
  const auto vocabulary = static_cast<std::size_t>(shape.vocabulary);
  const auto embedding = static_cast<std::size_t>(shape.embedding);
  const auto hidden = static_cast<std::size_t>(shape.hidden);
  const std::array<std::size_t, 4> widths = {static_cast<std::size_t>(shape.context) * embedding,
                                             hidden, hidden, vocabulary};
  std::size_t offset = vocabulary * embedding;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    layers[l] = {.offset = offset, .inputs = widths[l], .outputs = widths[l + 1]};
    offset += layers[l].size();
  }
  parameter_count = static_cast<std::int64_t>(offset);
}

CharModel::CharModel(const ModelShape& shape) : shape_(shape), layout_(shape) {
  for (std::size_t l = 0; l < layout_.layers.size(); ++l) {
    input_[l].resize(layout_.layers[l].inputs);
    input_gradient_[l].resize(layout_.layers[l].inputs);
  }
  output_.resize(layout_.layers.back().outputs);
}

void CharModel::Initialize(std::uint64_t seed, std::span<float> weights) const {
  MUSTER_CHECK(std::ssize(weights) == layout_.parameter_count, "weights of another model");
  muster::Prng random(seed);
  const auto fill = [&random](std::span<float> part, double spread) {
    for (float& w : part) w = static_cast<float>((2 * random.Unit() - 1) * spread);
  };
  std::ranges::fill(weights, 0.F);
  fill(weights.first(layout_.layers[0].offset), 0.5);
  for (const ModelLayout::Dense& layer : layout_.layers) {
    // Glorot and Bengio 2010.
    const auto fans = static_cast<double>(layer.inputs + layer.outputs);
    fill(weights.subspan(layer.offset, layer.inputs * layer.outputs), std::sqrt(6 / fans));
  }
}

template <class T>
std::span<T> CharModel::Embedding(std::span<T> flat, Symbol symbol) const {
  const auto embedding = static_cast<std::size_t>(shape_.embedding);
  return flat.subspan(symbol * embedding, embedding);
}

double CharModel::Forward(std::span<const float> weights, std::span<const Symbol> window) {
  MUSTER_CHECK(std::ssize(weights) == layout_.parameter_count, "weights of another model");
  MUSTER_CHECK(std::ssize(window) == shape_.context + 1, "a window is the context and one more");
  auto place = input_[0].begin();
  for (const Symbol symbol : window.first(window.size() - 1)) {
    place = std::ranges::copy(Embedding(weights, symbol), place).out;
  }
  for (std::size_t l = 0; l < layout_.layers.size(); ++l) {
    std::vector<float>& out = l + 1 < layout_.layers.size() ? input_[l + 1] : output_;
    ForwardDense(weights.data() + layout_.layers[l].offset, input_[l], out);
    if (l + 1 < layout_.layers.size()) {
      for (float& x : out) x = std::tanh(x);
    }
  }
  // Softmax, shifted by the largest logit so that no exponential overflows.
  const Symbol target = window.back();
  const float largest = *std::ranges::max_element(output_);
  const float logit = output_[target];
  float sum = 0;
  for (float& x : output_) {
    x = std::exp(x - largest);
    sum += x;
  }
  for (float& x : output_) x /= sum;
  output_[target] -= 1;
  return static_cast<double>(largest) - static_cast<double>(logit) +
         std::log(static_cast<double>(sum));
}

double CharModel::Loss(std::span<const float> weights, std::span<const Symbol> window) {
  return Forward(weights, window);
}

double CharModel::AddGradient(std::span<const float> weights, std::span<const Symbol> window,
                              std::span<float> gradient) {
  MUSTER_CHECK(gradient.size() == weights.size(), "gradient of another model");
  const double loss = Forward(weights, window);
  for (std::size_t l = layout_.layers.size(); l-- > 0;) {
    const std::vector<float>& out_gradient =
        l + 1 < layout_.layers.size() ? input_gradient_[l + 1] : output_;
    BackwardDense(weights.data() + layout_.layers[l].offset, input_[l], out_gradient,
                  gradient.data() + layout_.layers[l].offset, input_gradient_[l]);
    if (l > 0) {
      // Through the tanh that made this layer's input.
      for (std::size_t i = 0; i < input_[l].size(); ++i) {
        input_gradient_[l][i] *= 1 - input_[l][i] * input_[l][i];
      }
    }
  }
  std::span<const float> rest = input_gradient_[0];
  for (const Symbol symbol : window.first(window.size() - 1)) {
    const std::span<float> row = Embedding(gradient, symbol);
    AddScaled(1, rest.data(), row.data(), row.size());
    rest = rest.subspan(row.size());
  }
  return loss;
}

AdamNumbers Adam::Numbers(std::int64_t step) const {
  const auto k = static_cast<double>(step);
  return {.learning_rate = learning_rate,
          .beta1 = beta1,
          .beta2 = beta2,
          .epsilon = epsilon,
          .correction1 = static_cast<float>(1 - std::pow(static_cast<double>(beta1), k)),
          .correction2 = static_cast<float>(1 - std::pow(static_cast<double>(beta2), k))};
}

void Adam::Apply(std::int64_t step, float scale, std::span<const float> gradient,
                 std::span<float> weights, std::span<float> m, std::span<float> v) const {
  MUSTER_CHECK(
      gradient.size() == weights.size() && m.size() == weights.size() && v.size() == weights.size(),
      "the optimizer's arrays have one size");
  const AdamNumbers numbers = Numbers(step);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    AdamUpdate(numbers, gradient[i] * scale, weights[i], m[i], v[i]);
  }
}

}  // namespace char_lm
