// A connection from every rank to every other, and moving bytes over them. TEST CODE.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tests/gpu/double/double_bootstrap.h"
#include "tests/gpu/double/double_sockets.h"

namespace muster::gpu_double {

// What a piece of data belongs to. Sent before it and compared: ranks that run different operations
// against each other have a bug, which NCCL answers with a hang or with wrong data; the double
// dies.
struct Label {
  std::uint32_t kind = 0;      // which operation, which phase of it
  std::uint32_t sequence = 0;  // of the collectives; 0 between pairs
  std::uint32_t type = 0;
  std::uint32_t detail = 0;  // the reduction or the root
  std::uint64_t bytes = 0;

  friend bool operator==(const Label&, const Label&) = default;
};

struct Outgoing {
  Label label;
  const std::byte* data = nullptr;  // label.bytes
};
struct Incoming {
  Label label;
  std::byte* data = nullptr;
};

class Mesh {
 public:
  enum Purpose : std::uint32_t { kControl = 1, kData = 2 };

  // Connects to all others; returns when they have connected too.
  [[nodiscard]] Outcome Form(const std::vector<Member>& members, int rank, Purpose purpose,
                             const Socket& listener, const Interrupt& interrupt);
  // Everything for everyone at once: by rank, each list in order. kPeerGone leaves in `gone` who.
  [[nodiscard]] Outcome Exchange(std::vector<std::vector<Outgoing>> outgoing,
                                 std::vector<std::vector<Incoming>> incoming,
                                 const Interrupt& interrupt, int* gone);

  [[nodiscard]] std::vector<Socket>& links() { return links_; }
  void Close() { links_.clear(); }

 private:
  std::vector<Socket> links_;  // by rank; none to itself
};

}  // namespace muster::gpu_double
