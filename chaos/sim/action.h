// What is going to happen in a simulated job, as plain data: so that a world can be copied, and one
// of several things that are pending can be chosen to happen next.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <utility>
#include <variant>
#include <vector>

#include "chaos/sim/options.h"
#include "chaos/sim/piece.h"
#include "protocol/check.h"
#include "protocol/messages.h"

namespace muster::sim {

enum class OpKind { kConnect, kExchange, kReduce, kVote };
// One collective: all members of a generation enter it under the same key.
struct OpKey {
  Lineage lineage;
  Generation generation;
  OpKind kind = OpKind::kConnect;
  Step step;
  // Over NCCL, where those meet who have the same; else zero.
  std::uint64_t group = 0;
  friend auto operator<=>(const OpKey&, const OpKey&) = default;
};
enum class Ended { kDone, kFailed, kAborted };

// Control plane. Messages and the end of one direction of a session keep their order.
struct ToCoordinator {
  SessionId session;
  Message message;
};
struct CoordinatorHearsClose {
  SessionId session;
};
struct ToWorker {
  SessionId session;
  Message message;
};
struct WorkerHearsClose {
  SessionId session;
};
struct DialEnds {
  std::int64_t number = 0;
};
struct WorkerTimer {};
struct CoordinatorTimer {};
struct Synced {};  // the oldest batch of the store is durable
// Data plane.
struct OperationEnds {
  std::int64_t serial = 0;  // of the call
  Ended how = Ended::kDone;
  Rank peer;
};
// The training thread, and the thread that aborts and saves.
enum class Thread { kComputed, kVote, kRestored, kApplied, kCallAborted, kAbortDone, kPump };
struct Continue {
  Thread what = Thread::kPump;
  Generation generation;  // kRestored: of the record; kAbortDone: of what is aborted
};
enum class FileWork { kShard, kManifest, kRemoval, kSweep };
struct FileDone {
  FileWork what = FileWork::kShard;
  CheckpointKey key{};
  Lineage lineage{};
  Rank rank{};
  std::int32_t world_size = 0;
  Piece piece{};              // kShard: what the snapshot took
  CheckpointRecord record{};  // kManifest
  SweepCheckpoints sweep{};   // kSweep
};
// The world around.
struct Launch {};
struct StartCoordinatorAgain {};
struct NextFault {};
struct EndFault {
  FaultKind kind = FaultKind::kKill;
  int worker = -1;
  int other = -1;     // of a link between workers
  bool both = false;  // its directions
};
struct Heal {};

using Action =
    std::variant<ToCoordinator, CoordinatorHearsClose, ToWorker, WorkerHearsClose, DialEnds,
                 WorkerTimer, CoordinatorTimer, Synced, OperationEnds, Continue, FileDone, Launch,
                 StartCoordinatorAgain, NextFault, EndFault, Heal>;

// `life` is that of the process, or of the coordinator, that the action belongs to: when that life
// is over, it does not happen.
struct Pending {
  int process = kNobody;
  std::int64_t life = 0;
  Action what;

  static constexpr int kNobody = -1;
  static constexpr int kCoordinator = -2;
};

// Things happen in the order of their instants, and of their scheduling where these are equal.
class Queue {
 public:
  using Key = std::pair<Instant, std::uint64_t>;
  void Add(Instant when, Pending pending) {
    entries_.emplace(Key(when, next_++), std::move(pending));
  }
  [[nodiscard]] bool empty() const { return entries_.empty(); }
  [[nodiscard]] Instant next() const {
    return entries_.empty() ? Instant::Never() : entries_.begin()->first.first;
  }
  // REQUIRES: the key is there.
  [[nodiscard]] Pending Take(const Key& key) {
    const auto it = entries_.find(key);
    MUSTER_CHECK(it != entries_.end(), "no such pending action");
    Pending pending = std::move(it->second);
    entries_.erase(it);
    return pending;
  }
  [[nodiscard]] const std::map<Key, Pending>& entries() const { return entries_; }

 private:
  std::map<Key, Pending> entries_;
  std::uint64_t next_ = 0;
};

}  // namespace muster::sim
