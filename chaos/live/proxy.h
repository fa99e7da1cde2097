// A TCP proxy that holds back what passes through it, for kernels without netem.
#pragma once

#include <memory>

#include "protocol/status.h"
#include "protocol/time.h"

namespace muster::chaos {

// Takes the connections that a rule of the kernel redirects to it, opens each again to where it was
// meant for, and passes bytes on in order, both ways, no sooner than `delay` after they came. The
// end of one side's bytes, and a reset, are passed on too. Its own connections carry kMark.
class Proxy {
 public:
  static constexpr int kMark = 77;

  // Listens in the network namespace; its thread runs until the object is destroyed.
  [[nodiscard]] static Result<std::unique_ptr<Proxy>> Start(int network);
  virtual ~Proxy() = default;
  [[nodiscard]] virtual int port() const = 0;
  // Any thread. Bytes that are on their way keep the delay that they came with.
  virtual void SetDelay(Duration delay) = 0;
};

}  // namespace muster::chaos
