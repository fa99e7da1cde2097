#include "checkpoint/aligned_buffer.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "checkpoint/stream_copy.h"
#include "protocol/prng.h"
#include "tests/checkpoint/support.h"

namespace muster::checkpoint {
namespace {

constexpr std::int64_t kLarge = (std::int64_t{5} << 20U) + 123;

std::uint64_t Address(const AlignedBuffer& buffer) {
  return reinterpret_cast<std::uintptr_t>(buffer.span().data());
}

TEST(AlignedBuffer, IsAlignedAndPadded) {
  for (const std::int64_t bytes :
       {std::int64_t{1}, std::int64_t{4096}, std::int64_t{4097}, kLarge}) {
    AlignedBuffer buffer;
    ASSERT_TRUE(buffer.Resize(bytes).ok());
    EXPECT_EQ(Address(buffer) % 4096, 0U);
    EXPECT_EQ(buffer.size(), bytes);
    EXPECT_EQ(std::ssize(buffer.span()), bytes);
    EXPECT_EQ(std::ssize(buffer.padded()), AlignUp(bytes));
    EXPECT_GE(buffer.capacity(), std::ssize(buffer.padded()));
  }
}

TEST(AlignedBuffer, EmptyIsOrdinary) {
  AlignedBuffer buffer;
  EXPECT_TRUE(buffer.Resize(0).ok());
  EXPECT_TRUE(buffer.span().empty() && buffer.padded().empty());
}

// The memory is there before the first byte is written, and is the same one at the next use.
TEST(AlignedBuffer, IsMappedAndKept) {
  AlignedBuffer buffer;
  ASSERT_TRUE(buffer.Resize(kLarge).ok());
  std::vector<unsigned char> resident(static_cast<std::size_t>(buffer.capacity() / 4096));
  ASSERT_EQ(
      mincore(buffer.span().data(), static_cast<std::size_t>(buffer.capacity()), resident.data()),
      0);
  EXPECT_TRUE(std::ranges::all_of(resident, [](unsigned char page) { return (page & 1U) != 0; }));
  const std::uint64_t address = Address(buffer);
  ASSERT_TRUE(buffer.Resize(1).ok());
  ASSERT_TRUE(buffer.Resize(kLarge).ok());
  EXPECT_EQ(Address(buffer), address);
  AlignedBuffer other = std::move(buffer);
  EXPECT_EQ(Address(other), address);
  EXPECT_EQ(buffer.size(), 0);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(buffer.capacity(), 0);
}

TEST(AlignedBuffer, LackOfMemoryIsAnError) {
  AlignedBuffer buffer;
  ASSERT_TRUE(buffer.Resize(5).ok());
  for (const std::int64_t bytes : {std::int64_t{1} << 55U, INT64_MAX}) {
    EXPECT_EQ(buffer.Resize(bytes).code(), Code::kResourceExhausted);
    EXPECT_EQ(buffer.size(), 0);
  }
  EXPECT_TRUE(buffer.Resize(5).ok());
}

// At any alignment and length, and not a byte beside.
TEST(StreamCopy, CopiesExactlyThose) {
  Prng prng(1);
  Bytes from(std::size_t{1} << 20U);
  for (std::byte& byte : from) byte = static_cast<std::byte>(prng.Next());
  for (int i = 0; i < 200; ++i) {
    const std::size_t count = prng.Below(from.size() - 200) + (i % 2 == 0 ? 0 : 64);
    const std::size_t source = prng.Below(70);
    const std::size_t target = prng.Below(70);
    Bytes to(from.size(), std::byte{0xEE});
    Bytes expected = to;
    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(source), count,
                expected.begin() + static_cast<std::ptrdiff_t>(target));
    StreamCopy(to.data() + target, from.data() + source, count);
    ASSERT_TRUE(to == expected) << count << " " << source << " " << target;
  }
}

}  // namespace
}  // namespace muster::checkpoint
