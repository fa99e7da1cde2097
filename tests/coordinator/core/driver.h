// Drives a real Coordinator in virtual time, keeps what it made durable, and holds every effect to
// the contract of effects.h. Shared by the golden scenarios and the random ones.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/core/coordinator.h"

namespace muster::coordinator {

class Driver {
 public:
  explicit Driver(const Config& config);

  // Hands it in at now(), and keeps the effects for Take().
  void Handle(const Input& input);
  // A message on a session; "10.0.0.1" is the peer's address.
  void Receive(SessionId session, Message message);
  // Lets time pass up to `until`, with a tick at each deadline and a call of `pulse` every
  // `period`.
  void RunUntil(Instant until, Duration period, const std::function<void()>& pulse);
  // The coordinator dies and comes back with what it had persisted, or with an empty store.
  void Restart(bool empty);

  [[nodiscard]] Effects Take() { return std::exchange(effects_, Effects{}); }
  [[nodiscard]] Instant now() const { return now_; }
  [[nodiscard]] const Coordinator& core() const { return *core_; }
  [[nodiscard]] const std::map<JobName, StoredJob>& store() const { return store_; }
  // Broken promises, one line each; empty when all is well.
  [[nodiscard]] const std::vector<std::string>& violations() const { return violations_; }

 private:
  void Collect();
  void Apply(const Persist& persist);
  void CheckSend(const Send& send);
  void Violation(std::string text) { violations_.push_back(std::move(text)); }

  const Config config_;
  Instant now_ = Instant::FromNanos(1'000'000'000);
  std::unique_ptr<Coordinator> core_;
  std::uint64_t lives_ = 0;
  std::map<JobName, StoredJob> store_;
  Effects effects_;
  std::vector<std::string> violations_;
};

}  // namespace muster::coordinator
