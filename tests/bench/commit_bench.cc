// Prints what the commit of a large checkpoint costs the coordinator, as one line of JSON:
//   commit_bench DIRECTORY [RANKS [TENSORS]]
// DIRECTORY is empty or does not exist, and is to lie on the disk that is measured.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "tests/bench/commit_path.h"

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4) {
    std::fputs("usage: commit_bench DIRECTORY [RANKS [TENSORS]]\n", stderr);
    return 2;
  }
  const int ranks = argc > 2 ? std::atoi(argv[2]) : 10'000;
  const int tensors = argc > 3 ? std::atoi(argv[3]) : 10'000;
  if (ranks < 1 || tensors < 1) {
    std::fputs("commit_bench: RANKS and TENSORS are positive numbers\n", stderr);
    return 2;
  }
  const auto cost = muster::bench::MeasureCommit(argv[1], ranks, tensors);
  if (!cost.ok()) {
    std::fprintf(stderr, "commit_bench: %s\n", cost.status().message().c_str());
    return 1;
  }
  std::puts(fmt::format("{{\"ranks\":{},\"tensors\":{},\"shards_ms\":{:.1f},\"commit_ms\":{:.1f},"
                        "\"commit_bytes\":{},\"bytes_per_file\":{:.1f},\"announce_ms\":{:.1f},"
                        "\"announce_bytes\":{}}}",
                        ranks, tensors, cost->shards_ms, cost->commit_ms, cost->commit_bytes,
                        static_cast<double>(cost->commit_bytes) / ranks, cost->announce_ms,
                        cost->announce_bytes)
                .c_str());
  return 0;
}
