#include "worker/collective/device_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "protocol/prng.h"
#include "tests/support/host_device.h"
#include "worker/collective/block_sums.h"
#include "worker/collective/device_partial_sums.h"
#include "worker/collective/reduce.h"
#include "worker/collective/reduction_tree.h"

namespace muster::testing {
namespace {

constexpr std::size_t kSizes[] = {0, 1, 7, 8, 9, 255, 4095, 4096, 4097, 8191, 8192, 8200, 100'003};

// Values of very different sizes and both signs, so that the order of additions shows.
template <class T>
std::vector<T> Values(Prng& prng, std::size_t size) {
  std::vector<T> values(size);
  for (T& value : values) {
    value = std::ldexp(static_cast<T>(2 * prng.Unit() - 1), static_cast<int>(prng.Below(40)) - 20);
  }
  return values;
}

// Some that arithmetic treats in their own way, every `distance` elements.
template <class T>
void AddOddOnes(std::vector<T>& values, std::size_t distance) {
  using Limits = std::numeric_limits<T>;
  const T odd[] = {T{0},
                   -T{0},
                   Limits::denorm_min(),
                   -3 * Limits::denorm_min(),
                   Limits::min(),
                   Limits::max(),
                   Limits::lowest(),
                   Limits::infinity(),
                   -Limits::infinity(),
                   Limits::quiet_NaN()};
  std::size_t next = 0;
  for (std::size_t i = 0; i < values.size(); i += distance)
    values[i] = odd[next++ % std::size(odd)];
}

// Which of the NaNs it is does not count.
template <class T>
bool SameBits(T a, T b) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  return std::bit_cast<Bits>(a) == std::bit_cast<Bits>(b) || (std::isnan(a) && std::isnan(b));
}
template <class T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return std::ranges::equal(a, b, [](T x, T y) { return SameBits(x, y); });
}

class DeviceMathTest : public ::testing::Test {
 protected:
  // Both begin here, for streams and memory need the device.
  std::shared_ptr<HostDevice> device_ = HostDevice::Make();
  std::shared_ptr<const DeviceMath> math_ = DeviceMath::Make(device_).value();
  std::unique_ptr<DeviceStream> stream_ = device_->MakeStream().value();
  Prng prng_{7};

  template <class T>
  DeviceMemory OnDevice(const std::vector<T>& values) {
    DeviceMemory memory = device_->Allocate(values.size() * sizeof(T)).value();
    stream_->Copy(memory.data(), values.data(), memory.size());
    Wait();
    return memory;
  }
  template <class T>
  std::vector<T> OnHost(DeviceSpan<const T> values) {
    std::vector<T> result(values.size());
    stream_->Copy(result.data(), values.data(), values.size_bytes());
    Wait();
    return result;
  }
  void Wait() { ASSERT_EQ(stream_->Wait(Duration::Seconds(60), nullptr), Status()); }

  template <class T>
  void CheckAdd(std::vector<T> into, const std::vector<T>& from) {
    const DeviceMemory device_into = OnDevice(into);
    const DeviceMemory device_from = OnDevice(from);
    math_->AddInto(*stream_, device_into.as<T>(), device_from.as<T>());
    const std::vector<T> result = OnHost<T>(device_into.as<T>());
    AddInto(into, from);
    EXPECT_TRUE(SameBits(result, into)) << into.size() << " values of " << sizeof(T) << " bytes";
  }
};

TEST_F(DeviceMathTest, AddsAsTheHostDoes) {
  for (const std::size_t size : kSizes) {
    CheckAdd(Values<float>(prng_, size), Values<float>(prng_, size));
    CheckAdd(Values<double>(prng_, size), Values<double>(prng_, size));
    std::vector<float> odd = Values<float>(prng_, size);
    AddOddOnes(odd, 3);
    std::vector<float> others = Values<float>(prng_, size);
    AddOddOnes(others, 4);
    CheckAdd(odd, others);
  }
}

TEST_F(DeviceMathTest, MakesTheMeanAsTheHostDoes) {
  for (const std::size_t size : kSizes) {
    std::vector<float> values = Values<float>(prng_, size);
    AddOddOnes(values, 5);
    const DeviceMemory on_device = OnDevice(values);
    constexpr double kScale = 1 / 3.0;
    math_->Mean(*stream_, on_device.as<float>(), kScale);
    const std::vector<float> result = OnHost<float>(on_device.as<float>());
    // As the training step does it.
    for (float& value : values) value = static_cast<float>(static_cast<double>(value) * kScale);
    EXPECT_TRUE(SameBits(result, values)) << size;
  }
}

TEST_F(DeviceMathTest, NormHasTheBitsOfNormSquared) {
  DeviceNorm norm(math_);
  // Long ones before short ones too, which then leave memory unused.
  std::vector<std::size_t> sizes(std::begin(kSizes), std::end(kSizes));
  sizes.insert(sizes.end(), {5, 4096 * 7 + 1, 0});
  for (const std::size_t size : sizes) {
    const std::vector<float> values = Values<float>(prng_, size);
    const DeviceMemory on_device = OnDevice(values);
    ASSERT_EQ(norm.Begin(*stream_, on_device.as<float>()), Status());
    Wait();
    EXPECT_TRUE(SameBits(norm.Squared(), NormSquared(values))) << size;
  }
}

TEST_F(DeviceMathTest, NormSaysWhetherAllIsFinite) {
  DeviceNorm norm(math_);
  const auto squared = [&](std::size_t place, float value) {
    std::vector<float> values = Values<float>(prng_, 9000);
    values[place] = value;
    const DeviceMemory on_device = OnDevice(values);
    EXPECT_EQ(norm.Begin(*stream_, on_device.as<float>()), Status());
    Wait();
    EXPECT_TRUE(SameBits(norm.Squared(), NormSquared(values)));
    return norm.Squared();
  };
  using Limits = std::numeric_limits<float>;
  for (const std::size_t place : {0U, 4095U, 4096U, 8999U}) {
    EXPECT_TRUE(std::isnan(squared(place, Limits::quiet_NaN())));
    EXPECT_TRUE(std::isinf(squared(place, -Limits::infinity())));
    EXPECT_TRUE(std::isfinite(squared(place, Limits::max())));
    EXPECT_TRUE(std::isfinite(squared(place, Limits::denorm_min())));
  }
}

TEST_F(DeviceMathTest, ReportsThatMemoryIsMissing) {
  const auto small = HostDevice::Make({.memory_bytes = 4096 * 2 * sizeof(float) + 8});
  const auto math = DeviceMath::Make(small).value();
  const auto stream = small->MakeStream().value();
  const DeviceMemory values = small->Allocate(4096 * 2 * sizeof(float)).value();
  DeviceNorm norm(math);
  EXPECT_EQ(norm.Begin(*stream, values.as<float>()).code(), Code::kResourceExhausted);
  EXPECT_EQ(norm.Begin(*stream, values.as<float>().subspan(0, 4096)), Status());
  DevicePartialSums<float> sums(math, 1, {0, 1}, 4096);
  EXPECT_EQ(sums.Add(*stream, 0, values.as<float>().subspan(0, 4096)).code(),
            Code::kResourceExhausted);
  EXPECT_EQ(sums.next(), 0);
}

TEST_F(DeviceMathTest, NeedsItsKernels) {
  const auto bare = HostDevice::Make({.kernels = {}});
  EXPECT_EQ(DeviceMath::Make(bare).status().code(), Code::kNotFound);
}

// A cut of [0, size) into parts, in random order.
std::vector<Range> Parts(Prng& prng, std::int64_t size) {
  std::vector<Range> parts;
  for (std::int64_t lo = 0; lo < size;) {
    const auto left = static_cast<std::uint64_t>(size - lo);
    const std::int64_t hi = lo + 1 + static_cast<std::int64_t>(prng.Below(left));
    parts.push_back({lo, hi});
    lo = hi;
  }
  for (std::size_t i = parts.size(); i > 1; --i) std::swap(parts[i - 1], parts[prng.Below(i)]);
  return parts;
}

class DevicePartialSumsTest : public DeviceMathTest {
 protected:
  // Adds all leaves to both, to the device's in parts, and asks after each part what is complete.
  template <class T>
  void Fill(PartialSums<T>& host, DevicePartialSums<T>& device) {
    const std::int64_t elements = host.elements();
    for (std::int64_t leaf = host.range().lo; leaf < host.range().hi; ++leaf) {
      const bool last = leaf + 1 == host.range().hi;
      const std::vector<T> values = Values<T>(prng_, static_cast<std::size_t>(elements));
      ASSERT_EQ(host.Add(leaf, values), Status());
      const DeviceMemory memory = OnDevice(values);
      const DeviceSpan<const T> span = memory.as<T>();
      if (elements == 0 || prng_.Below(3) == 0) {
        ASSERT_EQ(device.Add(*stream_, leaf, span), Status());
        continue;
      }
      std::vector<bool> came(static_cast<std::size_t>(elements));
      for (const Range part : Parts(prng_, elements)) {
        ASSERT_EQ(device.next(), leaf);
        const auto offset = static_cast<std::size_t>(part.lo);
        const auto size = static_cast<std::size_t>(part.size());
        ASSERT_EQ(device.AddPart(*stream_, leaf, part.lo, span.subspan(offset, size)), Status());
        for (std::size_t i = offset; i < offset + size; ++i) came[i] = true;
        for (std::int64_t i = 0; i < elements; ++i) {
          ASSERT_EQ(device.complete({i, i + 1}), last && came[static_cast<std::size_t>(i)]);
        }
        ASSERT_EQ(device.complete({0, elements}),
                  last && std::ranges::find(came, false) == came.end());
        ASSERT_TRUE(!last || device.complete(part));
      }
    }
  }

  template <class T>
  void Compare(const PartialSums<T>& host, const DevicePartialSums<T>& device) {
    ASSERT_TRUE(device.complete());
    ASSERT_EQ(device.size(), host.size());
    for (std::size_t i = 0; i < host.size(); ++i) {
      EXPECT_EQ(device.node(i), host.node(i));
      const std::vector<T> expected(host.values(i).begin(), host.values(i).end());
      EXPECT_TRUE(SameBits(OnHost<T>(device.values(i)), expected));
    }
  }

  template <class T>
  void CheckRandomRanges() {
    for (int round = 0; round < 60; ++round) {
      const auto leaves = 1 + static_cast<std::int64_t>(prng_.Below(20));
      auto lo = static_cast<std::int64_t>(prng_.Below(static_cast<std::uint64_t>(leaves) + 1));
      auto hi = static_cast<std::int64_t>(prng_.Below(static_cast<std::uint64_t>(leaves) + 1));
      if (hi < lo) std::swap(lo, hi);
      const auto elements = static_cast<std::int64_t>(prng_.Below(40));
      PartialSums<T> host(leaves, {lo, hi}, elements);
      DevicePartialSums<T> device(math_, leaves, {lo, hi}, elements);
      // Twice: the second time over what the first one left.
      for (int again = 0; again < 2; ++again) {
        host.Clear();
        device.Clear();
        Fill(host, device);
        if (HasFatalFailure()) return;
        Compare(host, device);
      }
    }
  }
};

TEST_F(DevicePartialSumsTest, FloatsHaveTheBitsOfPartialSums) { CheckRandomRanges<float>(); }
TEST_F(DevicePartialSumsTest, DoublesHaveTheBitsOfPartialSums) { CheckRandomRanges<double>(); }

// What is complete has its last values, although the rest has not come.
TEST_F(DevicePartialSumsTest, APartCanBeReadBeforeTheRestIsThere) {
  const std::vector<float> first = {1, 2, 3, 4};
  const std::vector<float> second = {10, 20, 30, 40};
  const DeviceMemory a = OnDevice(first);
  const DeviceMemory b = OnDevice(second);
  DevicePartialSums<float> sums(math_, 2, {0, 2}, 4);
  ASSERT_EQ(sums.Add(*stream_, 0, a.as<float>()), Status());
  ASSERT_EQ(sums.AddPart(*stream_, 1, 1, b.as<float>().subspan(1, 2)), Status());
  EXPECT_TRUE(sums.complete({1, 3}));
  EXPECT_FALSE(sums.complete({0, 3}));
  EXPECT_FALSE(sums.complete());
  EXPECT_EQ(OnHost<float>(DeviceSpan<const float>(sums.values(0)).subspan(1, 2)),
            (std::vector<float>{22, 33}));
  EXPECT_EQ(sums.AddPart(*stream_, 1, 0, b.as<float>().subspan(0, 2)).code(),
            Code::kInvalidArgument);
  ASSERT_EQ(sums.AddPart(*stream_, 1, 0, b.as<float>().subspan(0, 1)), Status());
  ASSERT_EQ(sums.AddPart(*stream_, 1, 3, b.as<float>().subspan(3, 1)), Status());
  EXPECT_TRUE(sums.complete());
  EXPECT_EQ(OnHost<float>(sums.values(0)), (std::vector<float>{11, 22, 33, 44}));
}

TEST_F(DevicePartialSumsTest, RefusesWhatIsNotDue) {
  const DeviceMemory memory = OnDevice(std::vector<float>{1, 2, 3});
  const DeviceSpan<const float> values = memory.as<float>();
  DevicePartialSums<float> sums(math_, 4, {1, 3}, 3);
  EXPECT_EQ(sums.Add(*stream_, 0, values).code(), Code::kFailedPrecondition);
  EXPECT_EQ(sums.AddPart(*stream_, 2, 0, values).code(), Code::kFailedPrecondition);
  EXPECT_EQ(sums.Add(*stream_, 1, values.subspan(0, 2)).code(), Code::kInvalidArgument);
  EXPECT_EQ(sums.AddPart(*stream_, 1, 1, values).code(), Code::kInvalidArgument);
  EXPECT_EQ(sums.AddPart(*stream_, 1, -1, values.subspan(0, 1)).code(), Code::kInvalidArgument);
  ASSERT_EQ(sums.AddPart(*stream_, 1, 2, values.subspan(2, 1)), Status());
  EXPECT_EQ(sums.Add(*stream_, 1, values).code(), Code::kInvalidArgument);
  ASSERT_EQ(sums.AddPart(*stream_, 1, 0, values.subspan(0, 2)), Status());
  ASSERT_EQ(sums.Add(*stream_, 2, values), Status());
  EXPECT_EQ(sums.Add(*stream_, 3, values).code(), Code::kFailedPrecondition);
  EXPECT_EQ(sums.size(), 2U);
  EXPECT_EQ(sums.node(0), (Range{1, 2}));
}

}  // namespace
}  // namespace muster::testing
