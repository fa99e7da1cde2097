#include "protocol/transport/dialer.h"

#include <gtest/gtest.h>

#include <boost/asio/write.hpp>
#include <optional>
#include <thread>

#include "protocol/transport/http_get.h"
#include "tests/protocol/transport/server_fixture.h"

namespace muster {
namespace {

class DialerTest : public TransportTest {
 protected:
  Status DialError(const std::string& target, Duration timeout = Duration::Seconds(10)) {
    DialOptions options;
    options.url = target;
    options.timeout = timeout;
    std::optional<Status> result;
    AsyncDial(io_, options, [&result](const Result<std::shared_ptr<Channel>>& channel) {
      result = channel.status();
    });
    EXPECT_FALSE(result) << "called back from within AsyncDial";
    EXPECT_TRUE(RunUntil([&result] { return result.has_value(); }));
    return result.value_or(Status());
  }

  // Answers the next connection with these bytes, once its request has come.
  void AnswerOne(const std::string& answer) {
    AcceptOne([answer](Socket socket) {
      const auto held = std::make_shared<Socket>(std::move(socket));
      const auto text = std::make_shared<std::string>();
      net::async_read_until(*held, net::dynamic_buffer(*text), "\r\n\r\n",
                            [held, text, answer](const ErrorCode&, std::size_t) {
                              ErrorCode ignored;
                              net::write(*held, net::buffer(answer), ignored);
                            });
    });
  }
};

TEST_F(DialerTest, SaysThatNothingListens) {
  const std::string target = url();
  acceptor_.close();
  const Status status = DialError(target);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find(target), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("refused"), std::string::npos) << status.message();
}

TEST_F(DialerTest, RefusesABadUrl) {
  EXPECT_EQ(DialError("ftp://x").code(), Code::kInvalidArgument);
}

TEST_F(DialerTest, GivesUpOnAServerThatDoesNotAnswer) {
  const Status status = DialError(url(), Duration::Millis(200));  // the backlog takes it
  EXPECT_EQ(status.code(), Code::kUnavailable) << status.ToString();
}

TEST_F(DialerTest, ExplainsARefusedToken) {
  AnswerOne("HTTP/1.1 401 Unauthorized\r\nContent-Length: 9\r\n\r\nbad token");
  const Status status = DialError(url());
  EXPECT_EQ(status.code(), Code::kPermissionDenied);
  EXPECT_NE(status.message().find("MUSTER_TOKEN"), std::string::npos) << status.message();
}

TEST_F(DialerTest, SaysThatSomethingElseListens) {
  AnswerOne("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
  EXPECT_EQ(DialError(url()).code(), Code::kFailedPrecondition);
  AnswerOne("SSH-2.0-OpenSSH_9.2\r\n\r\n");
  const Status status = DialError(url());
  EXPECT_EQ(status.code(), Code::kFailedPrecondition) << status.ToString();
}

TEST_F(DialerTest, TriesTheAddressesOfANameOneAfterTheOther) {
  ServeOneChannel();  // on 127.0.0.1 alone; localhost may well be ::1 first
  DialOptions options;
  options.url = "http://localhost:" + std::to_string(port());
  AsyncDial(io_, options, [this](Result<std::shared_ptr<Channel>> channel) {
    ASSERT_TRUE(channel.ok()) << channel.status().ToString();
    client_ = channel.value();
  });
  ASSERT_TRUE(RunUntil([this] { return client_ != nullptr; }));
  client_->Abort(Status());
}

TEST_F(DialerTest, ReachesIpv6Literals) {
  Acceptor v6(io_.get_executor());
  if (!Listen(v6, HostPort{"::1", 0}).ok()) GTEST_SKIP() << "no IPv6 here";
  const std::string target = "http://[::1]:" + std::to_string(v6.local_endpoint().port());
  const Status status = DialError(target, Duration::Millis(300));
  // Connected (no one accepts): the handshake is what was waited for.
  EXPECT_NE(status.message().find("handshake"), std::string::npos) << status.message();
}

TEST_F(DialerTest, NamesAnAddressInUse) {
  Acceptor second(io_.get_executor());
  const Status status = Listen(second, HostPort{"127.0.0.1", port()});
  EXPECT_EQ(status.code(), Code::kAlreadyExists);
  EXPECT_NE(status.message().find("127.0.0.1:" + std::to_string(port()) + " is in use"),
            std::string::npos)
      << status.message();
}

TEST_F(DialerTest, NamesAnAddressOfAnotherMachine) {
  Acceptor second(io_.get_executor());
  EXPECT_EQ(Listen(second, HostPort{"192.0.2.1", 0}).code(), Code::kInvalidArgument);
}

// HttpGet blocks, so it runs on a thread of its own while the test serves.
class HttpGetTest : public DialerTest {
 protected:
  Result<std::string> Get(const std::string& answer, Duration timeout = Duration::Seconds(10)) {
    if (!answer.empty()) AnswerOne(answer);
    std::optional<Result<std::string>> result;
    std::atomic<bool> finished = false;
    std::thread client([&, target = url()] {
      result = HttpGet(target, "/v1/jobs", "", timeout);
      finished = true;
    });
    EXPECT_TRUE(RunUntil([&] { return finished.load(); }));
    client.join();
    return *result;
  }
};

TEST_F(HttpGetTest, ReturnsTheBody) {
  const Result<std::string> body = Get("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
  ASSERT_TRUE(body.ok()) << body.status().ToString();
  EXPECT_EQ(*body, "hello");
}

TEST_F(HttpGetTest, TurnsOtherAnswersIntoAStatus) {
  const Result<std::string> missing =
      Get("HTTP/1.1 404 Not Found\r\nContent-Length: 12\r\n\r\nno job 'x'\r\n");
  EXPECT_EQ(missing.status().code(), Code::kNotFound);
  EXPECT_NE(missing.status().message().find("no job 'x'"), std::string::npos);
  const Result<std::string> denied = Get("HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n");
  EXPECT_EQ(denied.status().code(), Code::kPermissionDenied);
  EXPECT_EQ(Get("garbage\r\n\r\n").status().code(), Code::kFailedPrecondition);
}

TEST_F(HttpGetTest, GivesUpInTime) {
  EXPECT_EQ(Get("", Duration::Millis(200)).status().code(), Code::kUnavailable);
}

TEST_F(HttpGetTest, SaysThatNothingListens) {
  const std::string target = url();
  acceptor_.close();
  const Status status = HttpGet(target, "/v1/jobs", "", Duration::Seconds(5)).status();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find(target), std::string::npos) << status.message();
}

// What happens by chance to a worker that tries a port on which nobody listens, done on purpose.
TEST(SelfConnection, IsNoticed) {
  IoContext io;
  Socket socket(io.get_executor(), Tcp::v4());
  socket.bind({net::ip::address_v4::loopback(), 0});
  socket.connect(socket.local_endpoint());
  EXPECT_TRUE(ConnectedToItself(socket));
  Tcp::acceptor acceptor(io, {net::ip::address_v4::loopback(), 0});
  Socket other(io.get_executor());
  EXPECT_FALSE(ConnectedToItself(other));
  other.connect(acceptor.local_endpoint());
  EXPECT_FALSE(ConnectedToItself(other));
}

}  // namespace
}  // namespace muster
