// How a generation's members connect: strangers, stale generations, addresses, aborts. C02, C06,
// M18, O07.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/worker/collective/group.h"
#include "worker/collective/frame.h"

namespace muster::testing {
namespace {

constexpr TcpOptions kPatient{.forming_deadline = kBound, .progress_deadline = kForever};

// Connects, counts the ranks with an all-reduce, and goes.
Status FormAndCount(TcpListener& listener, const TcpGroup& group) {
  TcpCommunicator ours(listener, group, kPatient);
  MUSTER_RETURN_IF_ERROR(ours.Connect());
  std::vector<std::int64_t> ones = {1};
  MUSTER_RETURN_IF_ERROR(
      ours.AllReduce(std::as_writable_bytes(std::span(ones)), ElementType::kInt64, ReduceOp::kSum));
  if (ones[0] != ours.world_size()) return Internal("wrong count");
  return ours.Barrier();
}

UniqueFd DialRaw(const TcpListener& listener) {
  const std::vector<SocketAddress> addresses =
      Resolve({"127.0.0.1", listener.address().port}, false).value();
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(fd.get(), addresses[0].get(), addresses[0].size), 0);
  return fd;
}

// Until the other side closes; returns what it sent.
std::string ReadAll(const UniqueFd& fd) {
  std::string all;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::recv(fd.get(), buffer, sizeof buffer, 0)) > 0;) {
    all.append(buffer, static_cast<std::size_t>(got));
  }
  return all;
}

Greeting HelloOf(const TcpGroup& group, std::int32_t from) {
  Greeting hello;
  hello.job_digest = DigestOf(group.job.value());
  hello.lineage = group.lineage.value();
  hello.generation = group.generation.value();
  hello.from = from;
  hello.to = group.rank.value();
  hello.world_size = static_cast<std::int32_t>(group.endpoints.size());
  hello.members_digest = DigestOf("");
  for (const Endpoint& endpoint : group.endpoints) {
    hello.members_digest = DigestOf(endpoint.ToString() + "\n", hello.members_digest);
  }
  return hello;
}

Verdict AnswerTo(const Greeting& hello, const TcpListener& listener) {
  const UniqueFd fd = DialRaw(listener);
  EXPECT_EQ(::send(fd.get(), &hello, sizeof hello, 0), ssize_t{sizeof hello});
  Greeting answer;
  EXPECT_EQ(::recv(fd.get(), &answer, sizeof answer, MSG_WAITALL), ssize_t{sizeof answer});
  return answer.verdict;
}

TEST(Forming, ReformsOnTheSameListenersAtOtherSizes) {
  Listeners listeners(5);
  std::int64_t generation = 0;
  for (const std::int32_t size : {5, 3, 1, 4, 2, 5}) {
    ++generation;
    EXPECT_EQ(Unlike(Code::kOk, OnEach(size,
                                       [&](std::int32_t rank) {
                                         return FormAndCount(
                                             listeners.of(rank),
                                             listeners.Group(rank, size, generation));
                                       })),
              "");
  }
}

// Ranks that go through generations at their own pace: nobody waits for the others between two, so
// dialers of the next generation meet listeners of the last one.
TEST(Forming, ManyGenerationsWithoutABreak) {
  Listeners listeners(4);
  EXPECT_EQ(Unlike(Code::kOk, OnEach(4,
                                     [&](std::int32_t rank) -> Status {
                                       for (std::int64_t g = 1; g <= 25; ++g) {
                                         MUSTER_RETURN_IF_ERROR(FormAndCount(
                                             listeners.of(rank), listeners.Group(rank, 4, g)));
                                       }
                                       return {};
                                     })),
            "");
}

// C06: a rank that is late finds the others' connections in its queue; a second change meanwhile
// makes the first generation's attempts stale, and they do no harm.
TEST(Forming, ALateRankAndASecondChange) {
  Listeners listeners(3);
  {
    TcpCommunicator early(listeners.of(2), listeners.Group(2, 3, 1), kPatient);
    std::future<Status> forming = std::async(std::launch::async, [&] { return early.Connect(); });
    // Its dial waits in the queue of rank 0's listener, which has not asked for it.
    pollfd queue{listeners.of(0).fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&queue, 1, static_cast<int>(kBound.millis())), 1);
    early.Abort();
    EXPECT_EQ(early.AwaitAborted(kBound), Status());
    EXPECT_EQ(forming.get().code(), Code::kInterrupted);
  }
  EXPECT_EQ(Unlike(Code::kOk, OnEach(3,
                                     [&](std::int32_t rank) {
                                       return FormAndCount(listeners.of(rank),
                                                           listeners.Group(rank, 3, 2));
                                     })),
            "");
}

// One that is a generation ahead is told to come again, and is connected once the other follows.
TEST(Forming, ADialerOfANewerGenerationWaitsForTheListener) {
  Listeners listeners(2);
  TcpCommunicator old(listeners.of(0), listeners.Group(0, 2, 1), kPatient);
  std::future<Status> forming = std::async(std::launch::async, [&] { return old.Connect(); });
  EXPECT_EQ(AnswerTo(HelloOf(listeners.Group(0, 2, 2), 1), listeners.of(0)), Verdict::kNotYet);
  std::future<Status> ahead = std::async(
      std::launch::async, [&] { return FormAndCount(listeners.of(1), listeners.Group(1, 2, 2)); });
  old.Abort();
  EXPECT_EQ(forming.get().code(), Code::kInterrupted);
  EXPECT_EQ(FormAndCount(listeners.of(0), listeners.Group(0, 2, 2)), Status());
  EXPECT_EQ(ahead.get(), Status());
}

TEST(Forming, ADialerOfAnOlderGenerationLearnsThatItIsOver) {
  Listeners listeners(2);
  std::future<Status> current = std::async(
      std::launch::async, [&] { return FormAndCount(listeners.of(0), listeners.Group(0, 2, 5)); });
  const Status stale = FormAndCount(listeners.of(1), listeners.Group(1, 2, 4));
  EXPECT_EQ(stale.code(), Code::kUnavailable) << stale.ToString();
  EXPECT_NE(stale.message().find("generation 5"), std::string::npos) << stale.ToString();
  EXPECT_EQ(FormAndCount(listeners.of(1), listeners.Group(1, 2, 5)), Status());
  EXPECT_EQ(current.get(), Status());
}

// O07: whatever strangers send, forming goes on, and they are turned away.
TEST(Forming, StrangersDoNoHarm) {
  Listeners listeners(3);
  const TcpGroup group = listeners.Group(0, 3, 3);
  std::future<Status> root =
      std::async(std::launch::async, [&] { return FormAndCount(listeners.of(0), group); });
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 600; ++i) silent.push_back(DialRaw(listeners.of(0)));
  for (const std::string& garbage :
       {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string(100'000, '\xff'),
        std::string("MUSTERd0") + std::string(56, '\0'), std::string("\x16\x03\x01\x02")}) {
    const UniqueFd fd = DialRaw(listeners.of(0));
    ::send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
    EXPECT_EQ(ReadAll(fd), "");
  }
  Greeting hello = HelloOf(group, 1);
  const auto with = [&](auto change) {
    Greeting changed = hello;
    change(changed);
    return AnswerTo(changed, listeners.of(0));
  };
  EXPECT_EQ(with([](Greeting& g) { g.job_digest = DigestOf("other job"); }), Verdict::kForeign);
  EXPECT_EQ(with([](Greeting& g) { g.lineage = 8; }), Verdict::kForeign);
  EXPECT_EQ(with([](Greeting& g) { g.generation = 2; }), Verdict::kStale);
  EXPECT_EQ(with([](Greeting& g) { g.generation = 4; }), Verdict::kNotYet);
  EXPECT_EQ(with([](Greeting& g) { g.from = 0; }), Verdict::kMisplaced);
  EXPECT_EQ(with([](Greeting& g) { g.from = 3; }), Verdict::kMisplaced);
  EXPECT_EQ(with([](Greeting& g) { g.from = -1; }), Verdict::kMisplaced);
  EXPECT_EQ(with([](Greeting& g) { g.to = 1; }), Verdict::kMisplaced);
  EXPECT_EQ(with([](Greeting& g) { g.world_size = 4; }), Verdict::kMisplaced);
  EXPECT_EQ(with([](Greeting& g) { g.members_digest = 1; }), Verdict::kMisplaced);
  // Welcomed, but gone before it confirmed: it does not count.
  EXPECT_EQ(with([](Greeting&) {}), Verdict::kAccepted);
  std::future<Status> one = std::async(
      std::launch::async, [&] { return FormAndCount(listeners.of(1), listeners.Group(1, 3, 3)); });
  EXPECT_EQ(FormAndCount(listeners.of(2), listeners.Group(2, 3, 3)), Status());
  EXPECT_EQ(one.get(), Status());
  EXPECT_EQ(root.get(), Status());
}

TEST(Forming, ASecondConnectionOfARankIsRefused) {
  Listeners listeners(3);
  const TcpGroup group = listeners.Group(0, 3, 1);
  TcpCommunicator root(listeners.of(0), group, kPatient);
  std::future<Status> forming = std::async(std::launch::async, [&] { return root.Connect(); });
  const UniqueFd first = DialRaw(listeners.of(0));
  Greeting greeting = HelloOf(group, 1);
  ASSERT_EQ(::send(first.get(), &greeting, sizeof greeting, 0), ssize_t{sizeof greeting});
  Greeting welcome;
  ASSERT_EQ(::recv(first.get(), &welcome, sizeof welcome, MSG_WAITALL), ssize_t{sizeof welcome});
  ASSERT_EQ(welcome.verdict, Verdict::kAccepted);
  greeting.kind = GreetingKind::kConfirm;
  ASSERT_EQ(::send(first.get(), &greeting, sizeof greeting, 0), ssize_t{sizeof greeting});
  // Until the confirmation has been read, another one may be welcomed, for nothing is decided.
  EXPECT_TRUE(Eventually(
      [&] { return AnswerTo(HelloOf(group, 1), listeners.of(0)) == Verdict::kDuplicate; }));
  root.Abort();
  EXPECT_EQ(forming.get().code(), Code::kInterrupted);
}

// C02: a member that never comes does not hold the others for ever, and is named.
TEST(Forming, TheDeadlineNamesWhoIsMissing) {
  Listeners listeners(3);
  const TcpOptions brief{.forming_deadline = Duration::Millis(300), .progress_deadline = kForever};
  TcpGroup group = listeners.Group(1, 3, 1);
  // Nothing listens on rank 0's port.
  {
    Listeners gone(1);
    group.endpoints[0].port = gone.of(0).address().port;
  }
  TcpCommunicator ours(listeners.of(1), group, brief);
  const Status status = ours.Connect();
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_NE(status.message().find("rank 0 (" + group.endpoints[0].ToString() + ")"),
            std::string::npos)
      << status.ToString();
  EXPECT_NE(status.message().find("refused"), std::string::npos) << status.ToString();
  EXPECT_NE(status.message().find("rank 2"), std::string::npos) << status.ToString();
  EXPECT_EQ(ours.Barrier().code(), Code::kDeadlineExceeded);
  TcpCommunicator pair(listeners.of(0), listeners.Group(0, 2, 1), brief);
  EXPECT_EQ(pair.Connect().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(pair.failed_peer(), Rank(1));
}

TEST(Forming, AbortEndsIt) {
  Listeners listeners(3);
  for (std::int32_t rank = 0; rank < 3; ++rank) {
    TcpCommunicator ours(listeners.of(rank), listeners.Group(rank, 3, 1), kPatient);
    EXPECT_EQ(ours.Barrier().code(), Code::kFailedPrecondition);
    std::promise<void> begun;
    std::future<Status> forming = std::async(std::launch::async, [&] {
      begun.set_value();
      return ours.Connect();
    });
    begun.get_future().wait();
    ours.Abort();
    EXPECT_EQ(ours.AwaitAborted(kBound), Status());
    EXPECT_EQ(forming.get().code(), Code::kInterrupted);
  }
}

TEST(Forming, RefusesAGroupThatMakesNoSense) {
  Listeners listeners(1);
  TcpGroup group = listeners.Group(0, 1, 1);
  group.rank = Rank(1);
  TcpCommunicator ours(listeners.of(0), group, kPatient);
  EXPECT_EQ(ours.Connect().code(), Code::kInvalidArgument);
}

TEST(Forming, ConnectTwiceIsRefused) {
  Listeners listeners(1);
  TcpCommunicator ours(listeners.of(0), listeners.Group(0, 1, 1), kPatient);
  EXPECT_EQ(ours.Connect(), Status());
  EXPECT_EQ(ours.Connect().code(), Code::kFailedPrecondition);
  EXPECT_EQ(ours.Barrier(), Status());
}

// ---- Addresses (M18) ------------------------------------------------------------------------

bool HasIpv6() {
  const UniqueFd fd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return false;
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  return ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

void ExpectForms(const std::string& listen_on, const std::string& reach_by) {
  Listeners listeners(3, listen_on);
  EXPECT_EQ(Unlike(Code::kOk, OnEach(3,
                                     [&](std::int32_t rank) {
                                       return FormAndCount(listeners.of(rank),
                                                           listeners.Group(rank, 3, 1, reach_by));
                                     })),
            "")
      << "listening on '" << listen_on << "', reached by '" << reach_by << "'";
}

TEST(FormingAddress, NamesAndWildcards) {
  ExpectForms("127.0.0.1", "localhost");  // ::1, where localhost means it too, is refused first
  ExpectForms("localhost", "localhost");
  ExpectForms("0.0.0.0", "127.0.0.1");
  ExpectForms("", "127.0.0.1");
  ExpectForms("::", "localhost");
}

TEST(FormingAddress, Ipv6) {
  if (!HasIpv6()) GTEST_SKIP() << "this machine has no IPv6 loopback address";
  ExpectForms("::1", "::1");
  ExpectForms("", "::1");
}

TEST(FormingAddress, AnUnknownNameIsNamedInTheError) {
  Listeners listeners(2);
  TcpGroup group = listeners.Group(1, 2, 1);
  group.endpoints[0].host = "no-such-host.invalid";
  TcpCommunicator ours(listeners.of(1), group,
                       {.forming_deadline = Duration::Millis(100), .progress_deadline = kForever});
  const Status status = ours.Connect();
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_NE(status.message().find("cannot resolve 'no-such-host.invalid'"), std::string::npos)
      << status.ToString();
}

}  // namespace
}  // namespace muster::testing
