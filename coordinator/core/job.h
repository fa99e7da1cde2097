// One job: its workers, the evidence about them, the generation that trains and the round that
// forms the next one. Everything decided here is a call of one of the pure functions beside it
// (detection, quorum, step_decision, rank_plan, restore_plan); this class keeps the state between.
//
// Confined to the coordinator's thread. job.cc: sessions; job_adopt.cc: generations that the store
// knew nothing of; job_messages.cc: what workers and launchers say; job_detect.cc: evidence and
// growth; job_round.cc: collecting answers and deciding; job_form.cc: from the decision to the
// start; job_leave.cc: planned leaves; job_saves.cc: checkpoints; job_view.cc: what is shown;
// job_tally.cc: counts.
//
// A job may have very many workers, and each of them answers in each round. So no message costs a
// walk over the workers: what is asked of all of them is counted as it changes (Tally), and walks
// are made only where as many messages are sent, or once a deadline.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "coordinator/core/checkpoint_tracker.h"
#include "coordinator/core/config.h"
#include "coordinator/core/cooldown.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/describe.h"
#include "coordinator/core/detection.h"
#include "coordinator/core/effects.h"
#include "coordinator/core/input.h"
#include "coordinator/core/lease_table.h"
#include "coordinator/core/quorum.h"
#include "coordinator/core/rank_plan.h"
#include "coordinator/core/restore_plan.h"
#include "coordinator/core/step_decision.h"
#include "protocol/prng.h"

namespace muster::coordinator {

class Job {
 public:
  // `effects` and `prng` are the coordinator's and outlive the job. `adopting`: the store knew
  // nothing of this job, but workers that are in a generation report.
  Job(const Config& config, StoredJob stored, bool adopting, Prng* prng, Effects* effects,
      Instant now);

  // Every session that named this job. False: refused, and the session is to be closed.
  bool OnHello(SessionId session, const Hello& hello, const std::string& peer, Instant now);
  bool OnLauncherHello(SessionId session, const LauncherHello& hello, Instant now);
  void OnMessage(SessionId session, const Message& message, Instant now);
  void OnClosed(SessionId session, Instant now);
  void OnTick(Instant now);
  void OnLagged(Duration by, Instant now);
  void ForceAdopt(Instant now);
  void OnDrain(const Drain& drain, Instant now);

  [[nodiscard]] Instant NextDeadline() const;
  [[nodiscard]] JobView Describe(Instant now) const;
  [[nodiscard]] const JobRecord& record() const { return record_; }
  // Do the counts say what walking over all workers would? For tests.
  [[nodiscard]] bool CountsAreExact() const;
  // Elements of everything that could grow: bounded by what is connected and running now, and by
  // fixed limits, whatever has happened before.
  [[nodiscard]] std::size_t Footprint() const;

  // A copy that goes its own way, of another coordinator.
  Job(const Job& other, Prng* prng, Effects* effects) : Job(other) {
    prng_ = prng;
    effects_ = effects;
    for (auto& [session, worker] : by_session_) worker = FindWorker(worker->member);
  }
  // All state that what it does later may depend on, for those who compare states.
  template <class Visit>
  void VisitState(Visit&& visit) const {
    visit(record_, checkpoints_, before_, manifest_order_, workers_, launchers_, attested_, leases_,
          cooldowns_, next_cooldown_end_, next_hurry_, recent_closes_, next_order_, round_,
          last_round_, started_at_, last_growth_, quorum_since_, wished_, leavers_kept_,
          stop_until_, adopting_, adoption_, adoption_dead_, adopt_until_, next_progress_check_,
          last_commit_at_, step_times_, steps_in_generation_, bad_pairs_, committed_, found_);
  }

 private:
  Job(const Job&) = default;  // still bound to the other's coordinator

  struct Suspicion {
    Cause cause = Cause::kLeaseExpired;
    std::string evidence;
    Instant since;
    bool sticky = false;  // being heard again does not withdraw it
    bool dead = false;    // conclusive: this incarnation does nothing any more
  };
  struct Worker {
    Member member;
    NodeName node;
    std::int64_t pid = 0;
    std::string address;
    SessionId session;
    bool connected = false;
    bool able = false;
    bool leaving = false;
    bool drained = false;  // an operator wants its place empty: it waits and is never taken
    bool hurried = false;  // the members were interrupted once so that it can leave in time
    Instant hurry_at = Instant::Never();  // when that is due
    bool finish_called = false;
    bool finished = false;
    bool stopped = false;    // at the boundary where its generation agreed to re-form
    bool took_part = false;  // it is or was a member of a generation
    std::optional<CooldownTable::Cooling> cooling;  // its slot failed too often to be taken now
    std::int64_t order = 0;
    Instant last_heard;
    Instant asked;  // when it was last interrupted
    Instant closed_at;
    std::optional<Suspicion> suspicion;
    Heartbeat beat;
    Instant beat_changed;
    Instant phase_until;
    std::uint32_t counted = 0;  // what it counts for in tally_
    Instant counted_asked;
  };
  // Ranks of the members of one generation.
  using Roster = std::unordered_map<Member, Rank>;
  // What is asked of all workers. Recount keeps it.
  struct Tally {
    std::int32_t here = 0;     // connected and able
    std::int32_t growers = 0;  // could come in with the next generation
    std::int32_t leaving = 0;  // these five are members of the started generation
    std::int32_t stopped = 0;
    std::int32_t finished = 0;
    std::int32_t finish_called = 0;
    std::int32_t sound = 0;         // not suspected
    std::int32_t sound_latest = 0;  // members of the latest record that are not suspected
    std::int32_t unseen = 0;        // survivors that are not connected and not suspected yet
    std::int32_t usable = 0;        // have answered and can be members
    std::set<std::pair<Instant, Member>> owing;  // asked when, and not answered yet
    std::set<Member> droppable;                  // no generation needs them, or ever did
    friend bool operator==(const Tally&, const Tally&) = default;
  };
  struct Round {
    Generation number;
    Cause cause = Cause::kFirstFormation;
    Instant begun;
    Instant settle_until;
    Instant first_begun;       // of the first attempt since the last started generation
    Instant autonomy_until;    // when a silent generation has surely stopped
    bool forced = false;       // an operator did not wait for that
    int attempt = 1;           // generations assigned since the last one that committed a step, + 1
    std::set<Member> accused;  // by others, of a data connection that failed
    // The first link that was reported of the generation that broke; later reports may be of
    // members that had given it up by then. And who was in that generation.
    std::optional<std::pair<Member, Member>> link;
    std::vector<Member> linked;
    std::unordered_map<Member, Ready> ready;
    Instant answered;  // when the decision was taken
    bool assigned = false;
    GenerationRecord record;
    RestoreDecision restore;
    // Of this generation, from its rank 0. Not durable: it lives as long as this round, and a
    // restarted coordinator begins another one.
    std::optional<GroupId> group_id;
    std::unordered_map<Member, Formed> formed;
    std::int32_t members_formed = 0;
    Instant deadline;  // of the next answer that is due, then for forming
    std::optional<Wait> wait;
    Instant looked;     // when AdvanceRound last did
    bool stale = true;  // something that a decision rests on has changed since it was last tried
    Incident incident;
    std::set<Member> blamed;  // those of the incident
  };

  // job.cc
  bool Admit(SessionId session, const Hello& hello, Instant now);
  bool Attach(SessionId session, const Hello& hello, Instant now);
  void Connect(Worker& worker, SessionId session, const Hello& hello);
  void Welcome(Worker& worker, const std::string& peer, Instant now);
  void CatchUp(Worker& worker, const Hello& hello, bool fresh, Instant now);
  void CatchUpRound(Worker& worker, const Hello& hello, bool fresh, Instant now);
  bool RefuseHello(SessionId session, Code code, std::string reason, Instant now);
  void SetStarted(std::optional<GenerationRecord> record, Instant now);
  void AwaitMembers(Instant now);

  // job_tally.cc
  static Roster RosterOf(const GenerationRecord& record);
  [[nodiscard]] std::uint32_t CountsFor(const Worker& worker) const;
  static void Count(Tally& tally, std::uint32_t what, std::int32_t by);
  // After any change of what a worker is.
  void Recount(Worker& worker);
  // After a change of the started or the latest record, of the round, or of who is gone.
  void RecountAll();
  // To be followed by RecountAll.
  void SetLatest(GenerationRecord record, bool started);
  void AddGone(const Member& member);
  void Forget(const Member& member);

  // job_adopt.cc
  void StartAdopting(Instant now);
  void Adopt(const Hello& hello, Instant now);
  void TryAdopt(Instant now);
  void NoteWhileAdopting(Worker& worker, const Message& message);
  void NoteFound(const Hello& hello, Instant now);
  void TakeUpFound(Instant now);
  [[nodiscard]] std::optional<GenerationRecord> StartedBefore(const GenerationRecord& record) const;
  void ForceOut(const GenerationRecord& running, Instant now);
  [[nodiscard]] Lineage FreshLineage() { return Lineage(prng_->Next() | 1U); }  // zero means none

  // job_messages.cc
  void On(Worker& worker, const Heartbeat& beat, Instant now);
  void On(Worker& worker, const Ready& ready, Instant now);
  void On(Worker& worker, const GroupId& group, Instant now);
  void SendGroupId(const Worker& worker);
  void On(Worker& worker, const Formed& formed, Instant now);
  void On(Worker& worker, const FormFailed& failed, Instant now);
  void OnLateFormFailed(const Worker& worker, const FormFailed& failed, Instant now);
  void StrikeOut(const Worker& worker, const FormFailed& failed, const Restore& restore,
                 Instant now);
  void On(Worker& worker, const OperationFailed& failed, Instant now);
  void On(Worker& worker, const Stopped& stopped, Instant now);
  void On(Worker& worker, const Leave& leave, Instant now);
  void On(Worker& worker, const Finished& done, Instant now);
  void OnAttest(const Attest& attest, const NodeName& node, Instant now);
  void Broadcast(const Message& message);
  void Send(const Worker& worker, const Message& message);
  void Publish(EventKind kind, Instant now, std::string detail,
               std::optional<Member> member = std::nullopt);
  void Persist();
  void FinishIfDone(Instant now);
  void EndJob(EndKind kind, std::string reason, Instant now);

  // job_leave.cc
  void AskToLeave(Worker& worker, const std::string& reason, Duration within, Instant now);
  void AskDrained(Instant now);
  void CheckHurry(Instant now);
  [[nodiscard]] bool IsDrained(const WorkerId& worker, const NodeName& node) const;

  // job_saves.cc
  void OnCheckpointMessage(Worker& worker, const Message& message, Instant now);
  void OnRemoved(const CheckpointRemoved& removed, Instant now);
  void Apply(const CheckpointTracker::Progress& progress, Instant now);
  void CheckManifest(Instant now);
  void OrderRemovals(const std::vector<RemoveCheckpoint>& removals);
  void OrderSweep(Generation generation, Step step);
  void ExpectSave(const StepResolution& resolution, Instant now);
  void OnShardWritten(const Worker& worker, const ShardWritten& shard, Instant now);
  // The rank that has to write its shard of this save; -1: none, or not known any more.
  [[nodiscard]] Rank RankFor(const CheckpointKey& key, const Member& member) const;
  [[nodiscard]] const GenerationRecord* WriterOf(const CheckpointKey& key) const;
  [[nodiscard]] const Worker* Helper() const;

  // job_detect.cc
  void Evaluate(Instant now);
  void CheckSilence(Instant now);
  void CheckProgress(Instant now);
  void Suspect(Worker& worker, Cause cause, std::string evidence, bool sticky, bool dead,
               Instant now);
  // True when that withdrew a suspicion.
  bool Heard(Worker& worker, Instant now);
  void CheckMembers(Instant now);
  void CheckStopped(Instant now);
  void DropUnneeded(Instant now);
  void CheckGrowth(Instant now);
  void CheckFirstFormation(Instant now);
  void NoteLoss(const Worker& worker, Instant now);
  void SetCooling(const Slot& slot, Instant now);
  void CheckCooldowns(Instant now);
  [[nodiscard]] CooldownRules cooldown_rules() const;
  void NoteCommit(Step committed, Instant now);
  // A member says that its link to a peer failed in a generation.
  void ReportLink(const Member& a, const Member& b, const GenerationRecord& record);
  void JudgeLinks(Instant now);
  [[nodiscard]] Duration ProgressTimeout() const;
  [[nodiscard]] SilenceView SilenceOf(const Worker& worker, Instant now) const;
  [[nodiscard]] bool LauncherSaysAlive(const Worker& worker) const;
  [[nodiscard]] bool IsMember(const Member& member) const {  // of the started generation
    return members_.contains(member);
  }
  [[nodiscard]] bool Gone(const Member& member) const { return gone_.contains(member); }
  // Is it a member of the started or the assigned generation that no record has left out?
  [[nodiscard]] bool Counts(const Member& member) const;
  [[nodiscard]] bool MemberLeaves() const { return tally_.leaving > 0; }
  [[nodiscard]] bool Wanted() const;  // is there a reason to re-form at the next boundary?
  // When that may be asked of the members.
  [[nodiscard]] Instant WishDue() const;
  [[nodiscard]] Timing timing() const;

  // job_round.cc
  // `detail`: more than `cause` says, for the reason of the job's end if this is one attempt too
  // many.
  void BeginRound(Cause cause, bool conclusive, Instant now, const std::string& detail = {});
  [[nodiscard]] Incident IncidentOf(Cause cause, Instant now);
  void Ask(Worker& worker, Instant now);
  void AdvanceRound(Instant now);
  [[nodiscard]] std::vector<QuorumMember> QuorumMembers(Instant now) const;
  // Of these three, `leavers`: do members that want to leave count too?
  [[nodiscard]] std::vector<Candidate> Candidates(const StepResolution& resolution,
                                                  bool leavers) const;
  [[nodiscard]] std::vector<Rank> Holders(const StepResolution& resolution, bool leavers) const;
  [[nodiscard]] RestoreDecision PlanRestoreOf(const StepResolution& resolution, bool leavers) const;
  [[nodiscard]] std::vector<Ready> SurvivorAnswers() const;
  [[nodiscard]] HoldersView HoldersViewOf(const std::vector<QuorumMember>& members,
                                          const StepResolution& resolution,
                                          const RestoreDecision& restore, Instant now) const;
  void CheckAnswerDeadline(Instant now);
  void ReleaseUnable(const StepResolution& resolution, Instant now);
  void AskToComeAfresh(Worker& worker, Instant now);
  [[nodiscard]] std::optional<StepDecision> Inherited() const;
  void SetWait(std::optional<Wait> wait, Instant now);
  // Would trying to decide give the same wait again?
  [[nodiscard]] bool WaitStands(Instant now) const;
  void AddBlame(const Member& member, Cause cause, std::string evidence);

  // job_form.cc
  void Decide(const StepResolution& resolution, const RestoreDecision& restore, bool leavers,
              Instant now);
  void NoteDecision(Instant now);
  [[nodiscard]] bool GivesUpUnseen(const GenerationRecord& next) const;
  void Dismiss(const Member& member, bool left, Instant now);
  void CheckFormed(Instant now);
  void CheckFormDeadline(Instant now);
  void StartGeneration(Instant now);

  // job_view.cc
  [[nodiscard]] Wait PresentWait() const;
  void DescribePhase(JobView& view, Instant now) const;
  void DescribeWorkers(JobView& view, Instant now) const;
  [[nodiscard]] std::string WaitingToForm(Instant now) const;

  [[nodiscard]] Worker* BySession(SessionId session);
  [[nodiscard]] Worker* FindWorker(const Member& member);

  const Config config_;
  Prng* prng_;  // for lineages
  Effects* effects_;
  JobRecord record_;
  CheckpointTracker checkpoints_;

  Roster members_;         // of record_.started
  Roster latest_members_;  // of record_.latest
  std::set<Member> gone_;  // record_.gone
  Tally tally_;
  // The generation before record_.started: its last save may still be under way.
  std::optional<GenerationRecord> before_;
  Roster before_members_;
  struct ManifestOrder {
    CheckpointKey key;
    Member to;
    Instant until;
  };
  std::optional<ManifestOrder> manifest_order_;

  std::map<Member, Worker> workers_;
  std::unordered_map<SessionId, Worker*> by_session_;  // connected ones
  std::map<NodeName, std::set<Member>> by_node_;
  std::map<SessionId, NodeName> launchers_;
  // The processes that the launcher of a node says are alive.
  std::map<NodeName, std::set<std::pair<WorkerId, std::int64_t>>> attested_;
  std::size_t attested_count_ = 0;  // of all nodes
  LeaseTable leases_;
  CooldownTable cooldowns_;
  Instant next_cooldown_end_ = Instant::Never();  // of a worker that waits
  Instant next_hurry_ = Instant::Never();         // the first of the workers' hurry_at
  std::deque<Instant> recent_closes_;
  std::int64_t next_order_ = 1;

  std::optional<Round> round_;
  std::optional<Round> last_round_;  // of the started generation, until its first step
  Instant started_at_;               // of the started generation
  Instant last_growth_;
  std::optional<Instant> quorum_since_;    // min_workers are there, before generation 1
  bool wished_ = false;                    // growth or leave was asked of the members
  bool leavers_kept_ = false;              // the last decision could not do without them
  Instant stop_until_ = Instant::Never();  // when members that have not stopped are interrupted
  bool adopting_ = false;
  std::map<Member, Attachment> adoption_;
  std::set<Member> adoption_dead_;  // proven so after they had reported
  Instant adopt_until_;
  // In the checkpoint directory, while no generation is known; by (generation, step).
  std::map<std::pair<Generation, Step>, FoundCheckpoint> found_;

  Instant next_progress_check_ = Instant::Never();
  Instant last_commit_at_;
  std::deque<Duration> step_times_;
  std::int64_t steps_in_generation_ = 0;
  std::map<std::pair<Member, Member>, int> bad_pairs_;  // failures, each in another generation

  Step committed_;
  double loss_ = 0;
  std::deque<Incident> incidents_;
  std::int64_t incident_count_ = 0;
  std::int64_t reforms_ = 0;
};

}  // namespace muster::coordinator
