// The model of a training loop: the calls of worker/client in the order in which it makes them.
#include <algorithm>

#include "chaos/sim/trace.h"
#include "chaos/sim/world.h"
#include "protocol/check.h"
#include "worker/core/micro_batch_plan.h"

namespace muster::sim {

// Looks whether what the training thread waits for has come.
void World::Pump(Process& p) {
  if (p.at == At::kBoundary) BeginStep(p);
  if (p.at == At::kDeciding) Decide(p);
  if (p.at != At::kForming || !p.awaits_group) return;
  if (FormsStill(p)) return MeetGroup(p);
  p.awaits_group = false;  // interrupted
  BeginStep(p);
}

void World::BeginStep(Process& p) {
  p.at = At::kBoundary;
  AdoptCut(p);
  if (p.session->snapshot_due()) Snapshot(p);
  switch (p.session->Next(LocalNow(p))) {
    case worker::Directive::kForm: return Form(p);
    case worker::Directive::kTrain: return Train(p);
    case worker::Directive::kWait: return;
    case worker::Directive::kFinish: return Tell(p, worker::StepsDone{});
    case worker::Directive::kEnd: return Exit(p);
  }
}

void World::BackToBoundary(Process& p) {
  p.at = At::kBoundary;
  Tell(p, worker::AtBoundary{});
  if (p.alive) BeginStep(p);
}

void World::Train(Process& p) {
  p.at = At::kComputing;
  p.record = std::make_shared<const GenerationRecord>(*p.session->started_record());
  p.step = p.session->committed().Next();
  if (p.held.step != p.session->committed()) {
    verdict_.Violate("S2", fmt::format("worker w{} takes step {} on the state of step {}", p.index,
                                       p.step.value(), p.held.step.value()));
  }
  p.trained = true;
  Tell(p, worker::StepOpened{});
  Duration compute = options_.step;
  if (!exhaustive_) {
    const auto most = static_cast<std::uint64_t>(options_.step.nanos());
    compute = compute / 2 + Duration::Nanos(static_cast<std::int64_t>(prng_.Below(most)));
  }
  if (p.slow_compute > 0) compute = compute * 10;
  Later(p.index, compute, Continue{Thread::kComputed, {}});
}

// --- Operations ----------------------------------------------------------------------------------

void World::Enter(Process& p, OpKind kind, Step step, Contribution contribution) {
  const OpKey key{p.record->lineage, p.record->generation, kind, step, p.group};
  p.op = key;
  ++p.operations;
  ++p.serial;
  Schedule(data_.Enter(key, p.record, MemberOf(p), p.index, p.serial, std::move(contribution),
                       Reaches()));
  // The data plane's own deadline, the last resort.
  const bool forming = kind == OpKind::kConnect || kind == OpKind::kExchange;
  const Duration limit = forming ? p.session->forming_timeout() : p.session->progress_timeout();
  if (!exhaustive_) {
    queue_.Add(now_ + limit, {p.index, p.life, OperationEnds{p.serial, Ended::kFailed, Rank(-1)}});
  }
}

// Each at its own time; an error may also not come at all, and the call hangs.
void World::Schedule(const std::vector<DataPlane::Result>& results) {
  for (const DataPlane::Result& result : results) {
    if (result.how == Ended::kFailed && Chance(1, 3)) continue;
    const Process& p = Of(result.process);
    if (!p.alive || p.serial != result.serial) continue;
    Duration delay = Delay();
    // A reset may destroy what had arrived and was not read.
    if (result.how == Ended::kFailed) delay = Chance(1, 2) ? Duration() : Delay(3);
    Later(result.process, delay, OperationEnds{result.serial, result.how, result.peer});
  }
}

void World::On(Process& p, const OperationEnds& ends) {
  if (!p.op || p.serial != ends.serial) return;
  const OpKey key = *p.op;
  const Rank rank = EntryOf(p).rank;
  Rank peer = ends.peer;
  if (ends.how == Ended::kFailed && peer.value() < 0) {
    peer = data_.WaitsFor(key, rank, Reaches());
  }
  const auto finish = [&] {
    p.op.reset();
    data_.Return(key, rank);
  };
  if (ends.how == Ended::kFailed) {
    finish();
    Trace("  w{}: an operation failed, peer rank {}", p.index, peer.value());
    if (p.at == At::kForming) return FormBroke(p, Code::kUnavailable, "peer lost", peer, false);
    Broke(p, peer);
    if (p.at == At::kVoting) {
      p.at = At::kDeciding;
      return Decide(p);
    }
    return BackToBoundary(p);
  }
  if (key.kind == OpKind::kReduce) Reduced(p, key);
  if (key.kind == OpKind::kVote) {
    p.agreed = Wishes();
    for (const auto& [of, contribution] : data_.Contributions(key)) {
      p.agreed.checkpoint = p.agreed.checkpoint || contribution.wishes.checkpoint;
      p.agreed.reform = p.agreed.reform || contribution.wishes.reform;
    }
    const Commit vote{MemberOf(p), key.lineage, key.generation, key.step, Outcome::kNone, 0};
    step_chain_.OnAgreed(vote, p.agreed);
  }
  if (key.kind == OpKind::kExchange) {
    Exchanged(p, key);
    return finish();
  }
  finish();
  Point(p.index);
  if (!p.alive) return;  // that was a good place for a fault
  if (key.kind == OpKind::kConnect) return Connected(p);
  if (key.kind == OpKind::kReduce) return Vote(p);
  Tell(p, worker::VoteDone{key.step, p.agreed});
  p.at = At::kDeciding;
  Decide(p);
}

void World::Broke(Process& p, Rank peer) {
  Tell(p,
       worker::OperationBroke{p.record->generation, p.step, Code::kUnavailable, "peer lost", peer});
}

// As the record of its communicator knows it: the session may have been fenced since.
const MemberEntry& World::EntryOf(const Process& p) const {
  const auto& worker = p.session->member().worker;
  for (const MemberEntry& entry : p.record->members) {
    if (entry.member.worker == worker) return entry;
  }
  MUSTER_CHECK(false, "a process works in a generation that it is a member of");
}

Member World::MemberOf(const Process& p) const {
  return p.record ? EntryOf(p).member : p.session->member();
}

// The control thread aborts; the training thread comes out of its call a little later.
void World::AbortCalls(Process& p) {
  if (p.record) Schedule(data_.GiveUp(MemberOf(p), p.record->generation));
  if (!p.op) return;
  p.op.reset();
  Later(p.index, Duration::Micros(20), Continue{Thread::kCallAborted, {}});
}

void World::On(Process& p, const Continue& go_on) {
  switch (go_on.what) {
    case Thread::kPump: return Pump(p);
    case Thread::kAbortDone:
      // Not what was made since.
      if (p.record && p.record->generation == go_on.generation) AbortCalls(p);
      Tell(p, worker::Aborted{0.2});
      Later(p.index, Duration(), Continue{Thread::kPump, {}});
      return;
    case Thread::kCallAborted:
      if (p.at == At::kForming) {
        p.at = At::kBoundary;
        return BeginStep(p);
      }
      if (p.at == At::kVoting) {
        p.at = At::kDeciding;
        return Decide(p);
      }
      if (p.at == At::kReducing) return BackToBoundary(p);
      return;
    case Thread::kComputed:
      if (p.at == At::kComputing) Reduce(p);
      return;
    case Thread::kVote:
      if (p.at == At::kReducing) EnterVote(p);
      return;
    case Thread::kRestored: return Restored(p, go_on.generation);
    case Thread::kApplied: return BackToBoundary(p);
  }
}

// --- One step ------------------------------------------------------------------------------------

void World::Reduce(Process& p) {
  Tell(p, worker::ReduceBegun{});
  if (!p.session->Running(p.record->generation)) return BackToBoundary(p);  // the call fails
  p.at = At::kReducing;
  const worker::StepBatch batch = worker::BatchOf(spec_, p.step);
  Contribution contribution;
  contribution.deal = worker::DealTo(batch, EntryOf(p).rank, p.record->world_size());
  Enter(p, OpKind::kReduce, p.step, std::move(contribution));
}

void World::Reduced(Process& p, const OpKey& key) {
  std::vector<Range> parts;
  for (const auto& [rank, contribution] : data_.Contributions(key)) {
    parts.push_back(contribution.deal);
  }
  exact_data_.OnReduced(key, std::move(parts), verdict_);
  Trace("w{} has reduced step {}", p.index, key.step.value());
}

void World::Vote(Process& p) {
  const bool skip = p.step.value() % options_.skip_every == 0;
  const worker::Prepare prepare{p.step, skip ? Outcome::kSkip : Outcome::kApply,
                                p.session->WishesFor(p.step), 1.0};
  Tell(p, prepare);
  if (!p.session->prepared()) {  // interrupted before: the vote does not leave
    p.at = At::kDeciding;
    return Decide(p);
  }
  step_chain_.OnPrepared(
      {MemberOf(p), p.record->lineage, p.record->generation, p.step, Outcome::kNone, 0});
  EnterVote(p);
}

void World::EnterVote(Process& p) {
  p.at = At::kVoting;
  Contribution contribution;
  contribution.wishes = p.session->WishesFor(p.step);
  Enter(p, OpKind::kVote, p.step, std::move(contribution));
}

void World::Decide(Process& p) {
  const auto outcome = p.session->Decided(LocalNow(p));
  if (!outcome) return;
  if (*outcome != Outcome::kApply && *outcome != Outcome::kSkip) {
    Tell(p, worker::OutcomeTaken{});
    return BackToBoundary(p);
  }
  const Step step = p.session->committed();
  const Commit commit{p.session->member(), p.record->lineage, p.record->generation, step, *outcome,
                      p.held.state};
  p.contact.OnCommit(fmt::format("worker w{}", p.index), options_.lease, config_.autonomy,
                     p.connection != SessionId(), now_, verdict_);
  one_generation_.OnCommit(commit, chain_, verdict_);
  step_chain_.OnCommit(commit, chain_, verdict_);
  exact_data_.OnCommit(commit, chain_, verdict_);
  const bool counts = !chain_.Voided(commit.lineage, commit.generation, step);
  if (counts && chain_.Add(commit.lineage, commit.generation, step, *outcome, commit.before)) {
    liveness_.OnStep(chain_);
  }
  Trace("w{} commits {} in {}{}", p.index, step.value(), commit.generation.value(),
        counts ? "" : " (void)");
  p.held.state = *outcome == Outcome::kApply ? NextState(p.held.state, step) : p.held.state;
  p.held.step = step;
  Tell(p, worker::OutcomeTaken{});
  p.at = At::kApplying;
  Later(p.index, Duration::Micros(300), Continue{Thread::kApplied, {}});
}

}  // namespace muster::sim
