#include "protocol/mutants.h"

#include <array>
#include <cstddef>
#include <map>

#include "protocol/check.h"

namespace muster {

namespace {

constexpr std::array kTable = {
    MutantInfo{Mutant::kForgetDecision, "forget-decision",
               "A record that never started has decided the open step, and the next round decides "
               "it afresh.",
               1},
    MutantInfo{Mutant::kOnlyCommitsFinal, "only-commits-final",
               "The decision to abandon a step is not inherited, the one to commit it is.", 1},
    MutantInfo{Mutant::kAppliedNotPrepared, "applied-not-prepared",
               "A member that has applied the step does not count as prepared for it, so the step "
               "is abandoned.",
               1},
    MutantInfo{Mutant::kLeastCommitted, "least-committed",
               "The least of the survivors' committed steps wins, not the greatest.", 1},
    MutantInfo{Mutant::kNeverCommitOpen, "never-commit-open",
               "The open step is abandoned although every survivor is prepared.", 1},
    MutantInfo{Mutant::kCommitAnyPrepared, "commit-any-prepared",
               "The open step is committed when any survivor is prepared.", 1},
    MutantInfo{Mutant::kCommitMajorityPrepared, "commit-majority-prepared",
               "The open step is committed when most survivors are prepared.", 1},
    MutantInfo{Mutant::kJoinerCountsAsSurvivor, "joiner-counts-as-survivor",
               "The answers of joiners count in the decision on the open step.", 1},
    MutantInfo{Mutant::kSkipAppliedAfterDecision, "skip-applied-after-decision",
               "A skipped step that was decided in a record is applied by those that learn it from "
               "there.",
               2},
    MutantInfo{Mutant::kEvictedNotFenced, "evicted-not-fenced",
               "A member that a record left out may come back as the same incarnation.", 3},
    MutantInfo{Mutant::kFenceAtLease, "fence-at-lease",
               "Death is final when the lease or the grace has run out.", 3},
    MutantInfo{Mutant::kSuspicionNotWithdrawn, "suspicion-not-withdrawn",
               "A suspect that is heard again stays a suspect.", 3},
    MutantInfo{Mutant::kAssignByName, "assign-by-name",
               "A fresh incarnation is taken for the member of the same name.", 3},
    MutantInfo{Mutant::kGiveUpLiveState, "give-up-live-state",
               "The job goes back to a checkpoint while a member that holds live state is unseen.",
               4},
    MutantInfo{Mutant::kEvictNodeMate, "evict-node-mate",
               "The death of a worker counts against all workers of its node.", 3},
    MutantInfo{Mutant::kBelowMinWorkers, "below-min-workers",
               "A generation forms with fewer than min_workers.", 0},
    MutantInfo{Mutant::kGrowthLoops, "growth-loops",
               "A full job re-forms for a spare again and again.", 0},
    MutantInfo{Mutant::kSettleRearmed, "settle-rearmed",
               "Each failure and each joiner starts the settle window anew.", 0},
    MutantInfo{Mutant::kJoinWindowRearmed, "join-window-rearmed",
               "Each joiner starts the join window anew.", 0},
    MutantInfo{Mutant::kAccuseWaitingRank, "accuse-waiting-rank",
               "The progress deadline evicts the ranks that wait, not the one that has not come.",
               0},
    MutantInfo{
        Mutant::kCooldownOfNodeMate, "cooldown-of-node-mate",
        "The cool-down of a place that fails again and again hits the healthy places beside it.",
        0},
    MutantInfo{Mutant::kReadyBeforeAbort, "ready-before-abort",
               "A worker answers the interrupt before its abort has taken effect, and may still "
               "vote.",
               1},
    MutantInfo{Mutant::kVoteBeforePrepared, "vote-before-prepared",
               "The vote leaves before the worker counts itself as prepared.", 1},
    MutantInfo{Mutant::kStaleReadyAccepted, "stale-ready-accepted",
               "An answer to an older interrupt counts in the present round.", 1},
    MutantInfo{Mutant::kLowerAssignAccepted, "lower-assign-accepted",
               "A worker takes an assignment below the number that it was last interrupted for.",
               5},
    MutantInfo{Mutant::kAssignBeforeDurable, "assign-before-durable",
               "The assignment is sent, and becomes durable only with a later record.", 1},
    MutantInfo{Mutant::kInterruptIgnoredInApply, "interrupt-ignored-in-apply",
               "An interrupt that comes while a step is applied is ignored.", 0},
    MutantInfo{Mutant::kRestartKeepsGeneration, "restart-keeps-generation",
               "A restarted coordinator keeps its generation although members have aborted it.", 5},
    MutantInfo{Mutant::kStopForgotten, "stop-forgotten",
               "A restarted coordinator does not hear that members have stopped at a boundary.", 5},
    MutantInfo{Mutant::kRestartGivesUpAtOnce, "restart-gives-up-at-once",
               "A restarted coordinator gives up members that have not come back yet.", 5},
    MutantInfo{Mutant::kRollbackOfKnownSteps, "rollback-of-known-steps",
               "A rollback voids only the steps known when it was recorded.", 7},
    MutantInfo{Mutant::kRollbackOfKnownAndOpen, "rollback-of-known-and-open",
               "A rollback voids only the steps known when it was recorded and the open one.", 7},
    MutantInfo{Mutant::kAutonomyAtBoundaryOnly, "autonomy-at-boundary-only",
               "A worker out of touch for too long stops at a boundary, but Commit() still returns "
               "an outcome.",
               8},
    MutantInfo{Mutant::kCoordinatorTimerFirst, "coordinator-timer-first",
               "The coordinator's wait for unseen members ends before they stop by themselves.", 8},
    MutantInfo{Mutant::kLeaseFromAck, "lease-from-ack",
               "A worker counts its lease from the acknowledgement, not from what was "
               "acknowledged.",
               8},
    MutantInfo{Mutant::kLateCommitAnyLineage, "late-commit-any-lineage",
               "A voided checkpoint can still become complete, and the ladder restores from it.",
               9},
    MutantInfo{Mutant::kAnnounceVoid, "announce-void",
               "A checkpoint that a rollback made void is announced when its manifest comes.", 9},
    MutantInfo{Mutant::kVolatileStrikes, "volatile-strikes",
               "Strikes against a checkpoint are lost in a restart, and the ladder ignores the "
               "lineage.",
               9},
    MutantInfo{Mutant::kKeyByStepAlone, "key-by-step-alone",
               "Checkpoints of one step from two generations are taken for one.", 9},
    MutantInfo{Mutant::kRetentionAtCommit, "retention-at-commit",
               "A checkpoint lets older ones be deleted before it is announced.", 9},
    MutantInfo{Mutant::kRetentionCountsVoid, "retention-counts-void",
               "Void checkpoints count among those that retention keeps.", 9},
    MutantInfo{Mutant::kSweepOfLiveSaves, "sweep-of-live-saves",
               "A sweep of leftovers takes those of saves that are still under way.", 9},
    MutantInfo{Mutant::kSweptStillCounts, "swept-still-counts",
               "A sweep takes what the generation before wrote, whose late shards still count.", 9},
    MutantInfo{Mutant::kWishesOfSurvivorsOnly, "wishes-of-survivors-only",
               "The wishes agreed in a vote are made up from the votes of the survivors.", 2},
    MutantInfo{Mutant::kSnapshotLate, "snapshot-late",
               "The snapshot copies the state after the next step has begun.", 0},
    MutantInfo{Mutant::kRestoreNewestAsDecided, "restore-newest-as-decided",
               "The newest checkpoint is restored from as if it were the state of the decided "
               "step.",
               7},
    MutantInfo{Mutant::kOldCutDroppedEarly, "old-cut-dropped-early",
               "A worker gives up the old cut when it has formed, before the generation starts.",
               11},
    MutantInfo{Mutant::kCleanBoundarySourcesOnly, "clean-boundary-sources-only",
               "Only members with no open step count as sources of live state.", 11},
    MutantInfo{Mutant::kRangesOfOldWorld, "ranges-of-old-world",
               "The micro-batches are dealt as if a lost member were still there.", 0},
    MutantInfo{Mutant::kLeaveBeforeEndDurable, "leave-before-end-durable",
               "A worker leaves when its steps are done, before the end is durable.", 10},
    MutantInfo{Mutant::kEndIgnored, "end-ignored",
               "A durable end cancels neither leases nor forming.", 10},
    MutantInfo{Mutant::kAdoptOnAnyReport, "adopt-on-any-report",
               "An empty store adopts a generation when one of its members has reported.", 12},
    MutantInfo{Mutant::kForceWithoutRollback, "force-without-rollback",
               "Forced adoption records no rollback of what the missing members may have done.",
               12},
    MutantInfo{Mutant::kReuseNumber, "reuse-number",
               "The greatest number that a worker has seen is given to the next generation.", 12},
    MutantInfo{Mutant::kLowNumber, "low-number",
               "The numbers that workers have seen are not looked at.", 12},
    MutantInfo{Mutant::kGroupIdKept, "group-id-kept",
               "The coordinator keeps the id of a round that failed and hands it on in the next.",
               0},
    MutantInfo{Mutant::kGroupIdStale, "group-id-stale",
               "A worker takes the id of an earlier assignment for that of the present one.", 0},
    MutantInfo{Mutant::kGroupIdOfOldRank, "group-id-of-old-rank",
               "The id is minted by whoever had a rank in the generation before.", 0},
};

constexpr bool InOrder() {
  for (std::size_t i = 0; i < kTable.size(); ++i) {
    if (static_cast<std::size_t>(kTable[i].mutant) != i) return false;
  }
  return static_cast<std::size_t>(Mutant::kGroupIdOfOldRank) + 1 == kTable.size();
}
static_assert(InOrder(), "the table follows the enumeration");

// Far more than the decisions of any run that comes to an end.
constexpr std::int64_t kMaxAsked = 200'000'000;

std::optional<Mutant> planted;
std::int64_t asked = 0;
std::map<std::int64_t, std::int64_t> notes;

}  // namespace

std::span<const MutantInfo> MutantTable() { return kTable; }

void Plant(std::optional<Mutant> mutant) {
  planted = mutant;
  asked = 0;
  notes.clear();
}

bool Planted(Mutant mutant) {
  MUSTER_CHECK(++asked < kMaxAsked, "the run does not come to an end");
  return planted == mutant;
}

void Note(std::int64_t key, std::int64_t value) { notes[key] = value; }

std::int64_t Noted(std::int64_t key) {
  const auto it = notes.find(key);
  return it == notes.end() ? -1 : it->second;
}

}  // namespace muster
