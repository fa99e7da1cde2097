#include "worker/cli/launcher_session.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <thread>

#include "protocol/codec.h"
#include "tests/protocol/transport/server_fixture.h"

namespace muster::cli {
namespace {

class LauncherSessionTest : public TransportTest {
 protected:
  void TearDown() override {
    if (server_ != nullptr) server_->Abort(Unavailable("the test is over"));
    io_.restart();
    io_.poll();
    session_.reset();
  }

  void StartSession() {
    session_ = std::make_unique<LauncherSession>(SessionOptions{
        .url = url(), .token = "secret", .job = JobName("lm"), .node = NodeName("n1"), .seed = 1});
  }

  // The launcher's next connection, and what comes through it.
  void AwaitConnection() {
    server_.reset();
    at_server_ = {};
    ServeOneChannel();
    ASSERT_TRUE(RunUntil([this] { return server_ != nullptr; }));
    Collect(server_, at_server_);
  }

  template <class T>
  T MessageAt(std::size_t index) {
    EXPECT_TRUE(RunUntil([&] { return at_server_.texts.size() > index; }));
    if (at_server_.texts.size() <= index) return {};
    const Result<Message> message = Decode(at_server_.texts[index]);
    EXPECT_TRUE(message.ok() && std::holds_alternative<T>(*message)) << at_server_.texts[index];
    return message.ok() && std::holds_alternative<T>(*message) ? std::get<T>(*message) : T{};
  }

  [[nodiscard]] bool HasNews() const {
    pollfd entry{.fd = session_->news_fd(), .events = POLLIN, .revents = 0};
    return poll(&entry, 1, 0) == 1;
  }

  SessionNews AwaitNews() {
    pollfd entry{.fd = session_->news_fd(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&entry, 1, 20'000), 1);
    const std::vector<SessionNews> news = session_->TakeNews();
    EXPECT_EQ(news.size(), 1U);
    return news.empty() ? SessionNews{} : news.front();
  }

  static Attest Alive(const std::string& worker, std::int64_t pid) {
    return {.worker = WorkerId(worker), .pid = pid, .alive = true, .detail = ""};
  }
  static Attest Dead(const std::string& worker, std::int64_t pid) {
    return {.worker = WorkerId(worker), .pid = pid, .alive = false, .detail = "killed"};
  }

  std::unique_ptr<LauncherSession> session_;
};

TEST_F(LauncherSessionTest, SaysWhoItIsAndThenWhatItReports) {
  StartSession();
  session_->Report(Alive("n1-0", 10));
  AwaitConnection();
  EXPECT_NE(request_.find("Bearer secret"), std::string::npos);
  const auto hello = MessageAt<LauncherHello>(0);
  EXPECT_EQ(hello.job, JobName("lm"));
  EXPECT_EQ(hello.node, NodeName("n1"));
  EXPECT_EQ(MessageAt<Attest>(1), Alive("n1-0", 10));
  session_->Report(Dead("n1-0", 10));
  EXPECT_EQ(MessageAt<Attest>(2), Dead("n1-0", 10));
}

TEST_F(LauncherSessionTest, RepeatsTheLatestOfEachWorkerOnANewConnection) {
  StartSession();
  AwaitConnection();
  // Once it is connected every report is a message; before, only the latest of each worker is.
  (void)MessageAt<LauncherHello>(0);
  session_->Report(Alive("n1-0", 10));
  session_->Report(Alive("n1-1", 11));
  session_->Report(Dead("n1-0", 10));
  EXPECT_EQ(MessageAt<Attest>(3), Dead("n1-0", 10));
  server_->Abort(Unavailable("the coordinator dies"));
  AwaitConnection();
  (void)MessageAt<LauncherHello>(0);
  EXPECT_EQ(MessageAt<Attest>(1), Dead("n1-0", 10));
  EXPECT_EQ(MessageAt<Attest>(2), Alive("n1-1", 11));
}

TEST_F(LauncherSessionTest, ReportsMadeWhileNobodyListensArriveLater) {
  acceptor_.close();
  session_ = std::make_unique<LauncherSession>(SessionOptions{
      .url = "http://127.0.0.1:1", .token = "", .job = JobName("lm"), .node = NodeName("n1")});
  session_->Report(Alive("n1-0", 10));
  const SessionNews news = AwaitNews();
  EXPECT_NE(news.line.find("http://127.0.0.1:1"), std::string::npos) << news.line;
  EXPECT_FALSE(news.end.has_value());
}

TEST_F(LauncherSessionTest, PassesOnTheEndOfTheJob) {
  StartSession();
  AwaitConnection();
  server_->Send(Encode(Ended{.end = {.kind = EndKind::kFinished, .step = Step(7), .reason = "x"}}));
  (void)MessageAt<LauncherHello>(0);
  ASSERT_TRUE(RunUntil([this] { return HasNews(); }));
  const SessionNews news = AwaitNews();
  ASSERT_TRUE(news.end.has_value());
  EXPECT_EQ(news.end->step, Step(7));
}

TEST_F(LauncherSessionTest, AFinalRefusalIsToldWithItsReason) {
  StartSession();
  AwaitConnection();
  server_->Send(Encode(Refused{.code = Code::kInvalidArgument, .reason = "another protocol"}));
  ASSERT_TRUE(RunUntil([this] { return HasNews(); }));
  EXPECT_NE(AwaitNews().line.find("another protocol"), std::string::npos);
}

TEST_F(LauncherSessionTest, GarbageFromTheOtherSideIsIgnored) {
  StartSession();
  AwaitConnection();
  server_->Send(std::string("{\"type\":\"nonsense\"}"));
  server_->Send(std::string("\x01"));
  session_->Report(Alive("n1-0", 10));
  EXPECT_EQ(MessageAt<Attest>(1), Alive("n1-0", 10));
}

// What was reported last is what counts most: it is sent before the session closes.
TEST_F(LauncherSessionTest, ItsEndSendsWhatIsQueued) {
  StartSession();
  AwaitConnection();
  (void)MessageAt<LauncherHello>(0);
  for (int i = 0; i < 200; ++i) session_->Report(Dead("n1-" + std::to_string(i), i));
  // The destructor waits for the close handshake, which this thread has to answer.
  std::jthread end([this] { session_.reset(); });
  EXPECT_TRUE(RunUntil([this] { return at_server_.closed == 1; }));
  EXPECT_EQ(at_server_.texts.size(), 201U);
}

}  // namespace
}  // namespace muster::cli
