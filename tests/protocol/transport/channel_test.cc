#include "protocol/transport/channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <boost/asio/write.hpp>

#include "protocol/limits.h"
#include "tests/protocol/transport/server_fixture.h"

namespace muster {
namespace {

TEST_F(TransportTest, CarriesTextBothWaysInOrder) {
  ConnectPair();
  Collect(client_, at_client_);
  Collect(server_, at_server_);
  for (int i = 0; i < 100; ++i) client_->Send("up " + std::to_string(i));
  const auto shared = std::make_shared<const std::string>("down");
  server_->Send(shared);
  server_->Send(shared);
  ASSERT_TRUE(RunUntil([&] { return at_server_.texts.size() == 100; }));
  ASSERT_TRUE(RunUntil([&] { return at_client_.texts.size() == 2; }));
  EXPECT_EQ(at_server_.texts.front(), "up 0");
  EXPECT_EQ(at_server_.texts.back(), "up 99");
  EXPECT_EQ(at_client_.texts.back(), "down");
  EXPECT_EQ(server_->peer_address(), "127.0.0.1");
  EXPECT_EQ(client_->local_address(), "127.0.0.1");
}

TEST_F(TransportTest, CarriesAMessageOfTheGreatestSizeButNoLarger) {
  ConnectPair();
  Collect(client_, at_client_);
  Collect(server_, at_server_);
  client_->Send(std::string(kMaxMessageBytes, 'x'));
  ASSERT_TRUE(RunUntil([&] { return at_server_.texts.size() == 1; }));
  EXPECT_EQ(at_server_.texts[0].size(), kMaxMessageBytes);
  client_->Send(std::string(kMaxMessageBytes + 1, 'x'));
  ASSERT_TRUE(RunUntil([&] { return at_server_.closed == 1 && at_client_.closed == 1; }));
  EXPECT_EQ(at_server_.why.code(), Code::kInvalidArgument) << at_server_.why.ToString();
  EXPECT_EQ(at_server_.texts.size(), 1U);
}

TEST_F(TransportTest, CloseSendsWhatIsQueuedFirst) {
  ConnectPair();
  Collect(client_, at_client_);
  Collect(server_, at_server_);
  for (int i = 0; i < 50; ++i) server_->Send(std::string(1000, 'y'));
  server_->Close();
  server_->Send("too late");
  ASSERT_TRUE(RunUntil([&] { return at_server_.closed == 1 && at_client_.closed == 1; }));
  EXPECT_EQ(at_client_.texts.size(), 50U);
  EXPECT_TRUE(at_server_.why.ok()) << at_server_.why.ToString();
  EXPECT_EQ(at_client_.why.code(), Code::kUnavailable);
}

TEST_F(TransportTest, AbortReportsItsReasonOnceAndLater) {
  ConnectPair();
  Collect(server_, at_server_);
  Collect(client_, at_client_);
  server_->Abort(Fenced("gone"));
  server_->Abort(Internal("not this one"));
  EXPECT_EQ(at_server_.closed, 0);
  ASSERT_TRUE(RunUntil([&] { return at_server_.closed == 1 && at_client_.closed == 1; }));
  EXPECT_EQ(at_server_.why.code(), Code::kFenced);
  EXPECT_EQ(server_->native_handle(), -1);
}

TEST_F(TransportTest, AbortBeforeStartIsReportedByStart) {
  ConnectPair();
  server_->Abort(Fenced("gone"));
  Collect(server_, at_server_);
  ASSERT_TRUE(RunUntil([&] { return at_server_.closed == 1; }));
  EXPECT_EQ(at_server_.why.code(), Code::kFenced);
}

TEST_F(TransportTest, CutsOffAPeerThatDoesNotRead) {
  ConnectPair();  // the client is never started: it reads nothing
  Collect(server_, at_server_);
  const auto text = std::make_shared<const std::string>(std::size_t{1} << 20U, 'z');
  for (int i = 0; i < 200 && at_server_.closed == 0; ++i) {
    server_->Send(text);
    io_.restart();
    io_.poll();
  }
  ASSERT_TRUE(RunUntil([&] { return at_server_.closed == 1; }));
  EXPECT_EQ(at_server_.why.code(), Code::kResourceExhausted) << at_server_.why.ToString();
  client_->Abort(Status());
}

TEST_F(TransportTest, CloseIsBoundedWhenThePeerDoesNotRead) {
  ConnectPair();
  Collect(server_, at_server_);
  for (int i = 0; i < 20; ++i) server_->Send(std::string(std::size_t{1} << 20U, 'z'));
  server_->Close();
  ASSERT_TRUE(RunUntil([&] { return at_server_.closed == 1; }));
  EXPECT_TRUE(at_server_.why.ok());
  client_->Abort(Status());
}

TEST_F(TransportTest, RefusesBytesThatAreNoFrames) {
  const auto raw = std::make_shared<Socket>(io_.get_executor());
  ServeOneChannel();
  raw->connect(Tcp::endpoint(net::ip::make_address("127.0.0.1"), port()));
  const std::string head =
      "GET /v1/session HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
      "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
  net::write(*raw, net::buffer(head));
  ASSERT_TRUE(RunUntil([&] { return server_ != nullptr; }));
  Collect(server_, at_server_);
  net::write(*raw, net::buffer(std::string(64, '\xff')));
  // The connection fails in order: this side waits for the peer to go away.
  raw->shutdown(Socket::shutdown_send);
  ASSERT_TRUE(RunUntil([&] { return at_server_.closed == 1; }));
  EXPECT_EQ(at_server_.why.code(), Code::kInvalidArgument) << at_server_.why.ToString();
  EXPECT_TRUE(at_server_.texts.empty());
}

TEST_F(TransportTest, SocketsAreClosedOnExec) {
  ConnectPair();
  for (const int fd :
       {client_->native_handle(), server_->native_handle(), acceptor_.native_handle()}) {
    EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  }
  client_->Abort(Status());
  server_->Abort(Status());
}

TEST_F(TransportTest, SendsTheTokenAndTheHost) {
  ConnectPair("s3cret");
  EXPECT_NE(request_.find("GET /v1/session HTTP/1.1\r\n"), std::string::npos) << request_;
  EXPECT_NE(request_.find("Authorization: Bearer s3cret\r\n"), std::string::npos) << request_;
  EXPECT_NE(request_.find("Host: 127.0.0.1:" + std::to_string(port())), std::string::npos);
  client_->Abort(Status());
  server_->Abort(Status());
}

}  // namespace
}  // namespace muster
