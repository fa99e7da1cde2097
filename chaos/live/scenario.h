// A scenario: what is started, what is broken in it and when, and what has to hold. It is read from
// a small YAML file; chaos/scenarios/README.md describes the language.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/status.h"
#include "protocol/time.h"

namespace muster::chaos {

// What is done to the run. The name in a file is the enumerator's, with hyphens: "kill",
// "lose-node", …
enum class FaultKind {
  kKill,             // SIGKILL for one worker; its launcher starts it again
  kLoseNode,         // SIGKILL for a launcher and all its workers at once; `hold` later it is back
  kKillLauncher,     // SIGKILL for a launcher alone; `hold` later a new one starts
  kPause,            // SIGSTOP for one worker, SIGCONT after `hold`
  kStop,             // SIGTERM for one worker: it leaves; its launcher does not start it again
  kStopNode,         // SIGTERM for a launcher: its workers leave; `hold` later it is back
  kDrain,            // an operator drains a node, and welcomes it again after `hold`
  kNotice,           // a spot notice: `hold` after it the node is lost; it is back later
  kWithdrawnNotice,  // the same, but the notice is withdrawn after `hold`
  kKillCoordinator,  // SIGKILL for musterd; `hold` later it starts on the same data directory
  kPauseCoordinator,
  kLoseStore,           // SIGKILL for musterd; `hold` later it starts on an empty data directory
  kCut,                 // packets between two parties are dropped, for `hold`
  kReset,               // the connections between two parties are broken (`ss -K`); no one dies
  kLinkDown,            // a node's link goes down, for `hold`
  kSlow,                // a node's link has `amount` kbit/s, for `hold`
  kLossy,               // `amount` % of the packets to a node are dropped, for `hold`
  kDelay,               // what a node sends arrives `amount` ms later, for `hold`
  kFillCheckpointDisk,  // for `hold`
  kFillIndexDisk,       // for `hold`
  kFlipBit,             // in the newest announced checkpoint, for good
  kTruncate,            // a file of the newest announced checkpoint, for good
  kStarve,              // `amount` busy loops beside the run, for `hold`
};
[[nodiscard]] std::string_view NameOf(FaultKind kind);
// In words: "a worker is killed (SIGKILL)".
[[nodiscard]] std::string_view DescriptionOf(FaultKind kind);
[[nodiscard]] std::optional<FaultKind> FaultKindNamed(std::string_view name);
// All of them, in the order above.
[[nodiscard]] const std::vector<FaultKind>& AllFaultKinds();

// What this machine lets the lab do. A fault that needs more is left out, by name.
struct Powers {
  bool network = false;  // network namespaces of its own: each node has an address
  bool mounts = false;   // a mount namespace: disks of a given size
};
// Why a fault of this kind cannot be made; empty: it can.
[[nodiscard]] std::string WhyNot(FaultKind kind, const Powers& powers);

// Inclusive on both ends; a single value has lo == hi.
template <class T>
struct Between {
  T lo{};
  T hi{};
  friend bool operator==(const Between&, const Between&) = default;
};

// Who is hit. Which of several is drawn from the seed.
struct Target {
  enum class Kind { kAny, kNode, kRank } kind = Kind::kAny;
  std::string node;        // kNode: "b"
  std::int64_t rank = 0;   // kRank: of the generation at that moment
  std::int64_t count = 1;  // so many different nodes, hit together
};

// When it happens. Times count from the first committed step of the run.
struct Trigger {
  enum class Kind {
    kAfter,   // so long after the previous fault was over and the next step was committed
    kAt,      // so long after the beginning
    kStep,    // when this step is committed
    kDuring,  // as soon as the job is seen in this phase, after the previous fault has begun
    kEvery,   // again and again, at exponential distances with this mean (a Poisson process)
  } kind = Kind::kAfter;
  Between<Duration> time{Duration::Seconds(1), Duration::Seconds(3)};  // kAfter, kAt; kEvery: mean
  Between<std::int64_t> step;
  std::string phase;  // "reform" or "save"
};

struct FaultSpec {
  FaultKind kind = FaultKind::kKill;
  Target target;
  Trigger trigger;
  Between<Duration> hold;        // zero: not undone, or nothing to undo
  Between<std::int64_t> amount;  // in the unit of the kind
  // kCut, kReset, from whom: "coordinator", "one" (another node), "nodes" (all others), "all".
  std::string from = "nodes";
  std::string direction = "both";  // kCut: "both", "out" (what the node sends is lost), "in"
};

// What has to hold beside the promises, which always have to.
struct Expectations {
  // L1: from the last moment at which something was done to the run to its next committed step.
  Duration resume_within = Duration::Seconds(10);
  // Committed steps that are taken again, at most; -1: any number.
  std::int64_t steps_redone = -1;
  // Members that are declared dead, at most; -1: any number.
  std::int64_t deaths = -1;
  // Re-forms, at least.
  std::int64_t reforms = 0;
};

struct Scenario {
  std::string name;     // of the file, without its ending
  std::string summary;  // one sentence
  std::int64_t nodes = 4;
  std::int64_t workers_per_node = 1;
  // The run is over when the job has ended, or: all faults are over, `run_for` has passed since the
  // first step, and the job has taken `calm_steps` more. Zero: not before the faults are over.
  Duration run_for;
  std::int64_t calm_steps = 20;
  // Faults of these kinds strike at random moments: the swarm. `swarm_every` is the mean distance.
  std::vector<FaultKind> swarm;
  Duration swarm_every;
  std::int64_t disk_mib = 256;  // of the disks that are filled
  std::vector<std::string> coordinator_flags;
  std::vector<std::string> launcher_flags;
  std::vector<FaultSpec> faults;
  Expectations expect;
};

// Errors name the line and column, what stands there, and what may.
[[nodiscard]] Result<Scenario> ParseScenario(std::string_view text, std::string_view name);
// `name` is a path, or the name of one in `directory` ("single-kill"). An unknown name is an error
// that lists those that there are.
[[nodiscard]] Result<Scenario> LoadScenario(const std::string& name, const std::string& directory);
// The names of the scenarios in a directory, sorted.
[[nodiscard]] std::vector<std::string> ScenariosIn(const std::string& directory);

}  // namespace muster::chaos
