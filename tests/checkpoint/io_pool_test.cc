#include "checkpoint/io_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <latch>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace muster::checkpoint {
namespace {

TEST(IoPool, CallsEachIndexOnce) {
  for (const int threads : {1, 2, 5}) {
    IoPool pool(threads);
    for (const std::int64_t count : {0, 1, 2, 1000}) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(count));
      EXPECT_TRUE(pool.ForEach(count,
                               [&](std::int64_t i) {
                                 ++calls[static_cast<std::size_t>(i)];
                                 return Status();
                               })
                      .ok());
      for (const auto& each : calls) EXPECT_EQ(each, 1);
    }
  }
}

// Only with so many threads at once can the calls return.
TEST(IoPool, WorksOnSeveralAtOnce) {
  IoPool pool(3);
  std::barrier together(3);
  EXPECT_TRUE(pool.ForEach(3,
                           [&](std::int64_t) {
                             together.arrive_and_wait();
                             return Status();
                           })
                  .ok());
}

// S03: the error of a helper thread is the error of the whole; what has begun ends first, and
// nothing is begun after it.
TEST(IoPool, ReturnsTheErrorOfTheLowestIndex) {
  IoPool pool(2);
  std::barrier both_begun(2);
  std::latch second_failed(1);
  std::atomic<int> begun = 0;
  const Status status = pool.ForEach(100, [&](std::int64_t i) {
    ++begun;
    both_begun.arrive_and_wait();
    if (i == 1) {
      second_failed.count_down();
      return Internal("second");
    }
    second_failed.wait();
    return Internal("first");
  });
  EXPECT_EQ(status.message(), "first");
  EXPECT_EQ(begun, 2);
}

TEST(IoPool, CanBeCalledFromWithin) {
  IoPool pool(2);
  std::atomic<int> calls = 0;
  EXPECT_TRUE(pool.ForEach(4,
                           [&](std::int64_t) {
                             return pool.ForEach(4, [&](std::int64_t) {
                               ++calls;
                               return Status();
                             });
                           })
                  .ok());
  EXPECT_EQ(calls, 16);
}

// Another caller's work that hangs keeps the helper, and nobody else.
TEST(IoPool, DoesNotWaitForWorkOfOthers) {
  IoPool pool(2);
  std::latch stuck(2);
  std::latch release(1);
  std::jthread other([&] {
    EXPECT_TRUE(pool.ForEach(2,
                             [&](std::int64_t) {
                               stuck.count_down();
                               release.wait();
                               return Status();
                             })
                    .ok());
  });
  stuck.wait();
  std::set<std::int64_t> seen;
  EXPECT_TRUE(pool.ForEach(10,
                           [&](std::int64_t i) {
                             seen.insert(i);
                             return Status();
                           })
                  .ok());
  EXPECT_EQ(seen.size(), 10U);
  release.count_down();
}

}  // namespace
}  // namespace muster::checkpoint
