// The coordinator's settings and what follows from them. All time limits derive from the lease by
// stated rules; each can be overridden, and a set that contradicts itself is refused at start.
#pragma once

#include <string>

#include "protocol/limits.h"
#include "protocol/records.h"
#include "protocol/status.h"

namespace muster::coordinator {

struct Config {
  // Failures within this time are taken as one.
  Duration settle = kDefaultSettle;
  // Generation 1 forms this long after min_workers are there, or at max_workers.
  Duration join_window = kDefaultJoinWindow;
  // Growth re-forms at most once per this time.
  Duration growth_interval = kDefaultGrowthInterval;
  // A member that is not inside its training step answers and forms within this time.
  Duration forming_timeout = kDefaultFormingTimeout;
  // How long workers may go on, and an unseen generation is waited for, without contact.
  Duration autonomy = kDefaultAutonomy;
  // Without progress in an operation for longer than this (and 5 times the longest recent step), a
  // rank that others wait for is evicted.
  Duration progress_timeout = kDefaultProgressTimeout;
  // The same, until 20 steps of a generation are known.
  Duration first_step_timeout = kDefaultFirstStepTimeout;
  // A checkpoint whose files are not all recorded in this time is given up.
  Duration checkpoint_timeout = kDefaultCheckpointTimeout;
  // The longest that a member with a lost lease is waited for when evicting it means a rollback.
  Duration max_patience = kMaxPatience;
  // A worker's place that lost this many members in a row waits before it is taken in again: so
  // long, twice as long each time, at most so long; forgotten after so long without a failure.
  int cooldown_failures = kDefaultCooldownFailures;
  Duration cooldown = kDefaultCooldown;
  Duration max_cooldown = kDefaultMaxCooldown;
  Duration cooldown_forgiveness = kDefaultCooldownForgiveness;
  int max_forming_attempts = kMaxFormingAttempts;
  int max_consecutive_skips = kMaxConsecutiveSkips;

  // The inequality that fails, or ok.
  [[nodiscard]] Status Validate() const;
};

// What one job's lease implies.
struct Timing {
  Duration lease;
  Duration grace;               // of a closed session: a quarter of the lease
  Duration heartbeat_interval;  // max(lease / 10, world size / 10,000 s), at most lease / 5
};
[[nodiscard]] Timing TimingOf(const JobSpec& spec, std::int32_t world_size);

// Ok, or the first thing wrong with a spec and what to do about it.
[[nodiscard]] Status ValidateSpec(const JobSpec& spec);
// "" when they agree; otherwise each differing field with both values: "steps: 100 here, 200
// there".
[[nodiscard]] std::string DifferenceOf(const JobSpec& running, const JobSpec& offered);

}  // namespace muster::coordinator
