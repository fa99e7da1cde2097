#include "worker/examples/char_lm_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "protocol/prng.h"

namespace char_lm {
namespace {

std::vector<float> Weights(const CharModel& model, std::uint64_t seed) {
  std::vector<float> weights(static_cast<std::size_t>(model.parameter_count()));
  model.Initialize(seed, weights);
  return weights;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(CharModelTest, ParameterCountIsTheSumOfItsParts) {
  const CharModel model({.vocabulary = 5, .context = 3, .embedding = 2, .hidden = 4});
  EXPECT_EQ(model.parameter_count(), 5 * 2 + (6 + 1) * 4 + (4 + 1) * 4 + (4 + 1) * 5);
}

TEST(CharModelTest, UntrainedLossIsAboutThatOfAGuess) {
  CharModel model({.vocabulary = 50, .context = 4, .embedding = 4, .hidden = 16});
  const std::vector<float> weights(static_cast<std::size_t>(model.parameter_count()), 0.F);
  const std::vector<Symbol> window = {1, 2, 3, 4, 49};
  EXPECT_NEAR(model.Loss(weights, window), std::log(50.0), 1e-6);
}

// Each derivative against the slope between two nearby points; parameters of every layer.
TEST(CharModelTest, GradientMatchesFiniteDifferences) {
  CharModel model({.vocabulary = 7, .context = 3, .embedding = 3, .hidden = 9});
  std::vector<float> weights = Weights(model, 3);
  const std::vector<Symbol> window = {2, 6, 2, 5};  // 2 twice: its embedding adds up
  std::vector<float> gradient(weights.size(), 0.F);
  const double loss = model.AddGradient(weights, window, gradient);
  EXPECT_DOUBLE_EQ(loss, model.Loss(weights, window));
  constexpr float kShift = 1e-2F;
  int nonzero = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float kept = weights[i];
    weights[i] = kept + kShift;
    const double above = model.Loss(weights, window);
    weights[i] = kept - kShift;
    const double below = model.Loss(weights, window);
    weights[i] = kept;
    const double slope = (above - below) / (2 * static_cast<double>(kShift));
    EXPECT_NEAR(static_cast<double>(gradient[i]), slope, 2e-4) << "parameter " << i;
    nonzero += gradient[i] != 0.F ? 1 : 0;
  }
  EXPECT_GT(nonzero, 100);
}

TEST(CharModelTest, GradientsAddUp) {
  CharModel model({.vocabulary = 7, .context = 2, .embedding = 3, .hidden = 5});
  const std::vector<float> weights = Weights(model, 1);
  const std::vector<Symbol> a = {1, 2, 3};
  std::vector<float> once(weights.size(), 0.F);
  model.AddGradient(weights, a, once);
  std::vector<float> twice(weights.size(), 0.F);
  model.AddGradient(weights, a, twice);
  model.AddGradient(weights, a, twice);
  for (std::size_t i = 0; i < once.size(); ++i) EXPECT_FLOAT_EQ(twice[i], 2 * once[i]);
}

TEST(CharModelTest, SameInputGivesTheSameBits) {
  const ModelShape shape{.vocabulary = 30, .context = 8, .embedding = 5, .hidden = 33};
  CharModel one(shape);
  CharModel other(shape);
  const std::vector<float> weights = Weights(one, 11);
  EXPECT_TRUE(SameBits(weights, Weights(other, 11)));
  EXPECT_FALSE(SameBits(weights, Weights(other, 12)));
  // The second model has already seen another sample: nothing of it may linger.
  std::vector<float> ignored(weights.size(), 0.F);
  other.AddGradient(weights, std::vector<Symbol>{9, 9, 9, 9, 9, 9, 9, 9, 9}, ignored);
  const std::vector<Symbol> window = {1, 5, 2, 29, 0, 3, 3, 17, 4};
  std::vector<float> a(weights.size(), 0.F);
  std::vector<float> b(weights.size(), 0.F);
  EXPECT_EQ(one.AddGradient(weights, window, a), other.AddGradient(weights, window, b));
  EXPECT_TRUE(SameBits(a, b));
}

TEST(AdamTest, ASliceGivesTheSliceOfTheResult) {
  constexpr std::size_t kCount = 37;
  muster::Prng random(5);
  std::vector<float> gradient(kCount);
  std::vector<float> whole(kCount, 0.5F);
  for (float& g : gradient) g = static_cast<float>(random.Unit() - 0.5);
  std::vector<float> parts = whole;
  std::vector<float> m(kCount, 0.F), v(kCount, 0.F), part_m(kCount, 0.F), part_v(kCount, 0.F);
  const Adam adam;
  for (std::int64_t step = 1; step <= 3; ++step) {
    adam.Apply(step, 0.25F, gradient, whole, m, v);
    for (const auto& [lo, hi] : {std::pair<std::size_t, std::size_t>{0, 13}, {13, 14}, {14, 37}}) {
      const auto cut = [lo = lo, hi = hi](std::vector<float>& x) {
        return std::span(x).subspan(lo, hi - lo);
      };
      adam.Apply(step, 0.25F, cut(gradient), cut(parts), cut(part_m), cut(part_v));
    }
  }
  EXPECT_TRUE(SameBits(whole, parts));
  EXPECT_TRUE(SameBits(v, part_v));
  EXPECT_FALSE(SameBits(whole, std::vector<float>(kCount, 0.5F)));
}

// The first update moves each weight by the learning rate against the sign of its gradient.
TEST(AdamTest, FirstStepHasTheSizeOfTheLearningRate) {
  std::vector<float> weights = {1, 1, 1}, m(3, 0.F), v(3, 0.F);
  const std::vector<float> gradient = {4, -0.001F, 0};
  Adam().Apply(1, 1, gradient, weights, m, v);
  EXPECT_NEAR(static_cast<double>(weights[0]), 1 - 2e-3, 1e-6);
  EXPECT_NEAR(static_cast<double>(weights[1]), 1 + 2e-3, 1e-6);
  EXPECT_EQ(weights[2], 1.F);
}

TEST(CharModelTest, LossFallsInAPlainTrainingLoop) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "the quick brown fox jumps over the lazy dog. ";
  const TextCorpus corpus(text);
  constexpr int kContext = 6;
  CharModel model(
      {.vocabulary = corpus.vocabulary(), .context = kContext, .embedding = 6, .hidden = 24});
  std::vector<float> weights = Weights(model, 1);
  std::vector<float> m(weights.size(), 0.F), v(weights.size(), 0.F), gradient(weights.size());
  muster::Prng random(2);
  double first = 0;
  double last = 0;
  for (std::int64_t step = 1; step <= 150; ++step) {
    std::ranges::fill(gradient, 0.F);
    double loss = 0;
    for (int i = 0; i < 16; ++i) {
      const auto sample = static_cast<std::int64_t>(
          random.Below(static_cast<std::uint64_t>(corpus.samples(kContext))));
      loss += model.AddGradient(weights, corpus.Window(sample, kContext), gradient) / 16;
    }
    Adam{.learning_rate = 1e-2F}.Apply(step, 1.F / 16, gradient, weights, m, v);
    if (step == 1) first = loss;
    last = loss;
  }
  EXPECT_GT(first, 2.5);
  EXPECT_LT(last, 0.5);
}

}  // namespace
}  // namespace char_lm
