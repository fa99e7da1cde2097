// Descriptors, endpoints and the listener.
#include "worker/collective/socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>
#include <utility>

#include "tests/worker/collective/group.h"
#include "worker/collective/endpoint.h"
#include "worker/collective/tcp_listener.h"

namespace muster::testing {
namespace {

TEST(Endpoint, ParsesWhatItWrites) {
  for (const std::string text : {"127.0.0.1:80", "host.name:65535", "[::1]:1", "[fe80::1%lo]:9"}) {
    const Result<Endpoint> endpoint = Endpoint::Parse(text);
    ASSERT_TRUE(endpoint.ok()) << endpoint.status().ToString();
    EXPECT_EQ(endpoint->ToString(), text);
  }
  EXPECT_EQ(Endpoint::Parse("[::1]:1").value(), (Endpoint{"::1", 1}));
}

TEST(Endpoint, RefusesWhatIsNone) {
  for (const std::string text : {"", "host", "host:", ":x", "host:70000", "host:-1", "host:1x",
                                 "::1:80", "[::1:80", "1:2:3"}) {
    EXPECT_EQ(Endpoint::Parse(text).status().code(), Code::kInvalidArgument) << text;
  }
}

TEST(TcpListener, PublishesTheBoundPortAndNamesATakenOne) {
  const Result<TcpListener> first = TcpListener::Bind({"127.0.0.1", 0});
  ASSERT_TRUE(first.ok());
  EXPECT_NE(first->address().port, 0);
  const Result<TcpListener> second = TcpListener::Bind(first->address());
  EXPECT_EQ(second.status().code(), Code::kAlreadyExists);
  EXPECT_NE(second.status().message().find(first->address().ToString()), std::string::npos);
  EXPECT_FALSE(TcpListener::Bind({"192.0.2.1", 0}).ok()) << "an address of somebody else";
}

TEST(AbortSignal, WakesAPoll) {
  AbortSignal abort;
  ASSERT_EQ(abort.status(), Status());
  pollfd polled{abort.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&polled, 1, 0), 0);
  abort.Raise();
  abort.Raise();
  EXPECT_TRUE(abort.raised());
  EXPECT_EQ(::poll(&polled, 1, 0), 1);
}

// A data loader that forks must not keep its dead parent's connections open.
TEST(UniqueFd, IsClosedInAForkedChild) {
  std::array<int, 2> pair{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
  const UniqueFd kept(pair[0]);
  const int raw = pair[1];
  const pid_t child = ::fork();
  if (child == 0) {
    const bool kept_is_closed = ::fcntl(kept.get(), F_GETFD) == -1;
    const bool raw_is_open = ::fcntl(raw, F_GETFD) != -1;
    ::_exit(kept_is_closed && raw_is_open ? 0 : 1);
  }
  ASSERT_GT(child, 0);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_NE(::fcntl(kept.get(), F_GETFD), -1) << "the parent keeps it";
  ::close(raw);
}

TEST(UniqueFd, MovesOwnership) {
  UniqueFd a(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int fd = a.get();
  UniqueFd b(std::move(a));
  EXPECT_FALSE(a.valid());  // NOLINT(bugprone-use-after-move)
  UniqueFd c;
  c = std::move(b);
  EXPECT_EQ(c.get(), fd);
  c.Close();
  EXPECT_EQ(::fcntl(fd, F_GETFD), -1);
}

}  // namespace
}  // namespace muster::testing
