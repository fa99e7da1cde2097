// How long a float32 sum over all ranks takes, ranks being threads of this process that talk over
// loopback TCP. Beside it, for scale, what memcpy takes for the same bytes.
#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "protocol/check.h"
#include "worker/collective/socket.h"
#include "worker/collective/tcp_communicator.h"
#include "worker/collective/tcp_listener.h"

namespace muster {
namespace {

std::vector<std::unique_ptr<TcpCommunicator>> Connected(std::int32_t size) {
  std::vector<std::unique_ptr<TcpListener>> listeners;
  TcpGroup group{JobName("bench"), Lineage(1), Generation(1), Rank(0), {}};
  for (std::int32_t rank = 0; rank < size; ++rank) {
    listeners.push_back(std::make_unique<TcpListener>(TcpListener::Bind({"127.0.0.1", 0}).value()));
    group.endpoints.push_back(listeners.back()->address());
  }
  std::vector<std::unique_ptr<TcpCommunicator>> ranks;
  std::vector<std::jthread> threads;
  for (std::int32_t rank = 0; rank < size; ++rank) {
    group.rank = Rank(rank);
    ranks.push_back(std::make_unique<TcpCommunicator>(*listeners[static_cast<std::size_t>(rank)],
                                                      group, TcpOptions{}));
    threads.emplace_back([&ours = *ranks.back()] {
      const Status status = ours.Connect();
      MUSTER_CHECK(status.ok(), status.message());
    });
  }
  threads.clear();
  return ranks;
}

// Rank 0 is this thread and measures; the others follow it, one barrier and one all-reduce at a
// time, until it says that it is the last.
void AllReduce(benchmark::State& state) {
  const auto size = static_cast<std::int32_t>(state.range(0));
  const auto bytes = static_cast<std::size_t>(state.range(1));
  const auto ranks = Connected(size);
  const auto round = [bytes](Communicator& ours, std::vector<std::byte>& buffer, bool last) {
    std::int64_t flag = last ? 1 : 0;
    Status status =
        ours.Broadcast(std::as_writable_bytes(std::span<std::int64_t, 1>(&flag, 1)), Rank(0));
    MUSTER_CHECK(status.ok(), status.message());
    const Instant start = PollClockNow();
    if (flag == 0) {
      status =
          ours.AllReduce(std::span(buffer).first(bytes), ElementType::kFloat32, ReduceOp::kSum);
    }
    MUSTER_CHECK(status.ok(), status.message());
    return flag == 0 ? (PollClockNow() - start).ToSeconds() : -1.0;
  };
  std::vector<std::jthread> threads;
  for (std::int32_t rank = 1; rank < size; ++rank) {
    threads.emplace_back([&ours = *ranks[static_cast<std::size_t>(rank)], bytes, round] {
      std::vector<std::byte> buffer(bytes);
      while (round(ours, buffer, false) >= 0) continue;
    });
  }
  std::vector<std::byte> buffer(bytes);
  for (auto _ : state) state.SetIterationTime(round(*ranks[0], buffer, false));
  round(*ranks[0], buffer, true);
  state.SetBytesProcessed(state.iterations() * state.range(1));
}

void Memcpy(benchmark::State& state) {
  std::vector<std::byte> from(static_cast<std::size_t>(state.range(0)));
  std::vector<std::byte> to(from.size());
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), from.size());
    benchmark::DoNotOptimize(to.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

BENCHMARK(AllReduce)
    ->ArgNames({"ranks", "bytes"})
    ->ArgsProduct({{2, 4}, {8, 1 << 10, 1 << 16, 1 << 20, 1 << 24}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(Memcpy)
    ->ArgName("bytes")
    ->RangeMultiplier(1 << 4)
    ->Range(1 << 20, 1 << 24)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace muster

BENCHMARK_MAIN();
