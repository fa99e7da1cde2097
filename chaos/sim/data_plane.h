// The collectives of one simulated job. An operation completes when all members of its generation
// have entered it, and then on each rank at its own time: a failure in between leaves any subset
// with a result. Who waits for a dead or aborted peer gets an error or hangs until it is aborted.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "chaos/sim/events.h"
#include "protocol/prng.h"
#include "protocol/records.h"

namespace muster::sim {

enum class Ended { kDone, kFailed, kAborted };

class DataPlane {
 public:
  // `paused` says whether a worker's process stands still.
  DataPlane(Events& events, Prng& prng, Duration delay)
      : events_(events), prng_(prng), delay_(delay) {}

  using Callback = std::function<void(Ended, Rank failed_peer)>;
  // `me` enters operation `name` of the record's generation. The callback comes once, later.
  void Enter(const GenerationRecord& record, const Member& me, const std::string& name,
             Callback done);
  // Takes `me` out of whatever it is in (kAborted at once), and out of its communicators: peers
  // that wait for it in generations up to now fail or hang.
  void Abort(const Member& me);
  // Its process is gone: like Abort, without a callback.
  void Kill(const Member& me);

 private:
  struct Waiting {
    Member member;
    Callback done;
  };
  struct Operation {
    GenerationRecord record;
    std::vector<Waiting> inside;
  };
  using Key = std::pair<Generation, std::string>;
  void Leave(const Member& me, bool call);
  void FailPeers(const Member& me);

  Events& events_;
  Prng& prng_;
  const Duration delay_;
  std::map<Key, Operation> operations_;
  std::map<Member, std::shared_ptr<Waiting>> pending_;  // complete, its callback on the way
  std::map<Member, std::set<Generation>> joined_;       // communicators that exist
  std::map<Member, std::set<Generation>> aborted_;      // and those given up
  std::map<Member, std::uint64_t> lives_;               // callbacks of an earlier life are dropped
};

}  // namespace muster::sim
