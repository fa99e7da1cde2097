// What the tests of the communicators share: groups of ranks as threads of this process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "protocol/status.h"
#include "protocol/time.h"
#include "worker/collective/communicator.h"
#include "worker/collective/tcp_communicator.h"
#include "worker/collective/tcp_listener.h"

namespace muster::testing {

// Longer than any test may take: what returns earlier did not wait for it.
inline constexpr Duration kForever = Duration::Seconds(3600);
// What a test waits for something that has to happen.
inline constexpr Duration kBound = Duration::Seconds(60);

using Ranks = std::vector<std::unique_ptr<Communicator>>;

// Listeners of the ranks of a group, each bound to any free port of `host`.
class Listeners {
 public:
  explicit Listeners(std::int32_t count, const std::string& host = "127.0.0.1");
  [[nodiscard]] TcpListener& of(std::int32_t rank) {
    return *listeners_[static_cast<std::size_t>(rank)];
  }
  // The group as `rank` sees it, made of the first `size` listeners, reached by `host`.
  [[nodiscard]] TcpGroup Group(std::int32_t rank, std::int32_t size, std::int64_t generation,
                               const std::string& host = "127.0.0.1") const;

 private:
  std::vector<std::unique_ptr<TcpListener>> listeners_;
};

// Runs `body` for each rank in a thread of its own, and waits for all.
std::vector<Status> OnEach(std::int32_t size, const std::function<Status(std::int32_t)>& body);
// The same with the rank's communicator.
std::vector<Status> OnAll(const Ranks& ranks, const std::function<Status(Communicator&)>& body);
// One line for each rank that did not end with `code`; empty when all did.
std::string Unlike(Code code, const std::vector<Status>& statuses);

// A connected group over TCP on loopback, and its in-process twin. Failures to connect fail the
// test.
Ranks TcpRanks(std::int32_t size, Duration progress_deadline = kForever);
Ranks LocalRanks(std::int32_t size, Duration progress_deadline = kForever);

// Connected TCP sockets between all pairs of `size` ranks, for tests that play a rank by hand.
std::vector<std::vector<UniqueFd>> TcpSockets(std::int32_t size);

// Waits, without sleeping for a fixed time, until `holds`; false when it did not within kBound.
bool Eventually(const std::function<bool()>& holds);

}  // namespace muster::testing
