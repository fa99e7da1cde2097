// The lab's own networks and sandbox, with real namespaces and sockets. Where they cannot be made
// the tests say so and are skipped.
#include "chaos/live/network.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "chaos/live/process.h"
#include "chaos/live/sandbox.h"
#include "protocol/transport/steady_clock.h"
#include "tests/support/temp_dir.h"

namespace muster::chaos {
namespace {

Sandbox sandbox;

constexpr int kBound = 20'000;  // ms: ends what hangs

// A socket made in a party's namespace. The thread that makes it stays nowhere else.
int SocketIn(int space) {
  int made = -1;
  std::thread([&] {
    if (setns(space, CLONE_NEWNET) == 0) made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  }).join();
  return made;
}

sockaddr_in AddressAt(const std::string& address, std::uint16_t port) {
  sockaddr_in result{};
  result.sin_family = AF_INET;
  result.sin_port = htons(port);
  inet_pton(AF_INET, address.c_str(), &result.sin_addr);
  return result;
}

bool AwaitReadable(int socket, int limit_ms) {
  pollfd waiting{.fd = socket, .events = POLLIN, .revents = 0};
  return poll(&waiting, 1, limit_ms) > 0;
}

// Two ends of a connection from "a" to "b".
struct Link {
  int client = -1;
  int server = -1;
  ~Link() {
    for (const int socket : {client, server}) {
      if (socket >= 0) close(socket);
    }
  }
};

class NetworkTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!sandbox.powers.network) {
      GTEST_SKIP() << (sandbox.lacks.empty() ? "no network namespaces" : sandbox.lacks.front());
    }
  }
  void Make(bool delays = false) {
    Result<std::unique_ptr<Network>> made = Network::Make({"musterd", "a", "b"}, delays);
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    network_ = std::move(made).value();
  }
  void Connect(Link* link) {
    const int listener = SocketIn(network_->NamespaceOf("b"));
    sockaddr_in address = AddressAt(network_->AddressOf("b"), 0);
    socklen_t size = sizeof(address);
    ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
    ASSERT_EQ(listen(listener, 8), 0);
    ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
    link->client = SocketIn(network_->NamespaceOf("a"));
    ASSERT_EQ(connect(link->client, reinterpret_cast<sockaddr*>(&address), size), 0);
    ASSERT_TRUE(AwaitReadable(listener, kBound));
    link->server = accept(listener, nullptr, nullptr);
    close(listener);
    ASSERT_TRUE(Passes(link->client, link->server));
  }
  // One byte goes through; a dropped packet is sent again within the bound.
  static bool Passes(int from, int to, int limit_ms = kBound) {
    char byte = 'x';
    if (send(from, &byte, 1, MSG_NOSIGNAL) != 1) return false;
    return AwaitReadable(to, limit_ms) && recv(to, &byte, 1, 0) == 1;
  }

  std::unique_ptr<Network> network_;
};

TEST_F(NetworkTest, CutsBothWaysAndHeals) {
  ASSERT_NO_FATAL_FAILURE(Make());
  Link link;
  ASSERT_NO_FATAL_FAILURE(Connect(&link));
  ASSERT_TRUE(network_->Cut("a", "b", Direction::kBoth).ok());
  EXPECT_FALSE(Passes(link.client, link.server, 300));
  ASSERT_TRUE(network_->Heal("a", "b").ok());
  EXPECT_TRUE(AwaitReadable(link.server, kBound)) << "what was lost is sent again";
}

TEST_F(NetworkTest, CutsOneWayAlone) {
  ASSERT_NO_FATAL_FAILURE(Make());
  Link link;
  ASSERT_NO_FATAL_FAILURE(Connect(&link));
  // What b sends still arrives at a, though what a would answer does not.
  ASSERT_TRUE(network_->Cut("a", "b", Direction::kOut).ok());
  EXPECT_TRUE(Passes(link.server, link.client));
  EXPECT_FALSE(Passes(link.client, link.server, 300));
}

TEST_F(NetworkTest, ABlackholeSwallowsWhatIsSent) {
  ASSERT_NO_FATAL_FAILURE(Make());
  Link link;
  ASSERT_NO_FATAL_FAILURE(Connect(&link));
  ASSERT_TRUE(network_->Blackhole("b", "a").ok());
  EXPECT_TRUE(Passes(link.client, link.server)) << "the other way is open";
  EXPECT_FALSE(Passes(link.server, link.client, 300));
  EXPECT_TRUE(network_->Heal("b", "a").ok());
}

TEST_F(NetworkTest, ResetsWhatThereIsAndLetsNewOnesIn) {
  ASSERT_NO_FATAL_FAILURE(Make());
  Link link;
  ASSERT_NO_FATAL_FAILURE(Connect(&link));
  const Result<int> broken = network_->Reset("a", "b");
  ASSERT_TRUE(broken.ok()) << broken.status().ToString();
  EXPECT_EQ(*broken, 1);
  char byte = 0;
  ASSERT_TRUE(AwaitReadable(link.server, kBound));
  EXPECT_EQ(recv(link.server, &byte, 1, 0), -1);
  Link again;
  ASSERT_NO_FATAL_FAILURE(Connect(&again));
}

TEST_F(NetworkTest, ALinkGoesDownAndComesBack) {
  ASSERT_NO_FATAL_FAILURE(Make());
  Link link;
  ASSERT_NO_FATAL_FAILURE(Connect(&link));
  ASSERT_TRUE(network_->SetLink("b", false).ok());
  EXPECT_FALSE(Passes(link.client, link.server, 300));
  ASSERT_TRUE(network_->SetLink("b", true).ok());
  EXPECT_TRUE(AwaitReadable(link.server, kBound));
}

TEST_F(NetworkTest, ASlowLinkTakesItsTime) {
  ASSERT_NO_FATAL_FAILURE(Make());
  Link link;
  ASSERT_NO_FATAL_FAILURE(Connect(&link));
  ASSERT_TRUE(network_->LimitRate("a", 8000).ok());
  const std::vector<char> bytes(1 << 20, 'y');
  const Instant began = MonotonicNow();
  std::thread sender([&] {
    for (std::size_t at = 0; at < bytes.size();) {
      const ssize_t sent = send(link.client, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (sent <= 0) return;
      at += static_cast<std::size_t>(sent);
    }
  });
  std::size_t got = 0;
  std::vector<char> into(1 << 16);
  while (got < bytes.size() && AwaitReadable(link.server, kBound)) {
    const ssize_t read = recv(link.server, into.data(), into.size(), 0);
    if (read <= 0) break;
    got += static_cast<std::size_t>(read);
  }
  sender.join();
  EXPECT_EQ(got, bytes.size());
  // 1 MiB at 1 MB/s, less the burst.
  EXPECT_GT(MonotonicNow() - began, Duration::Millis(900));
  EXPECT_TRUE(network_->LimitRate("a", 0).ok());
}

TEST_F(NetworkTest, ALossyLinkStillDelivers) {
  ASSERT_NO_FATAL_FAILURE(Make());
  Link link;
  ASSERT_NO_FATAL_FAILURE(Connect(&link));
  ASSERT_TRUE(network_->Lose("a", 20).ok());
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(Passes(link.client, link.server)) << i;
  EXPECT_TRUE(network_->Lose("a", 0).ok());
}

TEST_F(NetworkTest, ADelayedLinkHoldsBytesBack) {
  ASSERT_NO_FATAL_FAILURE(Make(true));
  Link link;
  ASSERT_NO_FATAL_FAILURE(Connect(&link));
  ASSERT_TRUE(network_->Delay("a", Duration::Millis(60)).ok());
  const Instant began = MonotonicNow();
  EXPECT_TRUE(Passes(link.client, link.server));
  EXPECT_TRUE(Passes(link.server, link.client));
  EXPECT_GE(MonotonicNow() - began, Duration::Millis(120));
  ASSERT_TRUE(network_->Delay("a", Duration()).ok());
  shutdown(link.client, SHUT_WR);
  char byte = 0;
  ASSERT_TRUE(AwaitReadable(link.server, kBound));
  EXPECT_EQ(recv(link.server, &byte, 1, 0), 0) << "the end is passed on";
}

TEST_F(NetworkTest, APartyCanBeGivenAnotherAddress) {
  ASSERT_NO_FATAL_FAILURE(Make());
  ASSERT_TRUE(network_->Readdress("b", "198.18.0.77").ok());
  EXPECT_EQ(network_->AddressOf("b"), "198.18.0.77");
  Link link;
  ASSERT_NO_FATAL_FAILURE(Connect(&link));
}

TEST(SandboxTest, NothingOutlivesAKilledLab) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t outside = fork();
  if (outside == 0) {
    (void)EnterSandbox();
    // A grandchild in a session of its own, which holds the pipe.
    if (fork() == 0) {
      setsid();
      const char ready = 'r';
      (void)!write(ends[1], &ready, 1);
      while (true) pause();
    }
    while (true) pause();
  }
  close(ends[1]);
  char byte = 0;
  ASSERT_EQ(read(ends[0], &byte, 1), 1);
  kill(outside, SIGKILL);
  waitpid(outside, nullptr, 0);
  ASSERT_TRUE(AwaitReadable(ends[0], kBound));
  EXPECT_EQ(read(ends[0], &byte, 1), 0) << "somebody still holds the pipe";
  close(ends[0]);
}

TEST(SandboxTest, HandsOnTheExitCode) {
  const pid_t outside = fork();
  if (outside == 0) {
    (void)EnterSandbox();
    _exit(7);
  }
  int status = 0;
  ASSERT_EQ(waitpid(outside, &status, 0), outside);
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

TEST(SandboxTest, RemovesWhatDeadLabsLeftAndNothingElse) {
  const test::TempDir parent;
  for (const char* name : {"lab-dead", "lab-live", "lab-unclaimed", "other-dead"}) {
    std::filesystem::create_directories(parent.path() + "/" + name);
  }
  std::ofstream(parent.path() + "/lab-dead/lock") << "";
  std::ofstream(parent.path() + "/other-dead/lock") << "";
  ASSERT_TRUE(ClaimDirectory(parent.path() + "/lab-live").ok());
  const std::vector<std::string> removed = RemoveResidue(parent.path(), "lab");
  EXPECT_EQ(removed, std::vector<std::string>{parent.path() + "/lab-dead"});
  EXPECT_TRUE(std::filesystem::exists(parent.path() + "/lab-live"));
  EXPECT_TRUE(std::filesystem::exists(parent.path() + "/lab-unclaimed"));
  EXPECT_TRUE(std::filesystem::exists(parent.path() + "/other-dead"));
}

}  // namespace
}  // namespace muster::chaos

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  muster::chaos::sandbox = muster::chaos::EnterSandbox();
  return RUN_ALL_TESTS();
}
