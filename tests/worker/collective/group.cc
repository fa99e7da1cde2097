#include "tests/worker/collective/group.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>
#include <utility>

#include "worker/collective/local_communicator.h"

namespace muster::testing {

Listeners::Listeners(std::int32_t count, const std::string& host) {
  for (std::int32_t i = 0; i < count; ++i) {
    Result<TcpListener> listener = TcpListener::Bind({host, 0});
    MUSTER_CHECK(listener.ok(), listener.status().message());
    listeners_.push_back(std::make_unique<TcpListener>(std::move(*listener)));
  }
}

TcpGroup Listeners::Group(std::int32_t rank, std::int32_t size, std::int64_t generation,
                          const std::string& host) const {
  TcpGroup group{JobName("job"), Lineage(7), Generation(generation), Rank(rank), {}};
  for (std::int32_t i = 0; i < size; ++i) {
    group.endpoints.push_back({host, listeners_[static_cast<std::size_t>(i)]->address().port});
  }
  return group;
}

std::vector<Status> OnEach(std::int32_t size, const std::function<Status(std::int32_t)>& body) {
  std::vector<Status> statuses(static_cast<std::size_t>(size));
  std::vector<std::jthread> threads;
  for (std::int32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { statuses[static_cast<std::size_t>(rank)] = body(rank); });
  }
  threads.clear();
  return statuses;
}

std::vector<Status> OnAll(const Ranks& ranks, const std::function<Status(Communicator&)>& body) {
  return OnEach(static_cast<std::int32_t>(ranks.size()),
                [&](std::int32_t rank) { return body(*ranks[static_cast<std::size_t>(rank)]); });
}

std::string Unlike(Code code, const std::vector<Status>& statuses) {
  std::string text;
  for (std::size_t rank = 0; rank < statuses.size(); ++rank) {
    if (statuses[rank].code() == code) continue;
    text += "rank " + std::to_string(rank) + ": " + statuses[rank].ToString() + "\n";
  }
  return text;
}

Ranks TcpRanks(std::int32_t size, Duration progress_deadline) {
  Listeners listeners(size);
  Ranks ranks;
  for (std::int32_t rank = 0; rank < size; ++rank) {
    ranks.push_back(std::make_unique<TcpCommunicator>(
        listeners.of(rank), listeners.Group(rank, size, 1),
        TcpOptions{.forming_deadline = kBound, .progress_deadline = progress_deadline}));
  }
  const std::vector<Status> statuses = OnAll(
      ranks, [](Communicator& ours) { return static_cast<TcpCommunicator&>(ours).Connect(); });
  EXPECT_EQ(Unlike(Code::kOk, statuses), "");
  return ranks;
}

Ranks LocalRanks(std::int32_t size, Duration progress_deadline) {
  Result<Ranks> ranks = MakeLocalGroup(size, progress_deadline);
  EXPECT_TRUE(ranks.ok()) << ranks.status().ToString();
  return std::move(ranks).value();
}

std::vector<std::vector<UniqueFd>> TcpSockets(std::int32_t size) {
  std::vector<std::vector<UniqueFd>> sockets(static_cast<std::size_t>(size));
  Listeners listeners(1);
  const std::vector<SocketAddress> addresses =
      Resolve({"127.0.0.1", listeners.of(0).address().port}, false).value();
  for (auto& row : sockets) row.resize(sockets.size());
  for (std::size_t low = 0; low < sockets.size(); ++low) {
    for (std::size_t high = low + 1; high < sockets.size(); ++high) {
      UniqueFd dialled(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      EXPECT_EQ(::connect(dialled.get(), addresses[0].get(), addresses[0].size), 0);
      UniqueFd accepted(::accept(listeners.of(0).fd(), nullptr, nullptr));
      EXPECT_TRUE(accepted.valid());
      sockets[low][high] = std::move(accepted);
      sockets[high][low] = std::move(dialled);
    }
  }
  return sockets;
}

bool Eventually(const std::function<bool()>& holds) {
  const Instant deadline = PollClockNow() + kBound;
  while (!holds()) {
    if (PollClockNow() >= deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace muster::testing
