// A listening socket and an io_context run by the test's own thread until a condition holds.
#pragma once

#include <gtest/gtest.h>

#include <boost/asio/read_until.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "protocol/transport/channel.h"
#include "protocol/transport/dialer.h"
#include "protocol/transport/sockets.h"

namespace muster {

class TransportTest : public ::testing::Test {
 protected:
  TransportTest() : acceptor_(io_.get_executor()) {
    const Status status = Listen(acceptor_, HostPort{"127.0.0.1", 0});
    EXPECT_TRUE(status.ok()) << status.ToString();
  }

  [[nodiscard]] std::uint16_t port() const { return acceptor_.local_endpoint().port(); }
  [[nodiscard]] std::string url() const { return "http://127.0.0.1:" + std::to_string(port()); }

  // Runs the io_context until `done()`; false when that takes longer than 20 s.
  bool RunUntil(const std::function<bool()>& done) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!done()) {
      if (std::chrono::steady_clock::now() > end) return false;
      io_.restart();
      io_.run_one_for(std::chrono::milliseconds(100));
    }
    return true;
  }

  // Accepts one connection and hands on its socket.
  void AcceptOne(std::function<void(Socket)> then) {
    acceptor_.async_wait(Acceptor::wait_read, [this, then = std::move(then)](const ErrorCode& e) {
      if (e) return;
      Result<Socket> socket = AcceptStream(acceptor_);
      ASSERT_TRUE(socket.ok()) << socket.status().ToString();
      then(std::move(socket).value());
    });
  }

  // Accepts one connection, reads its request and makes a channel of it.
  void ServeOneChannel() {
    AcceptOne([this](Socket socket) {
      const auto held = std::make_shared<Socket>(std::move(socket));
      const auto head = std::make_shared<std::string>();
      net::async_read_until(*held, net::dynamic_buffer(*head), "\r\n\r\n",
                            [this, held, head](const ErrorCode& e, std::size_t) {
                              ASSERT_FALSE(e) << e.message();
                              request_ = *head;
                              AsyncAccept(std::move(*held), *head,
                                          [this](Result<std::shared_ptr<Channel>> channel) {
                                            ASSERT_TRUE(channel.ok());
                                            server_ = channel.value();
                                          });
                            });
    });
  }

  // Both ends of one channel, not yet started.
  void ConnectPair(const std::string& token = "") {
    ServeOneChannel();
    DialOptions options;
    options.url = url();
    options.token = token;
    AsyncDial(io_, options, [this](Result<std::shared_ptr<Channel>> channel) {
      ASSERT_TRUE(channel.ok()) << channel.status().ToString();
      client_ = channel.value();
    });
    ASSERT_TRUE(RunUntil([this] { return client_ != nullptr && server_ != nullptr; }));
  }

  struct Received {
    std::vector<std::string> texts;
    int closed = 0;
    Status why;
  };
  static void Collect(const std::shared_ptr<Channel>& channel, Received& into) {
    channel->Start([&into](std::string_view text) { into.texts.emplace_back(text); },
                   [&into](const Status& why) {
                     ++into.closed;
                     into.why = why;
                   });
  }

  IoContext io_{1};
  Acceptor acceptor_;
  std::string request_;
  std::shared_ptr<Channel> client_;
  std::shared_ptr<Channel> server_;
  // Declared after the io_context: callbacks that refer to them never run after their end.
  Received at_client_;
  Received at_server_;
};

}  // namespace muster
