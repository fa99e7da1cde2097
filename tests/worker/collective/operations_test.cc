// Every operation against an oracle, over TCP and in process, for worlds of one to six.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "protocol/prng.h"
#include "tests/worker/collective/group.h"

namespace muster::testing {
namespace {

// Zero, one, odd, around the limits of eager payloads and chunks, and (over TCP) more than a socket
// or a segment holds.
std::vector<std::size_t> Sizes(bool tcp) {
  std::vector<std::size_t> sizes = {0, 1, 3, 1023, 65536, 65537, 262'144 + 9};
  if (tcp) sizes.push_back(5 * 1024 * 1024 + 1);
  return sizes;
}

std::span<std::byte> Bytes(auto& values) { return std::as_writable_bytes(std::span(values)); }

// What rank `rank` contributes: differs by rank and by place, and takes little time to make.
std::vector<std::byte> Marks(std::int32_t rank, std::size_t size) {
  std::vector<std::byte> bytes(size);
  Prng prng(static_cast<std::uint64_t>(rank));
  for (std::size_t i = 0; i < size; i += 8) {
    const std::uint64_t word = prng.Next();
    std::memcpy(bytes.data() + i, &word, std::min<std::size_t>(8, size - i));
  }
  return bytes;
}

class OperationsTest : public ::testing::TestWithParam<std::tuple<bool, std::int32_t>> {
 protected:
  void SetUp() override {
    const auto [tcp, size] = GetParam();
    ranks_ = tcp ? TcpRanks(size) : LocalRanks(size);
    size_ = size;
  }
  void ExpectOk(const std::function<Status(Communicator&)>& body) {
    EXPECT_EQ(Unlike(Code::kOk, OnAll(ranks_, body)), "");
  }
  Ranks ranks_;
  std::int32_t size_ = 0;
};

// The oracle of a reduction: in the order of the ranks.
template <class T, class Function>
std::vector<T> Reduced(std::int32_t size, std::size_t count, Function combine,
                       const std::function<T(std::int32_t, std::size_t)>& value) {
  std::vector<T> result(count);
  for (std::size_t i = 0; i < count; ++i) {
    result[i] = value(0, i);
    for (std::int32_t rank = 1; rank < size; ++rank) {
      result[i] = static_cast<T>(combine(result[i], value(rank, i)));
    }
  }
  return result;
}

// Of very different sizes, so that the order of additions shows.
float Gradient(std::int32_t rank, std::size_t i) {
  const std::uint64_t bits = Mix64(static_cast<std::uint64_t>(rank) << 40U | i);
  const float scale = (bits & 1U) != 0 ? 1.0F / 4096 : 33.0F;
  return (static_cast<float>(bits >> 44U) - 524288.0F) * scale;
}

TEST_P(OperationsTest, FloatSumIsTakenInRankOrderOnEveryRank) {
  for (const std::size_t bytes : Sizes(std::get<0>(GetParam()))) {
    const std::size_t count = bytes / sizeof(float);
    std::vector<std::vector<float>> gradients(static_cast<std::size_t>(size_));
    std::vector<float> expected(count);
    for (std::int32_t rank = 0; rank < size_; ++rank) {
      std::vector<float>& gradient = gradients[static_cast<std::size_t>(rank)];
      for (std::size_t i = 0; i < count; ++i) gradient.push_back(Gradient(rank, i));
      for (std::size_t i = 0; i < count; ++i) {
        expected[i] = rank == 0 ? gradient[i] : expected[i] + gradient[i];
      }
    }
    ExpectOk([&](Communicator& ours) -> Status {
      std::vector<float> values = gradients[static_cast<std::size_t>(ours.rank().value())];
      MUSTER_RETURN_IF_ERROR(ours.AllReduce(Bytes(values), ElementType::kFloat32, ReduceOp::kSum));
      const bool same =
          count == 0 || std::memcmp(values.data(), expected.data(), count * sizeof(float)) == 0;
      return same ? Status() : Internal("wrong sum of " + std::to_string(count));
    });
  }
}

TEST_P(OperationsTest, OtherTypesAndReductions) {
  constexpr std::size_t kCount = 20'011;  // sliced for most worlds
  const auto check = [&]<class T>(T, ElementType type, ReduceOp op, auto combine) {
    const std::function<T(std::int32_t, std::size_t)> value = [](std::int32_t rank, std::size_t i) {
      const std::uint64_t bits = Mix64(static_cast<std::uint64_t>(rank) * 77 + i);
      return static_cast<T>(static_cast<std::int64_t>(bits));
    };
    const std::vector<T> expected = Reduced<T>(size_, kCount, combine, value);
    ExpectOk([&](Communicator& ours) -> Status {
      std::vector<T> values(kCount);
      for (std::size_t i = 0; i < kCount; ++i) values[i] = value(ours.rank().value(), i);
      MUSTER_RETURN_IF_ERROR(ours.AllReduce(Bytes(values), type, op));
      return values == expected ? Status() : Internal("wrong result");
    });
  };
  const auto sum = [](auto a, auto b) { return a + b; };
  const auto wrapped_sum = [](std::int64_t a, std::int64_t b) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  };
  const auto bit_or = [](auto a, auto b) { return a | b; };
  const auto max = [](auto a, auto b) { return std::max(a, b); };
  const auto min = [](auto a, auto b) { return std::min(a, b); };
  check(double{}, ElementType::kFloat64, ReduceOp::kSum, sum);
  check(double{}, ElementType::kFloat64, ReduceOp::kMax, max);
  check(float{}, ElementType::kFloat32, ReduceOp::kMin, min);
  check(std::int64_t{}, ElementType::kInt64, ReduceOp::kSum, wrapped_sum);
  check(std::int64_t{}, ElementType::kInt64, ReduceOp::kMin, min);
  check(std::int64_t{}, ElementType::kInt64, ReduceOp::kBitOr, bit_or);
  check(std::uint64_t{}, ElementType::kUInt64, ReduceOp::kMax, max);
  check(std::uint8_t{}, ElementType::kBytes, ReduceOp::kBitOr, bit_or);
}

TEST_P(OperationsTest, OneRanksNanWinsMaxAndMin) {
  for (std::int32_t poisoned = 0; poisoned < size_; ++poisoned) {
    for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin}) {
      ExpectOk([&](Communicator& ours) -> Status {
        std::vector<float> value = {ours.rank().value() == poisoned
                                        ? std::numeric_limits<float>::quiet_NaN()
                                        : static_cast<float>(ours.rank().value())};
        MUSTER_RETURN_IF_ERROR(ours.AllReduce(Bytes(value), ElementType::kFloat32, op));
        return std::isnan(value[0]) ? Status() : Internal("the NaN is lost");
      });
    }
  }
}

TEST_P(OperationsTest, AllGatherOfUnevenParts) {
  for (const std::size_t bytes : Sizes(std::get<0>(GetParam()))) {
    std::vector<std::int64_t> counts;
    std::vector<std::byte> expected;
    for (std::int32_t rank = 0; rank < size_; ++rank) {
      // Rank 1 gives nothing; the others different amounts.
      const std::size_t count = rank == 1 ? 0 : bytes / (static_cast<std::size_t>(rank) + 1);
      counts.push_back(static_cast<std::int64_t>(count));
      const std::vector<std::byte> part = Marks(rank, count);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    ExpectOk([&](Communicator& ours) -> Status {
      std::vector<std::byte> buffer(expected.size());
      std::size_t offset = 0;
      for (std::int32_t rank = 0; rank < size_; ++rank) {
        const auto count = static_cast<std::size_t>(counts[static_cast<std::size_t>(rank)]);
        if (rank == ours.rank().value() && count > 0) {
          std::memcpy(buffer.data() + offset, expected.data() + offset, count);
        }
        offset += count;
      }
      MUSTER_RETURN_IF_ERROR(ours.AllGather(buffer, counts));
      return buffer == expected ? Status() : Internal("wrong bytes");
    });
  }
}

TEST_P(OperationsTest, BroadcastFromEveryRoot) {
  for (const std::size_t bytes : Sizes(std::get<0>(GetParam()))) {
    for (std::int32_t root = 0; root < size_; ++root) {
      const std::vector<std::byte> expected = Marks(root, bytes);
      ExpectOk([&](Communicator& ours) -> Status {
        std::vector<std::byte> buffer(bytes);
        if (ours.rank().value() == root) buffer = expected;
        MUSTER_RETURN_IF_ERROR(ours.Broadcast(buffer, Rank(root)));
        return buffer == expected ? Status() : Internal("wrong bytes");
      });
    }
  }
}

// Both directions of every pair carry more than the sockets hold: sending and receiving overlap.
TEST_P(OperationsTest, ExchangeWithAllAtOnce) {
  const auto amount = [](std::size_t bytes, std::int32_t from, std::int32_t to) {
    return from == 2 && to == 0 ? 0 : bytes / static_cast<std::size_t>(1 + (from + 2 * to) % 3);
  };
  for (const std::size_t bytes : Sizes(std::get<0>(GetParam()))) {
    ExpectOk([&](Communicator& ours) -> Status {
      const std::int32_t self = ours.rank().value();
      std::vector<std::vector<std::byte>> out;
      std::vector<std::vector<std::byte>> in;
      for (std::int32_t peer = 0; peer < size_; ++peer) {
        out.push_back(Marks(self * 100 + peer, amount(bytes, self, peer)));
        in.emplace_back(amount(bytes, peer, self));
      }
      const std::vector<std::span<const std::byte>> outgoing(out.begin(), out.end());
      const std::vector<std::span<std::byte>> incoming(in.begin(), in.end());
      MUSTER_RETURN_IF_ERROR(ours.Exchange(outgoing, incoming));
      for (std::int32_t peer = 0; peer < size_; ++peer) {
        const auto& got = in[static_cast<std::size_t>(peer)];
        if (got != Marks(peer * 100 + self, got.size())) return Internal("wrong bytes");
      }
      return {};
    });
  }
}

TEST_P(OperationsTest, SendAndRecvAroundARing) {
  if (size_ == 1) {
    std::vector<std::byte> buffer(1);
    EXPECT_EQ(ranks_[0]->Send(buffer, Rank(0)).code(), Code::kInvalidArgument);
    return;
  }
  for (const std::size_t bytes : Sizes(std::get<0>(GetParam()))) {
    ExpectOk([&](Communicator& ours) -> Status {
      const std::int32_t self = ours.rank().value();
      const Rank next((self + 1) % size_);
      const std::int32_t previous = (self + size_ - 1) % size_;
      std::vector<std::byte> got(bytes);
      // Send waits for its Recv, so somebody has to begin with receiving.
      if (self == 0) MUSTER_RETURN_IF_ERROR(ours.Recv(got, Rank(previous)));
      MUSTER_RETURN_IF_ERROR(ours.Send(Marks(self, bytes), next));
      if (self != 0) MUSTER_RETURN_IF_ERROR(ours.Recv(got, Rank(previous)));
      return got == Marks(previous, bytes) ? Status() : Internal("wrong bytes");
    });
  }
}

TEST_P(OperationsTest, NoRankLeavesABarrierBeforeAllHaveEntered) {
  std::atomic<std::int32_t> entered = 0;
  for (std::int32_t round = 1; round <= 50; ++round) {
    ExpectOk([&](Communicator& ours) -> Status {
      ++entered;
      MUSTER_RETURN_IF_ERROR(ours.Barrier());
      return entered.load() == round * size_ ? Status() : Internal("left too early");
    });
  }
}

// Frames of one operation must not be taken for the next one's: no waiting in between.
TEST_P(OperationsTest, ManyOperationsBackToBack) {
  ExpectOk([&](Communicator& ours) -> Status {
    Prng sizes(42);  // the same on all ranks
    for (std::int64_t i = 0; i < 300; ++i) {
      std::vector<std::int64_t> values(sizes.Below(3000), ours.rank().value() + i);
      MUSTER_RETURN_IF_ERROR(ours.AllReduce(Bytes(values), ElementType::kInt64, ReduceOp::kSum));
      const std::int64_t expected = size_ * (size_ - 1) / 2 + i * size_;
      for (const std::int64_t value : values) {
        if (value != expected) return Internal("wrong sum");
      }
      if (i % 7 == 0) MUSTER_RETURN_IF_ERROR(ours.Barrier());
      MUSTER_RETURN_IF_ERROR(
          ours.Broadcast(Bytes(values), Rank(static_cast<std::int32_t>(i % std::int64_t{size_}))));
    }
    return {};
  });
  EXPECT_EQ(ranks_[0]->operations_begun(), 300U + 43U + 300U);
}

TEST_P(OperationsTest, SaysWhatItIs) {
  const auto [tcp, size] = GetParam();
  EXPECT_EQ(ranks_.back()->rank(), Rank(size - 1));
  EXPECT_EQ(ranks_.back()->world_size(), size);
  EXPECT_EQ(ranks_.back()->backend(), tcp ? "tcp" : "local");
  EXPECT_EQ(ranks_.back()->failed_peer(), std::nullopt);
}

INSTANTIATE_TEST_SUITE_P(Worlds, OperationsTest,
                         ::testing::Combine(::testing::Bool(), ::testing::Range(1, 7)),
                         [](const auto& world) {
                           return std::string(std::get<0>(world.param) ? "Tcp" : "Local") +
                                  std::to_string(std::get<1>(world.param));
                         });

}  // namespace
}  // namespace muster::testing
