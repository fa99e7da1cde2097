#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "protocol/transport/steady_clock.h"
#include "protocol/transport/task_group.h"
#include "protocol/transport/url.h"

namespace muster {
namespace {

TEST(Url, ParsesWhatUsersWrite) {
  EXPECT_EQ(*ParseUrl("http://127.0.0.1:80"), (HostPort{"127.0.0.1", 80}));
  EXPECT_EQ(*ParseUrl("http://head-1.cluster_a:7078/"), (HostPort{"head-1.cluster_a", 7078}));
  EXPECT_EQ(*ParseUrl("http://host"), (HostPort{"host", 7077}));
  EXPECT_EQ(*ParseUrl("http://[fd00::1]:9"), (HostPort{"fd00::1", 9}));
  EXPECT_EQ(*ParseUrl("http://[fe80::1%eth0]"), (HostPort{"fe80::1%eth0", 7077}));
  EXPECT_EQ((HostPort{"::1", 9}).ToString(), "[::1]:9");
  EXPECT_EQ(ParseHostPort("0.0.0.0:0")->ToString(), "0.0.0.0:0");
}

TEST(Url, RefusesTheRestWithAReasonThatNamesIt) {
  for (const std::string url : {"",
                                "127.0.0.1:80",
                                "https://x",
                                "http://",
                                "http://:80",
                                "http://h:0",
                                "http://h:65536",
                                "http://h:-1",
                                "http://h:8x",
                                "http://h:",
                                "http://::1:80",
                                "http://[::1",
                                "http://[x]:1",
                                "http://[1234]:1",
                                "http://u@h:1",
                                "http://h/path",
                                "http://h:1/?q",
                                "http://h h:1",
                                "http://[::1]x:1",
                                "http://[::1%]:1"}) {
    const Result<HostPort> parsed = ParseUrl(url);
    ASSERT_FALSE(parsed.ok()) << url;
    EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument);
    EXPECT_NE(parsed.status().message().find("'" + url + "'"), std::string::npos)
        << parsed.status().message();
  }
  EXPECT_FALSE(ParseHostPort("host").ok());
  EXPECT_FALSE(ParseHostPort("::").ok());
}

TEST(Clock, DoesNotGoBack) {
  const Instant first = MonotonicNow();
  EXPECT_LE(first, MonotonicNow());
  EXPECT_GT(UnixMillisNow(), 1.6e12);
}

TEST(TaskGroup, CancelsAllAndSaysWhenTheLastHasLeft) {
  TaskGroup group;
  std::vector<int> cancelled;
  TaskGroup::Ticket first = group.Enter([&] { cancelled.push_back(1); });
  TaskGroup::Ticket second;
  second = group.Enter([&] {
    cancelled.push_back(2);
    second = TaskGroup::Ticket();  // ends at once
  });
  EXPECT_EQ(group.size(), 2U);
  group.CancelAll();
  EXPECT_EQ(cancelled, (std::vector<int>{1, 2}));
  EXPECT_EQ(group.size(), 1U);
  bool empty = false;
  group.WhenEmpty([&] { empty = true; });
  TaskGroup::Ticket moved = std::move(first);
  EXPECT_FALSE(empty);
  moved = TaskGroup::Ticket();
  EXPECT_TRUE(empty);
  bool late = false;
  {
    const TaskGroup::Ticket ticket = group.Enter([&] { late = true; });
  }
  EXPECT_TRUE(late);
  group.CancelAll();
  EXPECT_EQ(cancelled.size(), 2U);
}

}  // namespace
}  // namespace muster
