// Drives the coordinator's core: hands it messages and the time, makes its decisions durable, and
// only then lets them out.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/coordinator.h"
#include "coordinator/server/log.h"
#include "protocol/transport/channel.h"
#include "protocol/transport/net.h"

namespace muster::coordinator {

// Makes a batch durable and calls `done` once, from any thread. Batches come one at a time: the
// next only after `done`. One that failed is offered again.
using PersistDone = std::function<void(Status)>;
using PersistFunction = std::function<void(std::vector<Persist> batch, PersistDone done)>;

// Confined to the thread that runs its io_context; so are all callbacks of its making.
class Driver {
 public:
  struct Options {
    Config config;
    std::uint64_t seed = 0;  // draws lineages
    std::vector<StoredJob> stored;
    PersistFunction persist;
    std::function<void(const Event&)> publish;     // an event whose cause is durable
    Log* log = nullptr;                            // may be null; outlives the driver
    Duration retry_pause = Duration::Millis(500);  // after a failure of the store
  };

  Driver(IoContext& io, Options options);
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // A session whose first message is at hand. The channel is used for sending and closing alone.
  [[nodiscard]] SessionId Open(std::shared_ptr<Channel> channel);
  void Receive(SessionId session, Message message);
  // The channel of the session has ended. Call it once for each Open.
  void Closed(SessionId session);

  // An operator's command: Drain or ForceAdopt. What comes of it shows in Describe().
  void Command(const Input& input);

  // From now on nothing goes in and nothing comes out: what happens to sessions while the server
  // ends says nothing about the workers.
  void Stop();

  [[nodiscard]] std::vector<JobName> Jobs() const { return core_.Jobs(); }
  [[nodiscard]] std::optional<JobView> Describe(const JobName& job) const;
  // Ok, or why decisions cannot be made durable now.
  [[nodiscard]] const Status& ready() const { return ready_; }

  struct Counts {
    std::size_t sessions = 0;
    std::uint64_t received = 0;
    std::uint64_t sent = 0;
    std::uint64_t persisted = 0;
    std::uint64_t persist_failures = 0;
    Duration lag;
  };
  [[nodiscard]] Counts counts() const;

 private:
  // Work under way holds the driver by this, since completions may come after its end.
  struct Alive {};

  void Handle(const Input& input);
  void CreditLag(Instant now);
  void Watch();
  void Arm();
  void OnTimer();
  void DrainThenTick(int hops, int quiet, std::uint64_t seen);
  void Pump();
  void Offer();
  void OnPersisted(const Status& status);
  void Emit(const Effects& effects);
  void SendAcknowledgements(Effects* effects);
  template <class F>
  [[nodiscard]] auto Guarded(F function);

  IoContext& io_;
  const PersistFunction persist_;
  const std::function<void(const Event&)> publish_;
  Log* const log_;
  const Duration retry_pause_;
  Coordinator core_;

  std::map<SessionId, std::shared_ptr<Channel>> sessions_;
  SessionId last_session_;

  // Effects in the order in which the core gave them. The first `offered_` of them are with the
  // store; none behind them may overtake.
  std::deque<Effects> pending_;
  std::size_t offered_ = 0;
  Status ready_;
  Timer retry_;

  Timer timer_;  // the core's next deadline
  Instant armed_ = Instant::Never();
  Timer watch_;  // measures how late this thread is
  Instant expected_;
  bool ticking_ = false;
  bool stopped_ = false;
  Counts counts_;
  std::shared_ptr<Alive> alive_;
};

}  // namespace muster::coordinator
