#include "coordinator/server/server.h"

#include <gtest/gtest.h>

#include "protocol/limits.h"
#include "tests/coordinator/server/server_fixture.h"

namespace muster::coordinator {
namespace {

TEST_F(ServerTest, WelcomesAWorkerAndShowsItsJob) {
  Begin();
  const Client* worker = Join("a", "w0");
  EXPECT_EQ(worker->Find<Welcome>()->observed_address, "127.0.0.1");
  const std::string job = Get("/v1/jobs/a");
  EXPECT_NE(job.find("HTTP/1.1 200 OK"), std::string::npos) << job;
  EXPECT_NE(job.find("\"worker\":\"w0\""), std::string::npos) << job;
  EXPECT_NE(Get("/v1/jobs/a/events").find("\"kind\":\"job_created\""), std::string::npos);
  EXPECT_NE(Get("/metrics").find("muster_sessions 1\n"), std::string::npos);
  EXPECT_NE(Get("/nothing").find("HTTP/1.1 404"), std::string::npos);
}

TEST_F(ServerTest, KeepsAConnectionForSeveralRequests) {
  Begin();
  const std::string answer = Exchange(
      "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
      "GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::size_t first = answer.find("HTTP/1.1 200");
  EXPECT_NE(answer.find("HTTP/1.1 200", first + 1), std::string::npos) << answer;
}

TEST_F(ServerTest, RefusesGarbageWithAReasonAndHarmsNoOneElse) {
  Begin();
  const Client* healthy = Join("a", "w0");
  const std::string deep =
      "{\"type\":\"hello\",\"x\":" + std::string(50, '[') + std::string(50, ']') + "}";
  for (const std::string& text :
       {std::string("not JSON"), std::string("{}"), std::string("{\"type\":\"no_such\"}"),
        std::string("{\"type\":\"hello\",\"major\":1}"), deep, Encode(Heartbeat{}),
        Encode(Welcome{})}) {
    Client* bad = Dial();
    bad->channel->Send(text);
    ASSERT_TRUE(RunUntil([&] { return bad->closed.has_value(); })) << text;
    ASSERT_NE(bad->Find<Refused>(), nullptr) << text;
    EXPECT_FALSE(bad->Find<Refused>()->reason.empty());
  }
  EXPECT_FALSE(healthy->closed.has_value());
  EXPECT_EQ(server_->driver().Describe(JobName("a"))->workers.size(), 1U);
  EXPECT_EQ(server_->driver().counts().sessions, 1U);
}

TEST_F(ServerTest, RefusesGarbageFromAnEstablishedWorkerToo) {
  Begin();
  Client* worker = Join("a", "w0");
  worker->channel->Send("garbage");
  ASSERT_TRUE(RunUntil([&] { return worker->closed.has_value(); }));
  EXPECT_NE(worker->Find<Refused>(), nullptr);
  ASSERT_TRUE(RunUntil([&] { return server_->driver().counts().sessions == 0; }));
  Client* twice = Join("b", "w0");
  twice->channel->Send(Encode(TestHello("b", "w0")));
  ASSERT_TRUE(RunUntil([&] { return twice->closed.has_value(); }));
  EXPECT_EQ(twice->Find<Refused>()->code, Code::kFailedPrecondition);
}

// GroupId goes both ways; what only the coordinator says does not.
TEST_F(ServerTest, TakesFromWorkersWhatWorkersSay) {
  Begin();
  Client* member = Join("a", "w0");
  member->channel->Send(Encode(GroupId{Generation(1), "any bytes"}));
  Heartbeat beat;
  beat.sequence = 1;
  member->channel->Send(Encode(beat));
  ASSERT_TRUE(RunUntil([&] { return member->Find<Ack>() != nullptr; }));
  EXPECT_FALSE(member->closed.has_value());
  member->channel->Send(Encode(Start{Generation(1)}));
  ASSERT_TRUE(RunUntil([&] { return member->closed.has_value(); }));
  ASSERT_NE(member->Find<Refused>(), nullptr);
}

TEST_F(ServerTest, CutsOffAnOversizedMessage) {
  Begin();
  Client* client = Dial();
  client->channel->Send(std::string(kMaxMessageBytes + 1, ' '));
  ASSERT_TRUE(RunUntil([&] { return client->closed.has_value(); }));
  EXPECT_EQ(server_->driver().counts().sessions, 0U);
}

TEST_F(ServerTest, NamesBothVersionsWhenTheMajorOneDiffers) {
  Begin();
  Client* client = Dial();
  Hello hello = TestHello("a", "w0");
  hello.major = kProtocolMajor + 8;
  client->channel->Send(Encode(hello));
  ASSERT_TRUE(RunUntil([&] { return client->closed.has_value(); }));
  const Refused* refused = client->Find<Refused>();
  ASSERT_NE(refused, nullptr);
  EXPECT_NE(refused->reason.find(std::to_string(kProtocolMajor + 8)), std::string::npos)
      << refused->reason;
  EXPECT_NE(refused->reason.find(std::to_string(kProtocolMajor) + "."), std::string::npos);
}

TEST_F(ServerTest, AnswersWhatIsNoHttp) {
  Begin();
  const Client* healthy = Join("a", "w0");
  EXPECT_NE(Exchange("garbage\r\n\r\n").find("HTTP/1.1 400"), std::string::npos);
  // The beginning of a TLS ClientHello.
  const std::string tls("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);
  EXPECT_NE(Exchange(tls + std::string(500, 'x')).find("HTTP/1.1 400"), std::string::npos);
  EXPECT_EQ(Exchange("", true), "");
  EXPECT_EQ(Exchange("GET /livez HT", true).find("HTTP/1.1 200"), std::string::npos);
  EXPECT_NE(Exchange("GET /" + std::string(20'000, 'x')).find("HTTP/1.1 400"), std::string::npos);
  EXPECT_FALSE(healthy->closed.has_value());
}

TEST_F(ServerTest, ClosesConnectionsThatSayNothing) {
  Begin();
  Client* silent = Dial();             // a WebSocket without a hello
  EXPECT_EQ(Exchange("GET /li"), "");  // half a request, and then silence
  ASSERT_TRUE(RunUntil([&] { return silent->closed.has_value(); }));
  ASSERT_NE(silent->Find<Refused>(), nullptr);
  EXPECT_EQ(silent->Find<Refused>()->code, Code::kDeadlineExceeded);
}

TEST_F(ServerTest, AsksForTheToken) {
  ServerOptions options;
  options.token = "s3cret";
  Begin(std::move(options));
  Status error;
  Dial("wrong", &error);
  EXPECT_EQ(error.code(), Code::kPermissionDenied) << error.ToString();
  Dial("", &error);
  EXPECT_EQ(error.code(), Code::kPermissionDenied);
  EXPECT_NE(Dial("s3cret")->channel, nullptr);
  EXPECT_NE(Get("/v1/jobs").find("HTTP/1.1 401"), std::string::npos);
  EXPECT_NE(Get("/v1/jobs", "Authorization: Bearer s3cret\r\n").find("HTTP/1.1 200"),
            std::string::npos);
}

TEST_F(ServerTest, BoundsTheConnections) {
  ServerOptions options;
  options.max_connections = 2;
  Begin(std::move(options));
  const Client* first = Join("a", "w0");
  const Client* second = Join("a", "w1");
  EXPECT_EQ(Get("/livez"), "");  // closed at once
  EXPECT_FALSE(first->closed.has_value());
  EXPECT_FALSE(second->closed.has_value());
}

TEST_F(ServerTest, NamesAPortInUse) {
  Begin();
  ServerOptions options;
  options.listen = server_->address();
  options.driver.persist = store_.Function();
  Server second(io_, std::move(options));
  const Status status = second.Start();
  EXPECT_EQ(status.code(), Code::kAlreadyExists);
  EXPECT_NE(status.message().find("is in use"), std::string::npos) << status.message();
}

TEST_F(ServerTest, TellsWorkersNothingThatIsNotDurable) {
  store_.hold = true;
  Begin();
  Client* worker = Dial();
  worker->channel->Send(Encode(TestHello("a", "w0")));
  ASSERT_TRUE(RunUntil([&] { return !store_.offers.empty(); }));
  EXPECT_TRUE(worker->received.empty());
  store_.Answer(ResourceExhausted("no space left on device"));
  ASSERT_TRUE(RunUntil([&] { return !server_->driver().ready().ok(); }));
  const std::string ready = Get("/readyz");
  EXPECT_NE(ready.find("HTTP/1.1 503"), std::string::npos);
  EXPECT_NE(ready.find("no space left on device"), std::string::npos) << ready;
  EXPECT_TRUE(worker->received.empty());
  ASSERT_TRUE(RunUntil([&] { return !store_.offers.empty(); }));
  store_.Answer(Status());
  ASSERT_TRUE(RunUntil([&] { return worker->Find<Welcome>() != nullptr; }));
  EXPECT_NE(Get("/readyz").find("HTTP/1.1 200"), std::string::npos);
}

TEST_F(ServerTest, ItsOwnLatenessIsNotBlamedOnWorkers) {
  Begin();
  Client* worker = Dial();
  Hello hello = TestHello("a", "w0");
  hello.spec.failure_timeout = Duration::Millis(300);
  worker->channel->Send(Encode(hello));
  ASSERT_TRUE(RunUntil([&] { return worker->Find<Welcome>() != nullptr; }));
  // The thread that serves stands still for longer than the lease, while a heartbeat waits.
  Heartbeat heartbeat;
  heartbeat.sequence = 1;
  worker->channel->Send(Encode(heartbeat));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (std::chrono::steady_clock::now() < end) continue;
  ASSERT_TRUE(RunUntil([&] { return worker->Find<Ack>() != nullptr; }));
  EXPECT_GE(server_->driver().counts().lag, Duration::Millis(500));
  const std::string events = Get("/v1/jobs/a/events");
  EXPECT_EQ(events.find("worker_dead"), std::string::npos) << events;
  EXPECT_EQ(events.find("worker_suspected"), std::string::npos) << events;
}

TEST_F(ServerTest, CutsOffAWorkerThatDoesNotRead) {
  Begin();
  Client* healthy = Dial();
  Hello patient = TestHello("a", "w0");
  patient.spec.failure_timeout = Duration::Seconds(60);
  healthy->channel->Send(Encode(patient));
  // A client that asks for answers without end and reads none of them.
  Socket socket(io_.get_executor());
  socket.open(Tcp::v4());
  socket.set_option(net::socket_base::receive_buffer_size(4096));
  socket.connect(Tcp::endpoint(net::ip::make_address("127.0.0.1"), server_->address().port));
  std::string request =
      "GET /v1/session HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
      "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
  net::write(socket, net::buffer(request));
  const auto frame = [](const std::string& text) {  // masked with zeros
    std::string bytes("\x81\xfe", 2);
    bytes += static_cast<char>(text.size() >> 8U);
    bytes += static_cast<char>(text.size() & 0xffU);
    return bytes + std::string(4, '\0') + text;
  };
  net::write(socket, net::buffer(frame(Encode(TestHello("b", "w0")))));
  const std::string heartbeat = frame(Encode(Heartbeat{}));
  std::string many;
  for (int i = 0; i < 1000; ++i) many += heartbeat;
  bool cut = false;
  std::function<void()> flood = [&] {
    net::async_write(socket, net::buffer(many), [&](const ErrorCode& error, std::size_t) {
      cut = static_cast<bool>(error);
      if (!cut) flood();
    });
  };
  flood();
  ASSERT_TRUE(RunUntil([&] { return cut; }));
  EXPECT_FALSE(healthy->closed.has_value());
  ASSERT_TRUE(RunUntil([&] { return server_->driver().counts().sessions == 1; }));
}

TEST_F(ServerTest, StopClosesSessionsInOrder) {
  Begin();
  const Client* worker = Join("a", "w0");
  const int written = store_.written;
  bool stopped = false;
  server_->Stop([&] { stopped = true; });
  ASSERT_TRUE(RunUntil([&] { return stopped && worker->closed.has_value(); }));
  EXPECT_EQ(worker->Find<Refused>(), nullptr);
  EXPECT_EQ(store_.written, written) << "the end of a session was taken for news of its worker";
}

}  // namespace
}  // namespace muster::coordinator
