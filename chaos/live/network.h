// The network of a run: one namespace for each node and one for the coordinator, each with one
// address, joined by a bridge; and what can go wrong in it. Made of the commands `ip`, `tc`, `nft`
// and `ss` inside a sandbox that has the power for it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "protocol/status.h"
#include "protocol/time.h"

namespace muster::chaos {

enum class Direction {
  kBoth,
  kOut,  // only what the first party sends is lost
  kIn,   // only what it would receive
};

// One thread makes all calls. Parties are named: a node by its name, the coordinator "musterd".
class Network {
 public:
  // With `delays`, connections that a party opens pass through a small proxy of the lab's in its
  // namespace, so that Delay() works (this kernel need not have netem). Errors name the command
  // that failed and what it said.
  [[nodiscard]] static Result<std::unique_ptr<Network>> Make(
      const std::vector<std::string>& parties, bool delays);
  virtual ~Network() = default;

  // The address of a party, "198.18.0.10". The lab itself reaches all of them.
  [[nodiscard]] virtual std::string AddressOf(const std::string& party) const = 0;
  // For Process: start it there. Stays ours.
  [[nodiscard]] virtual int NamespaceOf(const std::string& party) const = 0;

  // Packets between `party` and `other` are dropped silently, until Heal. Cuts add up.
  [[nodiscard]] virtual Status Cut(const std::string& party, const std::string& other,
                                   Direction direction) = 0;
  // No route from `party` to `other`: what it sends vanishes (a blackhole route).
  [[nodiscard]] virtual Status Blackhole(const std::string& party, const std::string& other) = 0;
  [[nodiscard]] virtual Status Heal(const std::string& party, const std::string& other) = 0;
  // Breaks the TCP connections between the two that exist now; new ones can be made at once.
  // Returns how many there were.
  [[nodiscard]] virtual Result<int> Reset(const std::string& party, const std::string& other) = 0;
  [[nodiscard]] virtual Status SetLink(const std::string& party, bool up) = 0;
  // What the party sends, and what it is sent, is limited to so much each; 0: unlimited.
  [[nodiscard]] virtual Status LimitRate(const std::string& party, std::int64_t kbit) = 0;
  // So many percent of the packets that it is sent, and that it sends, are dropped; 0: none.
  [[nodiscard]] virtual Status Lose(const std::string& party, std::int64_t percent) = 0;
  // What it sends over connections that it has opened, and gets back over them, arrives so much
  // later. REQUIRES: made with `delays`.
  [[nodiscard]] virtual Status Delay(const std::string& party, Duration by) = 0;
  // Gives the party this address instead of its own; connections over the old one hang.
  [[nodiscard]] virtual Status Readdress(const std::string& party, const std::string& address) = 0;
};

}  // namespace muster::chaos
