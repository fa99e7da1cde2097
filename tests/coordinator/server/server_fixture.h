// A whole server on a free port, with its clients on the same thread.
#pragma once

#include <gtest/gtest.h>

#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/server/server.h"
#include "protocol/transport/dialer.h"
#include "tests/coordinator/server/support.h"

namespace muster::coordinator {

class ServerTest : public ::testing::Test {
 protected:
  struct Client {
    std::shared_ptr<Channel> channel;
    std::vector<Message> received;
    std::optional<Status> closed;

    // The first message of this type that came; null when there is none.
    template <class T>
    [[nodiscard]] const T* Find() const {
      for (const Message& message : received) {
        if (const T* found = std::get_if<T>(&message)) return found;
      }
      return nullptr;
    }
  };

  ~ServerTest() override {
    for (const auto& client : clients_) {
      if (client->channel != nullptr) client->channel->Abort(Status());
    }
  }

  void Begin(ServerOptions options = {}) {
    options.listen = {"127.0.0.1", 0};
    if (!options.driver.persist) options.driver.persist = store_.Function();
    server_ = std::make_unique<Server>(io_, std::move(options));
    const Status started = server_->Start();
    ASSERT_TRUE(started.ok()) << started.ToString();
    url_ = "http://" + server_->address().ToString();
  }

  bool RunUntil(const std::function<bool()>& done) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!done()) {
      if (std::chrono::steady_clock::now() > end) return false;
      io_.restart();
      io_.run_one_for(std::chrono::milliseconds(50));
    }
    return true;
  }

  // A started channel to the server; `error` gets why there is none.
  Client* Dial(const std::string& token = "", Status* error = nullptr) {
    DialOptions options;
    options.url = url_;
    options.token = token;
    bool answered = false;
    clients_.push_back(std::make_unique<Client>());
    Client* client = clients_.back().get();
    AsyncDial(io_, options, [&](Result<std::shared_ptr<Channel>> channel) {
      answered = true;
      if (channel.ok()) {
        client->channel = std::move(channel).value();
      } else if (error != nullptr) {
        *error = channel.status();
      }
    });
    EXPECT_TRUE(RunUntil([&] { return answered; }));
    if (client->channel != nullptr) {
      client->channel->Start(
          [client](std::string_view text) {
            Result<Message> message = Decode(text);
            ASSERT_TRUE(message.ok()) << message.status().ToString();
            client->received.push_back(std::move(message).value());
          },
          [client](const Status& why) { client->closed = why; });
    }
    return client;
  }

  // A worker that was welcomed.
  Client* Join(const std::string& job, const std::string& worker) {
    Client* client = Dial();
    client->channel->Send(Encode(TestHello(job, worker)));
    EXPECT_TRUE(RunUntil([&] { return client->Find<Welcome>() != nullptr; }));
    return client;
  }

  // Sends bytes on a bare connection, and returns all that comes back until it is closed.
  std::string Exchange(const std::string& bytes, bool shut_down = false) {
    Socket socket(io_.get_executor());
    socket.connect(Tcp::endpoint(net::ip::make_address("127.0.0.1"), server_->address().port));
    net::write(socket, net::buffer(bytes));
    if (shut_down) socket.shutdown(Socket::shutdown_send);
    std::string answer;
    bool ended = false;
    net::async_read(socket, net::dynamic_buffer(answer),
                    [&](const ErrorCode&, std::size_t) { ended = true; });
    EXPECT_TRUE(RunUntil([&] { return ended; }));
    return answer;
  }

  std::string Get(const std::string& target, const std::string& headers = "") {
    return Exchange("GET " + target + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + headers +
                    "\r\n");
  }

  IoContext io_{1};
  FakeStore store_;
  std::unique_ptr<Server> server_;
  std::string url_;
  std::vector<std::unique_ptr<Client>> clients_;
};

}  // namespace muster::coordinator
