#include "worker/collective/local_communicator.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <utility>

#include "protocol/check.h"
#include "worker/collective/tcp_communicator.h"

namespace muster {

Result<std::vector<std::unique_ptr<Communicator>>> MakeLocalGroup(std::int32_t world_size,
                                                                  Duration progress_deadline) {
  MUSTER_CHECK(world_size >= 1, "a group has at least one rank");
  const auto size = static_cast<std::size_t>(world_size);
  std::vector<std::vector<UniqueFd>> sockets(size);
  for (std::vector<UniqueFd>& row : sockets) row.resize(size);
  for (std::size_t low = 0; low < size; ++low) {
    for (std::size_t high = low + 1; high < size; ++high) {
      std::array<int, 2> pair{};
      if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair.data()) != 0) {
        return FromErrno(errno, "socket pair of a local group; raise the limit on open files");
      }
      sockets[low][high] = UniqueFd(pair[0]);
      sockets[high][low] = UniqueFd(pair[1]);
    }
  }
  std::vector<std::unique_ptr<Communicator>> group;
  for (std::size_t rank = 0; rank < size; ++rank) {
    group.push_back(std::make_unique<TcpCommunicator>(Rank(static_cast<std::int32_t>(rank)),
                                                      std::move(sockets[rank]), "local",
                                                      progress_deadline));
  }
  return group;
}

}  // namespace muster
