// How the ranks of a communicator of the NCCL double find each other. TEST CODE.
//
// A unique id names a thread in the process that made it, which waits for ever until every rank has
// checked in, tells each of all others, and ends. Nothing stops it earlier: ids whose ranks do not
// come leave a thread and a socket behind, as NCCL's do.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <vector>

#include "tests/gpu/double/double_sockets.h"

namespace muster::gpu_double {

// Who checks in, and what all others learn of it. Sent as it lies in memory.
struct Member {
  std::uint64_t magic = 0;
  std::int32_t world_size = 0;
  std::int32_t rank = 0;
  std::uint64_t host = 0;  // a hash of NCCL_HOSTID, or of the machine's name
  std::uint64_t bus = 0;   // a hash of the device's PCI bus id
  std::uint32_t port = 0;  // where it listens for the others
  std::uint32_t unused = 0;
};

// A new id, and its thread.
[[nodiscard]] ncclUniqueId MakeId();
// What distinguishes the id; dies when it is none of the double's.
[[nodiscard]] std::uint64_t MagicOf(const ncclUniqueId& id);

enum class CheckedIn { kDone, kRefused, kInterrupted, kPeerGone };

// Meets the others at the id's thread. Blocks until all have come. `members` is by rank. kRefused:
// this rank is there already, or the others expect another world size.
[[nodiscard]] CheckedIn CheckIn(const ncclUniqueId& id, const Member& self,
                                const Interrupt& interrupt, std::vector<Member>* members);

[[nodiscard]] std::uint64_t HostHash();
[[nodiscard]] std::uint64_t BusHash();

}  // namespace muster::gpu_double
