// Planted bugs: proof that the simulator's checkers see what they are there for. Each mutant is one
// local change, `if (Planted(Mutant::kX))`, at the place in the cores where the bug would be made.
//
// In ordinary builds Planted() is a constant: the branches fold away and no program holds any of
// them. Only the libraries with the suffix _mutants, of which nothing but muster-sim-mutants is
// made, are compiled with MUSTER_MUTANTS; there a variable chooses at run time.
#pragma once

#include <cstdint>

#ifdef MUSTER_MUTANTS
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>
#endif

namespace muster {

// In the order of MutantTable(), which says what each of them breaks.
enum class Mutant {
  // The decision on the open step.
  kForgetDecision,
  kOnlyCommitsFinal,
  kAppliedNotPrepared,
  kLeastCommitted,
  kNeverCommitOpen,
  kCommitAnyPrepared,
  kCommitMajorityPrepared,
  kJoinerCountsAsSurvivor,
  kSkipAppliedAfterDecision,
  // Membership.
  kEvictedNotFenced,
  kFenceAtLease,
  kSuspicionNotWithdrawn,
  kAssignByName,
  kGiveUpLiveState,
  kEvictNodeMate,
  kBelowMinWorkers,
  kGrowthLoops,
  kSettleRearmed,
  kJoinWindowRearmed,
  kAccuseWaitingRank,
  kCooldownOfNodeMate,
  // Messages.
  kReadyBeforeAbort,
  kVoteBeforePrepared,
  kStaleReadyAccepted,
  kLowerAssignAccepted,
  kAssignBeforeDurable,
  kInterruptIgnoredInApply,
  // Restart.
  kRestartKeepsGeneration,
  kStopForgotten,
  kRestartGivesUpAtOnce,
  // Rollback and autonomy.
  kRollbackOfKnownSteps,
  kRollbackOfKnownAndOpen,
  kAutonomyAtBoundaryOnly,
  kCoordinatorTimerFirst,
  kLeaseFromAck,
  // Checkpoints.
  kLateCommitAnyLineage,
  kAnnounceVoid,
  kVolatileStrikes,
  kKeyByStepAlone,
  kRetentionAtCommit,
  kRetentionCountsVoid,
  kSweepOfLiveSaves,
  kSweptStillCounts,
  kWishesOfSurvivorsOnly,
  kSnapshotLate,
  kRestoreNewestAsDecided,
  // Layout, data and end.
  kOldCutDroppedEarly,
  kCleanBoundarySourcesOnly,
  kRangesOfOldWorld,
  kLeaveBeforeEndDurable,
  kEndIgnored,
  // Empty store.
  kAdoptOnAnyReport,
  kForceWithoutRollback,
  kReuseNumber,
  kLowNumber,
  // The id of a generation's communicators.
  kGroupIdKept,
  kGroupIdStale,
  kGroupIdOfOldRank,
};

#ifdef MUSTER_MUTANTS

struct MutantInfo {
  Mutant mutant;
  std::string_view name;    // kebab-case
  std::string_view breaks;  // one sentence
  int rule;                 // of the twelve rules of the protocol; 0: another promise of the design
};
[[nodiscard]] std::span<const MutantInfo> MutantTable();

// From now on this one is planted, or none. Forgets what earlier runs noted.
void Plant(std::optional<Mutant> mutant);
[[nodiscard]] bool Planted(Mutant mutant);
// A few bugs have a memory that the durable records have no field for: what was noted under a key,
// or -1.
void Note(std::int64_t key, std::int64_t value);
[[nodiscard]] std::int64_t Noted(std::int64_t key);

// What MUSTER_CHECK throws here instead of ending the process, so that the run counts as caught.
// Thrown too by a run that never comes to an end.
struct CheckFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

#else

[[nodiscard]] constexpr bool Planted(Mutant) { return false; }
constexpr void Note(std::int64_t, std::int64_t) {}
[[nodiscard]] constexpr std::int64_t Noted(std::int64_t) { return -1; }

#endif

}  // namespace muster
