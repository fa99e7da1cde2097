// What a person or a program may know of a job: plain values for status, metrics and tests.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/effects.h"

namespace muster::coordinator {

enum class JobPhase { kWaiting, kForming, kRunning, kEnded };
[[nodiscard]] std::string_view NameOf(JobPhase phase);
[[nodiscard]] std::string_view NameOf(EventKind kind);
// For a person: "a process died".
[[nodiscard]] std::string_view CauseText(Cause cause);

struct WorkerView {
  Member member;
  NodeName node;
  std::int64_t pid = 0;
  std::string address;
  std::string role;   // "member", "waiting", "spare", "starting", "cooling", "drained"
  std::string state;  // "alive", "suspect"
  Rank rank{-1};      // -1 unless a member
  bool connected = false;
  Duration last_heard;  // ago
  Step committed;
  Stage stage = Stage::kIdle;
  std::string phase;  // the user's, if any
  std::string note;   // why it is not taken: "cools down for 8.0 s more: it failed 3 times"
};

struct CheckpointView {
  CheckpointKey key;
  CheckpointState state = CheckpointState::kComplete;
  std::int64_t bytes = 0;
  std::int32_t world_size = 0;
  std::string directory;
  std::string note;  // "struck out", "in quarantine: 2 starts from it failed", "pinned"
};

struct JobView {
  JobName job;
  JobPhase phase = JobPhase::kWaiting;
  Generation generation;  // started, or being formed
  std::int32_t world_size = 0;
  JobSpec spec;
  Lineage lineage;
  Step committed;
  double loss = 0;
  // "" when nothing is waited for; else one line: for whom, and why.
  std::string waiting_for;
  std::vector<WorkerView> workers;          // members by rank, then the others by name
  std::vector<CheckpointView> checkpoints;  // newest first
  std::deque<Incident> incidents;           // oldest first, bounded by kMaxIncidents
  std::int64_t saves_aborted = 0;
  std::int64_t reforms = 0;
  std::optional<End> end;
};

}  // namespace muster::coordinator
