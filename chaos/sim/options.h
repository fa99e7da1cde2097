// What one simulated run is made of: drawn from its seed (a swarm: each run has some kinds of
// faults and not others, so that rare combinations come up), so that the seed names the run.
#pragma once

#include <cstdint>
#include <string>

#include "protocol/prng.h"
#include "protocol/records.h"
#include "protocol/time.h"

namespace muster::sim {

// Kinds of faults. The order is part of what a seed means: append only.
enum class FaultKind {
  kKill,              // SIGKILL; comes back later
  kHostLost,          // a node goes without a word: no FIN, no attestation
  kPause,             // stands still, and wakes as if nothing had happened
  kCutConnection,     // a session breaks; what was in flight is lost
  kBlockUp,           // what a worker sends to the coordinator does not arrive
  kBlockDown,         // and the other way
  kBlockBoth,         //
  kBlockPeers,        // between two workers, one way or both; the coordinator sees both
  kSlowLink,          // messages of one worker take 50 times as long
  kStuck,             // heartbeats go on, but the training thread does not
  kSlowCompute,       // one worker computes several times slower
  kCoordinatorCrash,  // what was not synced may be lost
  kStoreLost,         // the same, and the store comes back empty
  kCoordinatorPause,  // musterd stands still; nobody may be harmed for that
  kDamage,            // a stored shard does not read back
  kDiskFull,          // shards of one worker cannot be written for a while
  kLeave,             // a planned leave
  kLauncherLost,      // a launcher alone goes and comes back
  kFlap,              // a process ends and is started again, again and again
  kCutGroup,          // all members of the generation are cut off from the coordinator together
};
inline constexpr int kFaultKinds = 20;
[[nodiscard]] const char* NameOf(FaultKind kind);

struct Options {
  std::uint64_t seed = 0;
  int workers = 4;           // processes
  int workers_per_node = 1;  // nodes have one launcher each
  int min_workers = 1;
  int max_workers = 4;
  bool sharded = false;      // state dies with its rank; checkpoints are needed
  bool checkpoints = false;  // of a replicated job; a sharded one has them anyway
  std::int64_t steps = 0;    // 0: the job does not end by itself
  std::int64_t save_every = 7;
  std::int64_t keep_every = 0;  // see JobSpec::checkpoint_keep_every
  bool total_loss = false;      // with the store all processes are lost; their files alone are left
  bool pins = false;            // some checkpoints are pinned for as long as there are faults
  Backend backend = Backend::kTcp;
  bool launchers = true;    // attest deaths
  int faults = 6;           // in the faulty phase
  std::uint32_t kinds = 0;  // bit k: FaultKind k occurs
  // Faults follow each other at interesting points (a message sent, an operation ended), and not
  // only at random times.
  bool dense = false;
  Duration step = Duration::Millis(20);
  Duration delay = Duration::Millis(2);  // the most, of a message
  Duration lease = Duration::Seconds(2);
  Duration autonomy = Duration::Seconds(40);
  Duration spread;           // within it the first processes start
  bool slow_aborts = false;  // an abort takes effect up to 30 ms later
  int drift_ppm = 0;         // the most, of a worker's clock
  Duration faulty_phase = Duration::Seconds(20);
  Duration liveness_bound = Duration::Seconds(100);  // from the last fault to 20 more steps
  bool trace = false;
  std::int64_t skip_every = 13;  // each so-manieth step has a gradient that is not finite

  [[nodiscard]] bool Has(FaultKind kind) const {
    return ((kinds >> static_cast<unsigned>(kind)) & 1U) != 0;
  }
  [[nodiscard]] static Options Draw(std::uint64_t seed);
  // One line.
  [[nodiscard]] std::string ToString() const;
};

}  // namespace muster::sim
