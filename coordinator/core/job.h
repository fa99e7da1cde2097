// One job: its workers, the evidence about them, the generation that trains and the round that
// forms the next one. Everything decided here is a call of one of the pure functions beside it
// (detection, quorum, step_decision, rank_plan, restore_plan); this class keeps the state between.
//
// Confined to the coordinator's thread. job.cc: messages and sessions; job_detect.cc: evidence and
// growth; job_round.cc: forming; job_view.cc: what is shown.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/checkpoint_tracker.h"
#include "coordinator/core/config.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/describe.h"
#include "coordinator/core/detection.h"
#include "coordinator/core/effects.h"
#include "coordinator/core/lease_table.h"
#include "coordinator/core/quorum.h"
#include "coordinator/core/rank_plan.h"
#include "coordinator/core/restore_plan.h"
#include "coordinator/core/step_decision.h"

namespace muster::coordinator {

class Job {
 public:
  // `effects` is the coordinator's and outlives the job. `adopting`: the store knew nothing of this
  // job, but workers that are in a generation report.
  Job(const Config& config, StoredJob stored, bool adopting, Effects* effects, Instant now);

  // Every session that named this job. False: refused, and the session is to be closed.
  bool OnHello(SessionId session, const Hello& hello, const std::string& peer, Instant now);
  bool OnLauncherHello(SessionId session, const LauncherHello& hello, Instant now);
  void OnMessage(SessionId session, const Message& message, Instant now);
  void OnClosed(SessionId session, Instant now);
  void OnTick(Instant now);
  void OnLagged(Duration by, Instant now);
  void ForceAdopt(Instant now);

  [[nodiscard]] Instant NextDeadline() const;
  [[nodiscard]] JobView Describe(Instant now) const;
  [[nodiscard]] const JobRecord& record() const { return record_; }

 private:
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
    bool finish_called = false;
    bool finished = false;
    std::int64_t order = 0;
    Instant last_heard;
    Instant closed_at;
    std::optional<Suspicion> suspicion;
    Heartbeat beat;
    Instant beat_changed;
    Instant phase_until;
  };
  struct Round {
    Generation number;
    Cause cause = Cause::kFirstFormation;
    Instant begun;
    Instant settle_until;
    Instant first_begun;  // of the first attempt since the last started generation
    int attempt = 1;
    std::map<Member, Ready> ready;
    Instant answered;  // when the decision was taken
    bool assigned = false;
    GenerationRecord record;
    RestoreDecision restore;
    std::map<Member, Formed> formed;
    Instant deadline;  // for answers, then for forming
    std::optional<Wait> wait;
    Incident incident;
  };

  // job.cc
  bool Admit(SessionId session, const Hello& hello, Instant now);
  bool Attach(SessionId session, const Hello& hello, Instant now);
  void Welcome(Worker& worker, const std::string& peer, Instant now);
  void CatchUp(Worker& worker, const Hello& hello, Instant now);
  bool RefuseHello(SessionId session, Code code, std::string reason, Instant now);
  void Adopt(const Hello& hello, Instant now);
  void TryAdopt(Instant now);
  void On(Worker& worker, const Heartbeat& beat, Instant now);
  void On(Worker& worker, const Ready& ready, Instant now);
  void On(Worker& worker, const Formed& formed, Instant now);
  void On(Worker& worker, const FormFailed& failed, Instant now);
  void On(Worker& worker, const OperationFailed& failed, Instant now);
  void On(Worker& worker, const Stopped& stopped, Instant now);
  void On(Worker& worker, const Leave& leave, Instant now);
  void OnCheckpointMessage(Worker& worker, const Message& message, Instant now);
  void OnAttest(const Attest& attest, const NodeName& node, Instant now);
  void Apply(const CheckpointTracker::Progress& progress, Instant now);
  void Broadcast(const Message& message);
  void Send(const Worker& worker, const Message& message);
  void Publish(EventKind kind, Instant now, std::string detail,
               std::optional<Member> member = std::nullopt);
  void Persist();
  void FinishIfDone(Instant now);
  void EndJob(EndKind kind, std::string reason, Instant now);

  // job_detect.cc
  void Evaluate(Instant now);
  void CheckSilence(Instant now);
  void CheckProgress(Instant now);
  void Suspect(Worker& worker, Cause cause, std::string evidence, bool sticky, bool dead,
               Instant now);
  void Heard(Worker& worker, Instant now);
  void CheckMembers(Instant now);
  void CheckGrowth(Instant now);
  void CheckFirstFormation(Instant now);
  void NoteCommit(Step committed, Instant now);
  void NoteBadPair(const Member& a, const Member& b, Instant now);
  [[nodiscard]] Duration ProgressTimeout() const;
  [[nodiscard]] SilenceView SilenceOf(const Worker& worker, Instant now) const;
  [[nodiscard]] bool LauncherSaysAlive(const Worker& worker) const;
  [[nodiscard]] bool IsMember(const Member& member) const;  // of the started generation
  [[nodiscard]] bool Wanted() const;  // is there a reason to re-form at the next boundary?
  [[nodiscard]] Timing timing() const;

  // job_round.cc
  void BeginRound(Cause cause, bool conclusive, Instant now);
  void AdvanceRound(Instant now);
  [[nodiscard]] std::vector<QuorumMember> QuorumMembers(Instant now) const;
  [[nodiscard]] std::vector<Candidate> Candidates(const StepResolution& resolution) const;
  [[nodiscard]] std::vector<Ready> SurvivorAnswers() const;
  [[nodiscard]] std::vector<Rank> Holders(const StepResolution& resolution) const;
  [[nodiscard]] HoldersView HoldersViewOf(const std::vector<QuorumMember>& members,
                                          const StepResolution& resolution,
                                          const RestoreDecision& restore, Instant now) const;
  void Decide(const StepResolution& resolution, const RestoreDecision& restore, Instant now);
  void NoteDecision(Instant now);
  void ReleaseLeavers(const StepResolution& resolution, Instant now);
  void Dismiss(const Member& member, bool left, Instant now);
  void CheckAnswerDeadline(Instant now);
  void CheckFormed(Instant now);
  void CheckFormDeadline(Instant now);
  void StartGeneration(Instant now);
  void SetWait(std::optional<Wait> wait, Instant now);
  [[nodiscard]] std::optional<StepDecision> Inherited() const;

  // job_view.cc
  void DescribePhase(JobView& view, Instant now) const;
  void DescribeWorkers(JobView& view, Instant now) const;
  [[nodiscard]] std::string WaitingToForm(Instant now) const;

  [[nodiscard]] Worker* BySession(SessionId session);
  [[nodiscard]] Worker* FindWorker(const Member& member);

  const Config& config_;
  Effects* const effects_;
  JobRecord record_;
  CheckpointTracker checkpoints_;

  std::map<Member, Worker> workers_;
  std::map<SessionId, Member> by_session_;
  std::map<SessionId, NodeName> launchers_;
  std::map<std::pair<WorkerId, std::int64_t>, std::pair<NodeName, bool>> attested_;
  LeaseTable leases_;
  std::deque<Instant> recent_closes_;
  std::int64_t next_order_ = 1;

  std::optional<Round> round_;
  std::optional<Round> last_round_;  // of the started generation, until its first step
  Instant started_at_;               // of the started generation
  Instant last_growth_;
  std::optional<Instant> quorum_since_;  // min_workers are there, before generation 1
  bool wished_ = false;                  // growth or leave was asked of the members
  bool adopting_ = false;
  std::map<Member, Attachment> adoption_;
  Instant adopt_until_;

  Instant next_progress_check_ = Instant::Never();
  Instant last_commit_at_;
  std::deque<Duration> step_times_;
  std::int64_t steps_in_generation_ = 0;
  struct BadPair {
    int failures = 0;       // in as many generations
    Generation generation;  // the last of them
  };
  std::map<std::pair<Member, Member>, BadPair> bad_pairs_;

  Step committed_;
  double loss_ = 0;
  std::deque<Incident> incidents_;
  std::int64_t incident_count_ = 0;
  std::int64_t reforms_ = 0;
};

}  // namespace muster::coordinator
