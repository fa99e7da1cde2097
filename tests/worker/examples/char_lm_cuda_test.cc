// The model's way over a device against the one on the CPU, with the kernels' twins on the host:
// both add in the same order, so that not a bit may differ.
#include "worker/examples/char_lm_cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "protocol/prng.h"
#include "tests/support/char_lm_twins.h"
#include "tests/support/host_device.h"

namespace char_lm {
namespace {

using muster::DeviceMemory;
using muster::DeviceSpan;
using muster::Duration;
using muster::Status;
using muster::testing::HostDevice;

constexpr ModelShape kShape{.vocabulary = 13, .context = 5, .embedding = 3, .hidden = 19};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class CudaModelTest : public ::testing::Test {
 protected:
  CudaModelTest() { host_.Initialize(4, weights_); }

  std::vector<Symbol> RandomWindows(int samples) {
    std::vector<Symbol> windows(static_cast<std::size_t>(samples * (kShape.context + 1)));
    for (Symbol& symbol : windows) symbol = static_cast<Symbol>(random_.Below(13));
    return windows;
  }
  std::vector<float> OnHost(CudaModel& model, DeviceSpan<const float> values) {
    std::vector<float> result(values.size());
    model.stream().Copy(result.data(), values.data(), values.size_bytes());
    EXPECT_EQ(model.stream().Wait(Duration::Seconds(60), nullptr), Status());
    return result;
  }
  DeviceMemory OnDevice(CudaModel& model, const std::vector<float>& values) {
    DeviceMemory memory = device_->Allocate(values.size() * sizeof(float)).value();
    model.stream().Copy(memory.data(), values.data(), memory.size());
    EXPECT_EQ(model.stream().Wait(Duration::Seconds(60), nullptr), Status());
    return memory;
  }

  std::shared_ptr<HostDevice> device_ =
      HostDevice::Make({.kernels = {muster::testing::CharLmKernelTwins()}});
  CharModel host_{kShape};
  std::vector<float> weights_ =
      std::vector<float>(static_cast<std::size_t>(host_.parameter_count()));
  muster::Prng random_{3};
};

TEST_F(CudaModelTest, GradientHasTheBitsOfTheCpus) {
  const std::unique_ptr<CudaModel> model = CudaModel::Make(device_, kShape, 9).value();
  const DeviceMemory weights = OnDevice(*model, weights_);
  for (const int samples : {9, 1, 0, 4}) {
    const std::vector<Symbol> windows = RandomWindows(samples);
    std::vector<float> expected(weights_.size(), 0.F);
    double expected_loss = 0;
    const std::size_t window = kShape.context + 1;
    for (std::size_t at = 0; at < windows.size(); at += window) {
      expected_loss +=
          host_.AddGradient(weights_, std::span(windows).subspan(at, window), expected);
    }
    const float* begin = nullptr;
    std::int64_t due = host_.parameter_count();  // parts come from the end, without a gap
    const auto loss =
        model->Gradient(weights.as<float>(), windows, [&](std::int64_t first, auto part) {
          EXPECT_EQ(first + static_cast<std::int64_t>(part.size()), due);
          due = first;
          begin = part.data();
        });
    ASSERT_EQ(loss.status(), Status());
    EXPECT_EQ(*loss, expected_loss);
    EXPECT_EQ(due, 0);
    EXPECT_TRUE(SameBits(OnHost(*model, {begin, weights_.size()}), expected)) << samples;
  }
}

// Whoever puts a copy of a part on the stream gets its last values, whatever comes afterwards.
TEST_F(CudaModelTest, PartsAreFinalInTheOrderOfTheStream) {
  const std::unique_ptr<CudaModel> model = CudaModel::Make(device_, kShape, 4).value();
  const DeviceMemory weights = OnDevice(*model, weights_);
  std::vector<float> came(weights_.size());
  const auto take = [&](std::int64_t first, DeviceSpan<const float> part) {
    model->stream().Copy(came.data() + first, part.data(), part.size_bytes());
  };
  const std::vector<Symbol> windows = RandomWindows(4);
  ASSERT_TRUE(model->Gradient(weights.as<float>(), windows, take).ok());
  ASSERT_TRUE(model->Gradient(weights.as<float>(), RandomWindows(3), [](auto, auto) {}).ok());
  ASSERT_EQ(model->stream().Wait(Duration::Seconds(60), nullptr), Status());
  std::vector<float> expected(weights_.size(), 0.F);
  for (std::size_t s = 0; s < 4; ++s) {
    host_.AddGradient(weights_, std::span(windows).subspan(s * 6, 6), expected);
  }
  EXPECT_TRUE(SameBits(came, expected));
}

TEST_F(CudaModelTest, AdamHasTheBitsOfTheCpus) {
  const std::unique_ptr<CudaModel> model = CudaModel::Make(device_, kShape, 1).value();
  const Adam adam{.learning_rate = 3e-3F};
  std::vector<float> w = weights_, m(w.size(), 0.F), v(w.size(), 0.F), gradient(w.size());
  const DeviceMemory device_w = OnDevice(*model, w);
  const DeviceMemory device_m = OnDevice(*model, m);
  const DeviceMemory device_v = OnDevice(*model, v);
  for (std::int64_t step = 1; step <= 5; ++step) {
    for (float& g : gradient) g = static_cast<float>(random_.Unit() - 0.5);
    const DeviceMemory device_gradient = OnDevice(*model, gradient);
    adam.Apply(step, 0.3F, gradient, w, m, v);
    model->Apply(adam, step, 0.3F, device_gradient.as<float>(), device_w.as<float>(),
                 device_m.as<float>(), device_v.as<float>());
    EXPECT_TRUE(SameBits(OnHost(*model, device_w.as<float>()), w)) << step;
  }
  EXPECT_TRUE(SameBits(OnHost(*model, device_v.as<float>()), v));
  EXPECT_FALSE(SameBits(w, weights_));
}

TEST_F(CudaModelTest, SaysWhatIsMissing) {
  const auto small =
      HostDevice::Make({.memory_bytes = 5000, .kernels = {muster::testing::CharLmKernelTwins()}});
  EXPECT_EQ(CudaModel::Make(small, kShape, 4).status().code(), muster::Code::kResourceExhausted);
  EXPECT_EQ(CudaModel::Make(HostDevice::Make(), kShape, 4).status().code(),
            muster::Code::kNotFound);
}

TEST_F(CudaModelTest, ABrokenDeviceIsReported) {
  const std::unique_ptr<CudaModel> model = CudaModel::Make(device_, kShape, 2).value();
  const DeviceMemory weights = OnDevice(*model, weights_);
  device_->Break("it fell off the bus");
  EXPECT_EQ(model->Gradient(weights.as<float>(), RandomWindows(2), [](auto, auto) {}).status(),
            muster::Internal("it fell off the bus"));
}

}  // namespace
}  // namespace char_lm
