// The coordinator's core: all jobs, no I/O. The server and the simulator are two drivers of it.
//
//   core.Handle(input, now);  do(core.TakeEffects());  wait until core.NextDeadline(): Handle(Tick)
//
// Same inputs at the same instants give the same effects. Confined to one thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/describe.h"
#include "coordinator/core/effects.h"
#include "coordinator/core/input.h"
#include "protocol/prng.h"

namespace muster::coordinator {

class Job;

// One job as the store remembers it.
struct StoredJob {
  JobRecord record;
  std::vector<CheckpointEntry> checkpoints;  // in the order of commit
};

class Coordinator {
 public:
  // `seed` feeds the drawing of lineages alone. REQUIRES: config.Validate().ok()
  Coordinator(const Config& config, std::uint64_t seed, std::vector<StoredJob> stored, Instant now);
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  void Handle(const Input& input, Instant now);
  // Everything to be done since the last call. The order among its parts is a contract: effects.h.
  [[nodiscard]] Effects TakeEffects();
  // When to call Handle(Tick) next; Instant::Never() when nothing is pending.
  [[nodiscard]] Instant NextDeadline() const;

  [[nodiscard]] std::vector<JobName> Jobs() const;
  // Elements of all that could grow with time, of all jobs; for tests. It must not.
  [[nodiscard]] std::size_t Footprint() const;
  // Nothing when there is no such job.
  [[nodiscard]] std::optional<JobView> Describe(const JobName& job, Instant now) const;
  // For tests: do the counts that jobs keep agree with what they count?
  [[nodiscard]] bool CountsAreExact() const;

  // A copy that goes its own way.
  [[nodiscard]] std::shared_ptr<Coordinator> Clone() const;
  // All state that what it does later may depend on, for those who compare states. What it draws
  // only has to be fresh.
  template <class Visit>
  void VisitState(Visit&& visit) const {
    visit(jobs_, refused_, early_launchers_);
  }

 private:
  void OnReceived(const Received& received, Instant now);
  void OnHello(const Received& received, const Hello& hello, Instant now);
  void OnLauncherHello(const Received& received, const LauncherHello& hello, Instant now);
  void OnDrain(const Drain& drain, Instant now);
  void CreateJob(const Hello& hello, Instant now);
  void Refuse(SessionId session, Code code, std::string reason);
  void End(SessionId session);
  [[nodiscard]] Job* JobOfSession(SessionId session);

  const Config config_;
  Prng prng_;
  std::map<JobName, std::unique_ptr<Job>> jobs_;
  std::unordered_map<SessionId, Job*> sessions_;
  // Refused and not closed yet: what they sent before they heard so means nothing.
  std::set<SessionId> refused_;
  // Launchers come before their workers, and only workers bring the spec: what they said is kept
  // until the job is there.
  struct EarlyLauncher {
    LauncherHello hello;
    std::map<WorkerId, Attest> attests;
  };
  std::map<SessionId, EarlyLauncher> early_launchers_;
  Effects effects_;
};

}  // namespace muster::coordinator
