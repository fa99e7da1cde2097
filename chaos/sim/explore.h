// All interleavings of a small job: in each state every message, timer and thread that could go
// next is taken in turn, and every fault of a small budget is tried, on the same cores and with the
// same checkers as in the random simulator. States that are alike (fingerprint.h) are entered once.
//
// Steps of training and messages take no time. Time passes when nothing else can happen but what
// need not happen (the end of a pause, a restart, an error that may also stay away), up to the next
// thing that a timer brings about; a budget of early timers lets one overtake what is pending.
// Heartbeats and their acknowledgements arrive at once when nothing is queued before them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "chaos/sim/options.h"
#include "chaos/sim/world.h"

namespace muster::sim {

// What may go wrong on one path, each of these so often.
struct Budget {
  int kills = 0;                // of workers, each of which may be started again
  int vanishings = 0;           // the same, but nobody is told: no FIN, no attestation
  int coordinator_crashes = 0;  // the batch being synced is lost or not; it may be started again
  int store_losses = 0;         // the same, and the store comes back empty
  int pauses = 0;               // of workers, which may wake again
  int cuts = 0;                 // of connections
  int blocks = 0;               // of links between worker and coordinator: up, down or both
  int early_timers = 0;         // a timer runs out although something else is pending
  int leaves = 0;               // a worker is asked to leave
  int failures = 0;             // of a call on the data plane, although everybody lives
};

struct ExploreOptions {
  Options job;
  Budget budget;
  bool from_start = true;                 // else from when the first generation has started
  Duration unit = Duration::Millis(500);  // of the instants that are compared
  std::size_t max_depth = 600;
  std::uint64_t max_states = UINT64_MAX;
  std::uint64_t max_shorten = 200'000;  // states visited in search of a shorter way to a violation
  [[nodiscard]] static ExploreOptions Small(int workers);
};

struct ExploreResult {
  std::uint64_t states = 0;
  std::uint64_t transitions = 0;
  std::size_t depth = 0;          // the greatest
  bool complete = false;          // no bound was hit, and no violation ended the search
  bool depth_hit = false;         // the bound on depth
  std::string violation;          // the first
  std::vector<std::string> path;  // to it, or to the first state at the bound on depth; readable
};

class Explorer {
 public:
  // Called now and then; false ends the search.
  using GoOn = std::function<bool(const ExploreResult& so_far, std::size_t depth)>;

  explicit Explorer(const ExploreOptions& options) : options_(options) {}
  [[nodiscard]] ExploreResult Run(const GoOn& go_on = {});

 private:
  enum class Kind {
    kAction,          // `key` of the queue
    kTime,            // until something comes of it
    kEarlyTimer,      // of `process`, or of the coordinator
    kRelaunch,        //
    kRestart,         // of the coordinator
    kWake,            //
    kUnblock,         //
    kUnblockAndLose,  // TCP gave up meanwhile
    kKill,
    kVanish,
    kCrashLost,
    kCrashKept,
    kLoseStore,
    kPause,
    kCut,
    kBlockUp,
    kBlockDown,
    kBlockBoth,
    kLeave,
    kFail,
  };
  struct Choice {
    Kind kind = Kind::kTime;
    int process = Pending::kNobody;
    Queue::Key key;
  };
  // A state: a world, and what may still go wrong in it.
  struct Node {
    World world;
    Budget left;
    std::vector<int> relaunches;  // by worker: how often it may be started again
    bool linked = false;          // a call has failed before
  };
  using Choices = std::vector<Choice>;
  // The first pending action of each channel, and what order counts in.
  struct Channel {
    int kind = 0;
    std::int64_t id = 0;
    friend auto operator<=>(const Channel&, const Channel&) = default;
  };
  struct Frame {
    std::unique_ptr<Node> node;
    Choices choices;
    std::size_t next = 0;
  };

  // explore.cc
  [[nodiscard]] std::unique_ptr<Node> Root(bool trace) const;
  [[nodiscard]] std::string Search(const GoOn& go_on, std::size_t max_depth,
                                   std::uint64_t max_states, ExploreResult* result, bool* stopped);
  void NotePath(const std::vector<Frame>& stack);
  // "" or what broke.
  [[nodiscard]] static std::string TryPerform(Node& node, const Choice& choice);
  void Shorten(const GoOn& go_on, ExploreResult* result);
  [[nodiscard]] std::vector<std::string> Replay(const std::vector<std::size_t>& path) const;
  [[nodiscard]] static std::string LabelOf(const Node& node, const Choice& choice);

  // explore_choices.cc
  [[nodiscard]] static Choices ChoicesOf(const Node& node);
  static void AddEndsOfFaults(const Node& node, Choices* choices);
  static void AddFaults(const Node& node, Choices* choices);
  static void AddFaultsOfWorker(const Node& node, const Process& p, Choices* choices);
  [[nodiscard]] static bool Over(const World& world);
  [[nodiscard]] static std::optional<Channel> ChannelOf(const Pending& pending);
  [[nodiscard]] static const Session* SessionOf(const World& world, SessionId id);
  [[nodiscard]] static std::vector<int> TimersOf(const World& world);
  [[nodiscard]] static bool Enabled(const World& world, const Pending& pending);
  [[nodiscard]] static bool Lazy(const Pending& pending);
  [[nodiscard]] static bool Stale(const World& world, const Pending& pending);
  [[nodiscard]] static bool PumpActs(const World& world, const Process& p);
  [[nodiscard]] static std::vector<Queue::Key> Ready(const World& world);

  // explore_perform.cc
  // Goes on from `node` by one choice. What breaks is in the world's verdict.
  static void Perform(Node& node, const Choice& choice);
  static void PerformFault(Node& node, const Choice& choice);
  static void Unblock(Node& node, Process& p, bool lose);
  static void FailCall(Node& node, Process& p);
  static void Crash(World& world, bool keep, bool lose_store);
  static void PassTime(Node& node);
  [[nodiscard]] static Instant DeadlineOf(const World& world, int process);
  static void FireTimer(World& world, int process, Instant at);
  static void Settle(Node& node);
  static void DropStale(World& world);
  [[nodiscard]] static bool Eager(const Node& node, const Pending& pending);

  // explore_state.cc
  [[nodiscard]] std::uint64_t FingerprintOf(const Node& node) const;
  static void AddProcess(const World& world, const Process& p, class Fingerprint& print);
  static void AddPlanes(const World& world, class Fingerprint& print);
  [[nodiscard]] static std::uint64_t QueueOf(const World& world, const class Fingerprint& empty);

  const ExploreOptions options_;
  std::unordered_map<std::uint64_t, std::uint32_t> seen_;  // the least depth that it was seen at
  bool shortening_ = false;
  std::vector<std::size_t> found_;  // the path to the violation
};

}  // namespace muster::sim
