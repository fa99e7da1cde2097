#include "coordinator/server/driver.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>

#include "tests/coordinator/server/support.h"

namespace muster::coordinator {
namespace {

class DriverTest : public ::testing::Test {
 protected:
  void Begin() {
    Driver::Options options;
    options.persist = store_.Function();
    options.publish = [this](const Event& event) { published_.push_back(event.kind); };
    options.retry_pause = Duration::Millis(1);
    driver_ = std::make_unique<Driver>(io_, std::move(options));
  }

  std::shared_ptr<FakeChannel> Join(const std::string& job, const std::string& worker) {
    auto channel = std::make_shared<FakeChannel>();
    const SessionId session = driver_->Open(channel);
    driver_->Receive(session, TestHello(job, worker));
    return channel;
  }

  bool RunUntil(const std::function<bool()>& done) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!done()) {
      if (std::chrono::steady_clock::now() > end) return false;
      io_.restart();
      io_.run_one_for(std::chrono::milliseconds(50));
    }
    return true;
  }

  // Everything that is ready now, with no wait.
  void Settle() {
    io_.restart();
    io_.poll();
  }

  IoContext io_{1};
  FakeStore store_;
  std::vector<EventKind> published_;
  std::unique_ptr<Driver> driver_;
};

TEST_F(DriverTest, SendsAndPublishesOnlyWhatIsDurable) {
  store_.hold = true;
  Begin();
  const auto channel = Join("a", "w0");
  Settle();
  ASSERT_EQ(store_.offers.size(), 1U);
  EXPECT_TRUE(channel->sent.empty());
  EXPECT_TRUE(published_.empty());
  store_.Answer(Status());
  ASSERT_TRUE(RunUntil([&] { return !channel->sent.empty(); }));
  EXPECT_NE(channel->sent[0].find("\"type\":\"welcome\""), std::string::npos) << channel->sent[0];
  EXPECT_FALSE(published_.empty());
}

TEST_F(DriverTest, NothingOvertakesWhatWaitsForTheStore) {
  store_.hold = true;
  Begin();
  const auto first = Join("a", "w0");
  const auto bad = std::make_shared<FakeChannel>();
  Hello other = TestHello("a", "w1");
  other.major = kProtocolMajor + 1;
  driver_->Receive(driver_->Open(bad), other);  // refused, with nothing to make durable
  Settle();
  EXPECT_TRUE(bad->sent.empty());
  EXPECT_FALSE(bad->closed);
  store_.Answer(Status());
  ASSERT_TRUE(RunUntil([&] { return bad->closed; }));
  EXPECT_FALSE(first->sent.empty());
  ASSERT_EQ(bad->sent.size(), 1U);
  EXPECT_NE(bad->sent[0].find("\"type\":\"refused\""), std::string::npos) << bad->sent[0];
}

TEST_F(DriverTest, OffersOneBatchAtATimeAndThenAllThatWaits) {
  store_.hold = true;
  Begin();
  const auto a = Join("a", "w0");
  const auto b = Join("b", "w0");
  const auto c = Join("c", "w0");
  Settle();
  ASSERT_EQ(store_.offers.size(), 1U);
  store_.Answer(Status());
  ASSERT_TRUE(RunUntil([&] { return store_.offers.size() == 1; }));
  EXPECT_FALSE(a->sent.empty());
  EXPECT_TRUE(b->sent.empty());
  EXPECT_EQ(store_.offers[0].batch.size(), 2U);  // of b and c together
  store_.Answer(Status());
  ASSERT_TRUE(RunUntil([&] { return !c->sent.empty(); }));
  EXPECT_FALSE(b->sent.empty());
}

TEST_F(DriverTest, AFailedBatchIsOfferedAgainAndNothingIsSentMeanwhile) {
  store_.hold = true;
  Begin();
  const auto channel = Join("a", "w0");
  Settle();
  const std::size_t size = store_.offers.at(0).batch.size();
  store_.Answer(ResourceExhausted("disk full"));
  ASSERT_TRUE(RunUntil([&] { return store_.offers.size() == 1; }));
  EXPECT_EQ(driver_->ready().code(), Code::kResourceExhausted);
  EXPECT_EQ(store_.offers[0].batch.size(), size);
  EXPECT_TRUE(channel->sent.empty());
  store_.Answer(Status());
  ASSERT_TRUE(RunUntil([&] { return !channel->sent.empty(); }));
  EXPECT_TRUE(driver_->ready().ok());
  EXPECT_EQ(driver_->counts().persist_failures, 1U);
}

TEST_F(DriverTest, WhileTheStoreFailsHeartbeatsAreAcknowledgedAndNothingElseIs) {
  Begin();
  auto channel = std::make_shared<FakeChannel>();
  const SessionId session = driver_->Open(channel);
  driver_->Receive(session, TestHello("a", "w0"));
  ASSERT_TRUE(RunUntil([&] { return !channel->sent.empty(); }));
  store_.hold = true;
  const auto late = Join("b", "w0");
  Settle();
  store_.Answer(ResourceExhausted("index volume full"));
  ASSERT_TRUE(RunUntil([&] { return !driver_->ready().ok(); }));

  const std::size_t before = channel->sent.size();
  for (const std::int64_t sequence : {1, 2}) {
    Heartbeat beat;
    beat.sequence = sequence;
    driver_->Receive(session, beat);
  }
  ASSERT_EQ(channel->sent.size(), before + 2);
  EXPECT_NE(channel->sent.back().find("\"type\":\"ack\""), std::string::npos)
      << channel->sent.back();
  EXPECT_TRUE(late->sent.empty());

  // Space again: all that waited goes out, once.
  ASSERT_TRUE(RunUntil([&] { return !store_.offers.empty(); }));
  store_.hold = false;
  store_.Answer(Status());
  ASSERT_TRUE(RunUntil([&] { return driver_->ready().ok(); }));
  EXPECT_EQ(late->sent.size(), 1U);
  EXPECT_EQ(channel->sent.size(), before + 2);
}

TEST_F(DriverTest, AfterStopNothingGoesOut) {
  store_.hold = true;
  Begin();
  const auto channel = Join("a", "w0");
  Settle();
  driver_->Stop();
  store_.Answer(Status());
  Settle();
  EXPECT_TRUE(channel->sent.empty());
}

TEST_F(DriverTest, ACompletionAfterItsEndIsHarmless) {
  store_.hold = true;
  Begin();
  const auto channel = Join("a", "w0");
  Settle();
  driver_.reset();
  store_.Answer(Status());
  Settle();
  EXPECT_TRUE(channel->sent.empty());
}

TEST_F(DriverTest, TimePassesWithoutInput) {
  Begin();
  const auto channel = std::make_shared<FakeChannel>();
  Hello hello = TestHello("a", "w0");
  hello.spec.min_workers = 1;
  hello.spec.max_workers = 1;
  hello.spec.failure_timeout = Duration::Millis(200);
  hello.able = true;
  driver_->Receive(driver_->Open(channel), hello);
  // Alone and complete, it is asked to form generation 1; it never answers, and is found dead.
  ASSERT_TRUE(RunUntil([&] {
    for (const EventKind kind : published_) {
      if (kind == EventKind::kWorkerDead) return true;
    }
    return false;
  }));
}

}  // namespace
}  // namespace muster::coordinator
